//! Runs that are due while no live executor can run them.

use cueline_engine::{EngineOptions, ManualEngine};
use cueline_model::{OutcomeKind, RunState};
use serde_json::json;

use crate::fixture::{Fixture, tick};

/// Lets time pass in steps of 5 s, which keep the node's lease.
async fn pass(fixture: &Fixture, engine: &mut ManualEngine, from: i64, to: i64) {
    for ms in (from..to).step_by(5_000).chain([to]) {
        fixture.set(ms);
        tick(engine).await;
    }
}

#[tokio::test]
async fn a_run_waits_until_an_executor_appears() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    pass(&fixture, &mut engine, 0, 60_000).await;
    assert_eq!(fixture.state(run).await, RunState::Scheduled);
    let e1 = fixture.executor("e1").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
    assert_eq!(fixture.state(run).await, RunState::Queued);
}

/// Heartbeats that another node stored count while they are recent.
#[tokio::test]
async fn a_starting_node_knows_executors_with_recent_heartbeats() {
    let fixture = Fixture::new().await;
    let mut one = fixture.engine("one").await;
    fixture.apply("job", json!({})).await;
    let e1 = fixture.executor("e1").await;
    tick(&mut one).await;
    drop(one);
    fixture.set(10_000);
    let mut two = fixture.engine("two").await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut two).await, 1);
    assert_eq!(e1.take_one().await.run, run);
    fixture.set(20_000);
    let mut three = fixture.engine("three").await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut three).await, 0);
    assert_eq!(fixture.state(run).await, RunState::Scheduled);
}

#[tokio::test]
async fn an_executor_without_the_handler_gets_no_run() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture
        .apply("job", json!({ "handler": { "native": "other" } }))
        .await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(fixture.state(run).await, RunState::Scheduled);
    let learnt = |heartbeat: &mut cueline_model::Heartbeat| {
        heartbeat.capabilities.push("native:other".to_owned());
    };
    e1.heartbeat_with(learnt).await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
}

#[tokio::test]
async fn a_run_ends_unroutable_after_its_dispatch_deadline() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture
        .apply("job", json!({ "dispatch_deadline": "30s" }))
        .await;
    let run = fixture.trigger("job").await;
    pass(&fixture, &mut engine, 0, 29_999).await;
    assert_eq!(fixture.state(run).await, RunState::Scheduled);
    fixture.set(30_000);
    tick(&mut engine).await;
    let ended = fixture.run(run).await;
    assert_eq!(ended.state, RunState::Unroutable);
    let why = ended.message.expect("a reason");
    assert!(why.contains("group default"), "{why}");
    assert!(why.contains("native:work"), "{why}");
    let e1 = fixture.executor("e1").await;
    tick(&mut engine).await;
    assert!(e1.take().await.is_empty(), "it is over");
}

#[tokio::test]
async fn an_unroutable_run_is_retried_by_its_policy() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let retry = json!({ "max": 1, "first": "20s", "jitter_percent": 0 });
    let rest = json!({ "dispatch_deadline": "10s", "retry": retry });
    fixture.apply("job", rest).await;
    let run = fixture.trigger("job").await;
    pass(&fixture, &mut engine, 0, 10_000).await;
    let again = fixture.run(run).await;
    assert_eq!(
        (again.state, again.attempt),
        (RunState::Scheduled, 2),
        "{again:?}"
    );
    assert_eq!(again.due_at, Fixture::at(30_000));
    // The deadline of the second attempt counts from its own due time.
    pass(&fixture, &mut engine, 15_000, 39_999).await;
    assert_eq!(fixture.state(run).await, RunState::Scheduled);
    pass(&fixture, &mut engine, 40_000, 40_000).await;
    assert_eq!(fixture.state(run).await, RunState::Unroutable);
    assert_eq!(fixture.timeline(run).await.last().unwrap(), "retry");
}

async fn overflow(deadline: &str) -> (Fixture, ManualEngine) {
    let fixture = Fixture::new().await;
    let engine = fixture
        .engine_with(EngineOptions {
            max_unroutable: 2,
            ..EngineOptions::default()
        })
        .await;
    for n in 0..5 {
        let rest = json!({ "dispatch_deadline": deadline });
        fixture.apply(&format!("job-{n}"), rest).await;
        fixture.trigger(&format!("job-{n}")).await;
    }
    (fixture, engine)
}

#[tokio::test]
async fn unroutable_runs_past_the_bound_wait_in_the_store() {
    let (fixture, mut engine) = overflow("1h").await;
    pass(&fixture, &mut engine, 0, 40_000).await;
    let e1 = fixture.executor("e1").await;
    assert_eq!(tick(&mut engine).await, 2, "those in memory");
    fixture.set(50_001);
    e1.heartbeat().await;
    assert_eq!(tick(&mut engine).await, 3, "those in the store");
    let mut names = e1.take_names().await;
    names.sort();
    assert_eq!(names, ["job-0", "job-1", "job-2", "job-3", "job-4"]);
}

