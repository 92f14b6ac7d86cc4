//! G11: cancelling a run in every state.

use cueline_model::{OutcomeKind, RunId, RunState};
use cueline_store::CancelOutcome;
use serde_json::json;

use crate::fixture::{Fixture, actor, tick};

async fn cancel(fixture: &Fixture, run: RunId) -> CancelOutcome {
    fixture
        .real()
        .cancel_run(run, &actor("a test"))
        .await
        .expect("cancels")
}

#[tokio::test]
async fn a_cancelled_scheduled_run_is_never_published() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let rest = json!({ "schedule": { "every": "1m" } });
    fixture.apply("job", rest).await;
    fixture.set(59_000);
    e1.heartbeat().await;
    engine.claim().await.expect("claims ahead");
    let run = fixture.only_run("job").await.id;
    assert_eq!(cancel(&fixture, run).await, CancelOutcome::Cancelled);
    fixture.set(60_000);
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e1.take().await.is_empty());
    assert_eq!(fixture.state(run).await, RunState::Cancelled);
}

/// The run is cancelled between the mark and the publish.
#[tokio::test]
async fn a_run_cancelled_while_dispatching_is_cancelled_at_its_executor() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    engine.claim().await.expect("claims");
    engine.prepare().await.expect("prepares");
    assert_eq!(cancel(&fixture, run).await, CancelOutcome::Requested);
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    assert_eq!(e1.received_cancellations(), [run.0]);
    e1.ended(&trigger, OutcomeKind::Cancelled, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Cancelled);
}

/// Cancellations are not stored on the way. They are sent again until the attempt has ended, queued or running.
#[tokio::test]
async fn a_cancellation_is_sent_until_it_has_taken_effect() {
    for running in [false, true] {
        let fixture = Fixture::new().await;
        let mut engine = fixture.engine("one").await;
        let mut e1 = fixture.executor("e1").await;
        let rest = json!({ "retry": { "max": 3 }, "on_lost": "rerun" });
        fixture.apply("job", rest).await;
        let run = fixture.trigger("job").await;
        let other = fixture.trigger("job").await;
        tick(&mut engine).await;
        let triggers = e1.take().await;
        if running {
            e1.started(&triggers[0], fixture.now()).await;
            tick(&mut engine).await;
        }
        assert_eq!(cancel(&fixture, run).await, CancelOutcome::Requested);
        for _ in 0..3 {
            tick(&mut engine).await;
            assert_eq!(e1.received_cancellations(), [run.0]);
        }
        e1.ended(&triggers[0], OutcomeKind::Cancelled, fixture.now())
            .await;
        tick(&mut engine).await;
        assert_eq!(fixture.state(run).await, RunState::Cancelled);
        tick(&mut engine).await;
        assert!(
            e1.received_cancellations().is_empty(),
            "it has taken effect"
        );
        assert_ne!(fixture.state(other).await, RunState::Cancelled);
    }
}

/// Cancellations that no executor can receive do not use up the batch.
#[tokio::test]
async fn a_thousand_cancellations_for_a_dead_executor_do_not_delay_others() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    let many = json!({ "sharded": vec![""; 1_000] });
    fixture.apply("many", json!({ "route": many })).await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("many").await;
    assert_eq!(tick(&mut engine).await, 1_000);
    for run in fixture.runs("many").await {
        cancel(&fixture, run.id).await;
    }
    fixture.set(10_000);
    tick(&mut engine).await;
    e1.received_cancellations();
    let mut e2 = fixture.executor("e2").await;
    fixture.set(20_000);
    e2.heartbeat().await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    cancel(&fixture, run).await;
    tick(&mut engine).await;
    assert_eq!(e2.received_cancellations(), [run.0]);
    // The executor has returned and receives them.
    e1.heartbeat().await;
    tick(&mut engine).await;
    assert!(e1.received_cancellations().len() > 900);
}

/// The outcome of the last attempt does not matter.
#[tokio::test]
async fn a_cancelled_run_gets_no_further_attempt() {
    for kind in [
        OutcomeKind::Returned,
        OutcomeKind::Failed,
        OutcomeKind::Lost,
    ] {
        let fixture = Fixture::new().await;
        let mut engine = fixture.engine("one").await;
        let e1 = fixture.executor("e1").await;
        let rest = json!({ "retry": { "max": 3, "first": "1s" }, "on_lost": "rerun" });
        fixture.apply("job", rest).await;
        let run = fixture.trigger("job").await;
        tick(&mut engine).await;
        let trigger = e1.take_one().await;
        cancel(&fixture, run).await;
        e1.ended(&trigger, kind, fixture.now()).await;
        tick(&mut engine).await;
        fixture.set(5_000);
        assert_eq!(tick(&mut engine).await, 0);
        assert!(fixture.state(run).await.is_terminal());
    }
}

/// A run that waits for an executor is `scheduled` and can be cancelled.
#[tokio::test]
async fn a_cancelled_run_that_waits_for_an_executor_is_never_published() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    assert_eq!(cancel(&fixture, run).await, CancelOutcome::Cancelled);
    let e1 = fixture.executor("e1").await;
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e1.take().await.is_empty());
}
