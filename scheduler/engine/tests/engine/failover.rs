//! G10: what was meant for an executor that has fallen silent goes to others, and a silence that nobody could hear counts for nothing.

use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_engine::ManualEngine;
use cueline_model::{AttemptId, OutcomeKind, RunState};
use serde_json::json;

use crate::executor::Executor;
use crate::failing_store::Fault;
use crate::scene::{Scene, tick, until};

/// The job's triggers go to `e1`, of which `e2` knows nothing yet.
async fn given(count: usize, rest: serde_json::Value) -> (Scene, ManualEngine, Executor) {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", rest).await;
    for _ in 0..count {
        scene.trigger("job").await;
    }
    engine.hear_itself();
    assert_eq!(tick(&mut engine).await, count);
    (scene, engine, e1)
}

/// Time passes in steps in which the node hears itself.
async fn pass(scene: &Scene, engine: &mut ManualEngine, from_ms: i64, to_ms: i64) {
    for at in (from_ms..=to_ms).step_by(1_000) {
        scene.set(at);
        engine.hear_itself();
        engine.tick().await.expect("a turn without faults");
    }
}

#[tokio::test]
async fn what_never_reached_it_is_routed_to_another_as_a_new_attempt() {
    let (scene, mut engine, e1) = given(3, json!({})).await;
    pass(&scene, &mut engine, 0, 29_000).await;
    let e2 = Executor::start(&scene, "e2").await;
    engine.hear().await.expect("hears");
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    pass(&scene, &mut engine, 30_000, 31_000).await;
    e2.heartbeat().await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 3);
    assert_eq!(tick(&mut engine).await, 3);
    let sent = e2.take().await;
    assert_eq!(
        sent.iter().map(|t| t.attempt).collect::<Vec<_>>(),
        [2, 2, 2]
    );
    assert!(e1.take().await.is_empty());
    for run in scene.runs("job").await {
        assert_eq!((run.state, run.retries), (RunState::Queued, 0));
    }
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
}

/// It had taken them: whether they ran there is not known, or known to be so.
#[tokio::test]
async fn what_it_had_taken_ends_by_on_lost() {
    for (on_lost, expected) in [("fail", RunState::Lost), ("rerun", RunState::Queued)] {
        let (scene, mut engine, e1) = given(2, json!({ "on_lost": on_lost })).await;
        let taken = e1.take().await;
        e1.started(&taken[1], scene.now()).await;
        pass(&scene, &mut engine, 0, 31_000).await;
        let e2 = Executor::start(&scene, "e2").await;
        engine.hear().await.expect("hears");
        assert_eq!(engine.fail_over().await.expect("fails over"), 2);
        tick(&mut engine).await;
        assert_eq!(scene.states("job").await, [expected; 2]);
        let again = e2.take().await;
        assert_eq!(again.len(), if on_lost == "rerun" { 2 } else { 0 });
        // Back, it tells of what had been taken from it.
        for trigger in &taken {
            e1.ended(trigger, OutcomeKind::Succeeded, scene.now()).await;
        }
        tick(&mut engine).await;
        assert_eq!(scene.states("job").await, [expected; 2]);
    }
}

/// What it had reported before it fell silent counts.
#[tokio::test]
async fn results_are_taken_in_before_anything_counts_as_lost() {
    let (scene, mut engine, e1) = given(1, json!({})).await;
    let taken = e1.take().await;
    pass(&scene, &mut engine, 0, 31_000).await;
    e1.ended(&taken[0], OutcomeKind::Succeeded, scene.now())
        .await;
    assert_eq!(engine.fail_over().await.expect("waits"), 0);
    tick(&mut engine).await;
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(scene.states("job").await, [RunState::Succeeded]);
}

/// Others report all the time, so that the queue of results is never empty: what it might have reported is through all the same.
#[tokio::test]
async fn a_load_that_never_ends_holds_up_no_failover() {
    let (scene, mut engine, e1) = given(1, json!({})).await;
    let e2 = Executor::start(&scene, "e2").await;
    let taken = e1.take().await;
    let report = async || {
        for _ in 0..3 {
            e2.started(&taken[0], scene.now()).await;
        }
    };
    pass(&scene, &mut engine, 0, 31_000).await;
    report().await;
    assert_eq!(engine.fail_over().await.expect("waits"), 0);
    engine.tick().await.expect("takes in what was there");
    report().await;
    e2.heartbeat().await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(scene.states("job").await, [RunState::Lost]);
}

