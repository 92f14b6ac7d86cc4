//! Triggers that are delivered again, and newer attempts (G5).

use std::sync::atomic::Ordering;

use cueline_model::{Block, DurationMs, OutcomeKind};

use crate::fixture::{Fixture, trigger, with_job};

#[tokio::test]
async fn a_repeated_trigger_of_a_running_attempt_starts_nothing() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let first = trigger(1, "gate", Block::Parallel(4));
    fixture.publish(std::slice::from_ref(&first)).await;
    fixture.wait_started(&[1]).await;
    fixture.publish(&[first.clone(), first]).await;
    fixture.wait_settled().await;
    fixture.gate.add_permits(5);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.started(), [1], "it ran once");
    assert_eq!(fixture.outcomes(1).len(), 1);
}

#[tokio::test]
async fn a_trigger_that_is_repeated_in_one_batch_runs_once() {
    let fixture = Fixture::new().await;
    let first = trigger(1, "noop", Block::Parallel(4));
    fixture
        .publish(&[first.clone(), first.clone(), first])
        .await;
    let worker = fixture.start();
    fixture.outcome(1).await;
    worker.drain().await;
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_repeated_trigger_of_an_ended_attempt_is_answered_with_its_outcome() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let first = trigger(1, "noop", Block::Serial);
    fixture.publish(std::slice::from_ref(&first)).await;
    let outcome = fixture.outcome(1).await;
    assert_eq!(outcome.output.as_deref(), Some("fine"));
    worker.drain().await;
    // Also across a restart: the journal knows the attempt.
    let worker = fixture.start();
    fixture.publish(&[first]).await;
    let both = fixture.wait_outcomes(1, 2).await;
    assert_eq!(both[0], both[1]);
    worker.drain().await;
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_trigger_of_an_older_attempt_is_dropped() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let older = trigger(1, "noop", Block::Serial);
    let mut newer = older.clone();
    newer.attempt = 2;
    fixture.publish(&[newer]).await;
    fixture.outcome(1).await;
    fixture.publish(&[older]).await;
    fixture.wait_settled().await;
    worker.drain().await;
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 1);
    assert_eq!(fixture.outcomes(1).len(), 1);
}

#[tokio::test]
async fn a_newer_attempt_stops_the_older_one_and_runs_after_it() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let older = trigger(1, "gate", Block::Parallel(4));
    let mut newer = older.clone();
    newer.attempt = 2;
    fixture.publish(&[older]).await;
    fixture.wait_started(&[1]).await;
    fixture.publish(&[newer]).await;
    fixture.wait_started(&[1, 1]).await;
    fixture.gate.add_permits(1);
    let both = fixture.wait_outcomes(1, 2).await;
    assert_eq!(both[0].kind, OutcomeKind::Cancelled);
    assert_eq!(both[1].kind, OutcomeKind::Succeeded);
    assert!(both[0].ended_at <= both[1].started_at.expect("it ran"));
    worker.drain().await;
}

#[tokio::test]
async fn an_ended_newer_attempt_is_answered_while_the_older_one_still_stops() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let older = with_job(trigger(1, "stubborn", Block::Serial), |job| {
        job.kill_grace = DurationMs::millis(0);
    });
    let mut newer = older.clone();
    newer.attempt = 2;
    fixture.publish(&[older]).await;
    fixture.wait_settled().await;
    fixture.publish(std::slice::from_ref(&newer)).await;
    fixture.wait_settled().await;
    fixture.cancel(1).await;
    let cancelled = fixture.outcome(1).await;
    assert_eq!(cancelled.started_at, None);
    fixture.publish(&[newer]).await;
    let answers = fixture.wait_outcomes(1, 2).await;
    assert_eq!(answers[1], cancelled);
    worker.kill().await;
}