#[tokio::test]
async fn unroutable_runs_in_the_store_have_the_same_deadline() {
    let (fixture, mut engine) = overflow("35s").await;
    pass(&fixture, &mut engine, 0, 34_999).await;
    for n in 0..5 {
        let run = fixture.only_run(&format!("job-{n}")).await;
        assert_eq!(run.state, RunState::Scheduled);
    }
    pass(&fixture, &mut engine, 35_000, 46_000).await;
    for n in 0..5 {
        let run = fixture.only_run(&format!("job-{n}")).await;
        assert_eq!(run.state, RunState::Unroutable);
    }
}

/// Past the bound, some runs are to be ended and others released.
#[tokio::test]
async fn a_store_failure_at_the_bound_strands_no_run() {
    for method in ["ingest_reports", "release_claims"] {
        let (fixture, mut engine) = overflow("8s").await;
        tick(&mut engine).await;
        // Past the deadline of the others, within that of this one.
        fixture.set(9_000);
        fixture
            .apply("late", json!({ "dispatch_deadline": "1h" }))
            .await;
        let late = fixture.trigger("late").await;
        fixture
            .store
            .fail_next(method, crate::fixture::Fault::Before);
        for ms in [11_500, 12_000, 22_500, 33_000] {
            fixture.set(ms);
            // One of these ticks fails.
            let _ = engine.tick().await;
        }
        assert_eq!(fixture.store.heal(), 1, "the fault happened");
        let e1 = fixture.executor("e1").await;
        fixture.set(44_000);
        e1.heartbeat().await;
        tick(&mut engine).await;
        assert_eq!(fixture.state(late).await, RunState::Queued, "{method}");
        for n in 0..5 {
            let run = fixture.only_run(&format!("job-{n}")).await;
            assert_eq!(run.state, RunState::Unroutable, "{method}");
        }
    }
}

/// A misfire is long past its fire time when the scheduler returns, and executors have not sent heartbeats yet.
#[tokio::test]
async fn the_dispatch_deadline_does_not_run_while_no_scheduler_listens() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let retry = json!({ "max": 1, "first": "10s", "jitter_percent": 0 });
    let rest = json!({ "schedule": { "every": "1h" }, "retry": retry });
    fixture.apply("job", rest).await;
    let failed = fixture.trigger("job").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
    tick(&mut engine).await;
    drop(engine);
    let hours = 5 * 3_600_000;
    fixture.set(hours + 60_000);
    let mut engine = fixture.engine("one").await;
    tick(&mut engine).await;
    fixture.set(hours + 64_000);
    tick(&mut engine).await;
    e1.heartbeat().await;
    assert_eq!(tick(&mut engine).await, 2, "the retry and the newest hour");
    assert_eq!(fixture.state(failed).await, RunState::Queued);
}

#[tokio::test]
async fn the_deadline_of_a_child_counts_from_the_end_of_its_parent() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("parent", json!({})).await;
    let rest = json!({ "after": { "all": ["parent"] }, "dispatch_deadline": "1m" });
    fixture.apply("child", rest).await;
    fixture.trigger("parent").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    pass(&fixture, &mut engine, 5_000, 600_000).await;
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    pass(&fixture, &mut engine, 600_000, 659_999).await;
    let child = fixture.only_run("child").await;
    assert_eq!(child.state, RunState::Scheduled, "{child:?}");
    pass(&fixture, &mut engine, 660_000, 660_000).await;
    assert_eq!(fixture.only_run("child").await.state, RunState::Unroutable);
}

/// The node that holds the run under the old definition does not end it.
#[tokio::test]
async fn a_longer_deadline_applies_to_runs_that_wait() {
    let fixture = Fixture::new().await;
    let mut one = fixture.engine("one").await;
    let mut two = fixture.engine("two").await;
    fixture
        .apply("job", json!({ "dispatch_deadline": "10s" }))
        .await;
    let run = fixture.trigger("job").await;
    tick(&mut one).await;
    fixture
        .apply("job", json!({ "dispatch_deadline": "1h" }))
        .await;
    tick(&mut two).await;
    pass(&fixture, &mut one, 5_000, 14_000).await;
    assert_eq!(fixture.state(run).await, RunState::Scheduled);
    let e1 = fixture.executor("e1").await;
    tick(&mut one).await;
    tick(&mut two).await;
    assert_eq!(e1.take_one().await.run, run);
}
