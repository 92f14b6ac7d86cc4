//! What follows from the end of a run, or from the start of a scheduler.

use cueline_model::{AttemptEvent, Outcome, OutcomeKind, RunKind, RunState};
use serde_json::json;

use crate::fixture::{Fixture, tick};

#[tokio::test]
async fn fixed_delay_counts_from_the_end_of_the_run() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture
        .apply("job", json!({ "schedule": { "after": "3s" } }))
        .await;
    let mut due = 3_000;
    for round in 1..=4 {
        fixture.set(due - 1);
        e1.heartbeat().await;
        assert_eq!(tick(&mut engine).await, 0, "round {round} is early");
        fixture.set(due);
        assert_eq!(tick(&mut engine).await, 1, "round {round}");
        let trigger = e1.take_one().await;
        // The run takes longer than the delay. Nothing fires meanwhile.
        fixture.set(due + 7_000);
        e1.heartbeat().await;
        assert_eq!(tick(&mut engine).await, 0);
        let kind = if round % 2 == 0 {
            OutcomeKind::Failed
        } else {
            OutcomeKind::Succeeded
        };
        e1.ended(&trigger, kind, fixture.now()).await;
        tick(&mut engine).await;
        due += 10_000;
    }
}

#[tokio::test]
async fn startup_jobs_run_when_the_first_node_starts_and_not_when_others_join() {
    let fixture = Fixture::new().await;
    fixture
        .apply("boot", json!({ "schedule": { "startup": true } }))
        .await;
    let e1 = fixture.executor("e1").await;
    let mut one = fixture.engine("one").await;
    let mut two = fixture.engine("two").await;
    e1.heartbeat().await;
    tick(&mut one).await;
    tick(&mut two).await;
    let trigger = e1.take_one().await;
    assert_eq!(trigger.kind, RunKind::Startup);
    assert_eq!(fixture.only_run("boot").await.kind, RunKind::Startup);
}

/// The machine slept, or the process was suspended.
#[tokio::test]
async fn a_rejoin_after_a_lost_lease_runs_no_startup_job() {
    let fixture = Fixture::new().await;
    fixture
        .apply("boot", json!({ "schedule": { "startup": true } }))
        .await;
    let mut one = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    tick(&mut one).await;
    e1.take_one().await;
    fixture.set(3_600_000);
    e1.heartbeat().await;
    tick(&mut one).await;
    assert!(e1.take().await.is_empty());
    fixture.only_run("boot").await;
    // A restart of the process is a start.
    drop(one);
    let mut one = fixture.engine("one").await;
    e1.heartbeat().await;
    tick(&mut one).await;
    assert_eq!(e1.take_one().await.kind, RunKind::Startup);
}

#[tokio::test]
async fn a_child_runs_once_after_all_shards_of_its_parent_with_their_output() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let rest = json!({ "route": { "sharded": ["a", "b"] } });
    fixture.apply("parent", rest).await;
    let after = json!({ "all": ["parent"], "pass_output": true });
    fixture.apply("child", json!({ "after": after })).await;
    fixture.trigger("parent").await;
    assert_eq!(tick(&mut engine).await, 2);
    let shards = e1.take().await;
    e1.ended(&shards[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert!(
        fixture.runs("child").await.is_empty(),
        "one shard is not all"
    );
    let mut outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
    outcome.output = Some("42".to_owned());
    for _ in 0..2 {
        let outcome = outcome.clone();
        e1.report(&shards[1], AttemptEvent::Ended { outcome }).await;
    }
    tick(&mut engine).await;
    let child = fixture.only_run("child").await;
    assert_eq!(child.kind, RunKind::Child);
    assert_eq!(child.parent, Some(shards[1].run));
    let trigger = e1.take_one().await;
    assert_eq!(trigger.params.as_deref(), Some("42"));
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.states("child").await, [RunState::Succeeded]);
}

#[tokio::test]
async fn a_child_does_not_run_after_a_failure() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("parent", json!({})).await;
    let rest = json!({ "after": { "all": ["parent"] } });
    fixture.apply("child", rest).await;
    fixture.trigger("parent").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
    tick(&mut engine).await;
    assert!(fixture.runs("child").await.is_empty());
}