/// The broker was down, or this node was cut off or stopped: nobody is dead for that.
#[tokio::test]
async fn a_silence_that_could_not_be_heard_fails_over_nothing() {
    let (scene, mut engine, e1) = given(1, json!({})).await;
    scene.set(40_000);
    engine.tick().await.expect("a turn without faults");
    engine.hear_itself();
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    pass(&scene, &mut engine, 41_000, 69_000).await;
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    pass(&scene, &mut engine, 70_000, 71_000).await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert!(e1.take().await.is_empty());
}

/// As long as it does not hear itself it knows nothing about others, however long that takes: that the count begins anew shows only afterwards.
#[tokio::test]
async fn who_is_deaf_fails_over_nothing() {
    let (scene, mut engine, e1) = given(1, json!({})).await;
    pass(&scene, &mut engine, 0, 29_000).await;
    scene.set(45_000);
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    engine.hear_itself();
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(e1.take().await.len(), 1);
}

/// It hears, and cannot write down what it hears: the store, by which silence is counted, knows nothing of those who spoke.
#[tokio::test]
async fn who_cannot_write_down_what_it_hears_fails_over_nothing() {
    let (scene, mut engine, e1) = given(1, json!({})).await;
    pass(&scene, &mut engine, 0, 25_000).await;
    for at in (26_000..=34_000).step_by(1_000) {
        scene.set(at);
        engine.hear_itself();
        e1.heartbeat().await;
        scene.store.fail_next("record_heartbeats", Fault::Before);
        assert!(engine.hear().await.is_err());
    }
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    e1.heartbeat().await;
    engine.hear().await.expect("hears");
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(e1.take().await.len(), 1);
}

/// Its voice came back in time.
#[tokio::test]
async fn a_short_silence_changes_nothing() {
    let (scene, mut engine, e1) = given(2, json!({})).await;
    pass(&scene, &mut engine, 0, 29_000).await;
    e1.heartbeat().await;
    pass(&scene, &mut engine, 30_000, 55_000).await;
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(e1.take().await.len(), 2);
}

/// Given back because of a failure, they would count as perhaps started.
#[tokio::test]
async fn a_failure_of_the_store_is_waited_out() {
    let (scene, mut engine, _e1) = given(5, json!({})).await;
    pass(&scene, &mut engine, 0, 31_000).await;
    let e2 = Executor::start(&scene, "e2").await;
    engine.hear().await.expect("hears");
    scene.store.fail_next("ingest_reports", Fault::Before);
    scene.store.fail_next("ingest_reports", Fault::After);
    assert_eq!(engine.fail_over().await.expect("fails over"), 5);
    tick(&mut engine).await;
    assert_eq!(e2.take().await.len(), 5);
}

/// Several are silent and are handled one after the other, by what was known of them at first: one that comes back meanwhile keeps what it has.
#[tokio::test]
async fn who_comes_back_before_its_turn_is_left_alone() {
    let (scene, mut engine, e1) = given(1, json!({})).await;
    e1.take_one().await;
    pass(&scene, &mut engine, 0, 31_000).await;
    scene.store.keep_executors().await;
    e1.heartbeat().await;
    let new = scene.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, new);
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(scene.states("job").await, [RunState::Queued; 2]);
}

/// A trigger of which it became known only during the turn that it was published is not what the turn is about, and not forgotten either.
#[tokio::test]
async fn what_it_was_given_during_the_turn_is_for_the_next_one() {
    let (scene, mut engine, e1) = given(1, json!({})).await;
    let old = e1.take_one().await.run;
    let faults = &scene.broker_faults;
    faults.always(Operation::Publish, BrokerFault::Unanswered);
    let run = scene.trigger("job").await;
    pass(&scene, &mut engine, 0, 31_000).await;
    e1.take().await;
    let slow = BrokerFault::Late(std::time::Duration::from_millis(200));
    faults.next(Operation::Stats, slow, 1);
    let calls = faults.calls(Operation::Stats);
    let (moved, ()) = tokio::join!(engine.fail_over(), async {
        let asked = async || faults.calls(Operation::Stats) > calls;
        until("it looks for what is left", asked).await;
        scene.set(31_400);
        let confirmed = [AttemptId { run, attempt: 1 }];
        let written = scene.real().confirm_dispatch(&confirmed).await;
        written.expect("is written down");
        scene.set(31_500);
    });
    assert_eq!(moved.expect("fails over"), 1);
    assert_eq!(scene.state(old).await, RunState::Lost);
    assert_eq!(scene.state(run).await, RunState::Queued);
    scene.set(32_000);
    engine.hear_itself();
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(scene.state(run).await, RunState::Lost);
}
