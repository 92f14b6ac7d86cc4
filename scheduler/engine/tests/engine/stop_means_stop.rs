//! G3: after a pause, edit or delete has returned and no attempt is `dispatching`, no trigger of the old definition
//! is published.

use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunState};
use cueline_store::Store as _;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, actor, tick};

/// A job with a period of 10 s. Its first run is claimed and due in one second.
async fn claimed() -> (Fixture, ManualEngine, FakeExecutor) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let rest = json!({ "schedule": { "every": "10s" } });
    fixture.apply("job", rest).await;
    fixture.set(9_000);
    tick(&mut engine).await;
    assert_eq!(fixture.states("job").await, [RunState::Scheduled]);
    (fixture, engine, e1)
}

/// The same run, due, marked and not yet published.
async fn prepared() -> (Fixture, ManualEngine, FakeExecutor) {
    let (fixture, mut engine, e1) = claimed().await;
    fixture.set(10_000);
    engine.prepare().await.expect("prepares");
    assert_eq!(fixture.states("job").await, [RunState::Dispatching]);
    (fixture, engine, e1)
}

async fn publishing(fixture: &Fixture) -> usize {
    let job = fixture.runs("job").await[0].job_id;
    fixture
        .store
        .dispatching_attempts(&[job])
        .await
        .expect("lists")
        .len()
}

#[tokio::test]
async fn a_pause_after_the_claim_withdraws_the_run() {
    let (fixture, mut engine, e1) = claimed().await;
    fixture.pause("job").await;
    for ms in [10_000, 20_000] {
        fixture.set(ms);
        assert_eq!(tick(&mut engine).await, 0);
    }
    assert!(e1.take().await.is_empty());
    assert!(
        fixture.runs("job").await.is_empty(),
        "it had not happened yet"
    );
}

#[tokio::test]
async fn a_delete_after_the_claim_withdraws_the_run() {
    let (fixture, mut engine, e1) = claimed().await;
    fixture.delete("job").await;
    for ms in [10_000, 20_000] {
        fixture.set(ms);
        assert_eq!(tick(&mut engine).await, 0);
    }
    assert!(e1.take().await.is_empty());
}

#[tokio::test]
async fn an_edit_after_the_claim_applies_to_the_run() {
    let (fixture, mut engine, e1) = claimed().await;
    let rest = json!({ "schedule": { "every": "10s" }, "params": "new" });
    fixture.apply("job", rest).await;
    fixture.set(10_000);
    assert_eq!(tick(&mut engine).await, 1);
    let trigger = e1.take_one().await;
    assert_eq!(trigger.params.as_deref(), Some("new"));
    assert_eq!(trigger.job.version, 2);
}

#[tokio::test]
async fn an_edit_applies_to_a_run_that_waits_for_an_executor() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture.apply("job", json!({ "params": "old" })).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    fixture.apply("job", json!({ "params": "new" })).await;
    let e1 = fixture.executor("e1").await;
    tick(&mut engine).await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    assert_eq!(trigger.run, run);
    assert_eq!(trigger.params.as_deref(), Some("new"));
}

#[tokio::test]
async fn after_the_mark_a_pause_waits_for_the_publish() {
    let (fixture, mut engine, e1) = Box::pin(prepared()).await;
    fixture.pause("job").await;
    assert_eq!(publishing(&fixture).await, 1);
    assert_eq!(engine.publish().await.expect("publishes"), 1);
    assert_eq!(publishing(&fixture).await, 0);
    assert_eq!(e1.take().await.len(), 1);
    fixture.set(20_000);
    assert_eq!(tick(&mut engine).await, 0);
}

#[tokio::test]
async fn after_the_mark_an_edit_waits_for_the_publish() {
    let (fixture, mut engine, e1) = Box::pin(prepared()).await;
    let rest = json!({ "schedule": { "every": "10s" }, "params": "new" });
    fixture.apply("job", rest).await;
    assert_eq!(publishing(&fixture).await, 1);
    engine.publish().await.expect("publishes");
    assert_eq!(publishing(&fixture).await, 0);
    assert_eq!(e1.take_one().await.job.version, 1);
    fixture.set(20_000);
    tick(&mut engine).await;
    assert_eq!(e1.take_one().await.job.version, 2);
}

#[tokio::test]
async fn after_the_mark_a_delete_waits_for_the_publish() {
    let (fixture, mut engine, e1) = Box::pin(prepared()).await;
    let run = fixture.only_run("job").await;
    fixture.delete("job").await;
    let jobs = [run.job_id];
    assert_eq!(
        fixture
            .store
            .dispatching_attempts(&jobs)
            .await
            .expect("lists")
            .len(),
        1
    );
    engine.publish().await.expect("publishes");
    assert_eq!(
        fixture
            .store
            .dispatching_attempts(&jobs)
            .await
            .expect("lists")
            .len(),
        0
    );
    let trigger = e1.take_one().await;
    fixture.set(20_000);
    assert_eq!(tick(&mut engine).await, 0);
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run.id).await, RunState::Succeeded);
}

#[tokio::test]
async fn a_resumed_job_goes_on() {
    let (fixture, mut engine, e1) = claimed().await;
    fixture.pause("job").await;
    let resumed = fixture
        .real()
        .set_job_enabled(&crate::fixture::name("job"), true, &actor("a test"))
        .await;
    resumed.expect("resumes");
    fixture.set(10_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.job.version, 3);
}

/// The run is past its fire time and not due yet. The node holds it under the old definition and claims it again
/// under the new one.
#[tokio::test]
async fn an_edit_during_the_jitter_publishes_the_run_once_by_the_new_definition() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let definition = |priority: u8, params: &str| json!({ "schedule": { "every": "10s" }, "jitter": "9s", "priority": priority, "params": params });
    fixture.apply("job", definition(9, "old")).await;
    // Visits fire times until one has a jitter of more than two seconds.
    let mut fire_ms = 0;
    let run = loop {
        fire_ms += 10_000;
        fixture.set(fire_ms - 1_400);
        e1.heartbeat().await;
        tick(&mut engine).await;
        let run = fixture.runs("job").await.pop().expect("a run");
        if run.due_at.since_ms(run.fire_at) > 2_000 {
            break run;
        }
    };
    let due_ms = run.due_at.since_ms(Fixture::at(0));
    fixture.set(due_ms - 500);
    e1.heartbeat().await;
    tick(&mut engine).await;
    e1.take().await;
    fixture.apply("job", definition(1, "new")).await;
    tick(&mut engine).await;
    fixture.set(due_ms);
    assert_eq!(tick(&mut engine).await, 1);
    let trigger = e1.take_one().await;
    assert_eq!(
        (trigger.run, trigger.params.as_deref()),
        (run.id, Some("new"))
    );
}
