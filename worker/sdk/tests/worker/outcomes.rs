//! Outcomes of attempts.

use std::sync::atomic::Ordering;

use cueline_broker_embedded::EmbeddedOptions;
use cueline_model::{
    AttemptEvent, Block, DurationMs, HandlerSpec, OutcomeKind, handler::ShellSpec,
};
use cueline_protocol::{SigningKey, VerifyingKeys};
use cueline_worker::StopReason;

use crate::fixture::{Fixture, run, stopped, trigger, with_job};

#[tokio::test]
async fn an_attempt_that_reaches_its_time_limit_times_out() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let limited = with_job(trigger(1, "gate", Block::Serial), |job| {
        job.timeout = Some(DurationMs::millis(50));
    });
    fixture
        .publish(&[limited, trigger(2, "noop", Block::Serial)])
        .await;
    let outcome = fixture.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::TimedOut);
    assert_eq!(outcome.message, Some(stopped(StopReason::TimedOut)));
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn a_handler_that_does_not_stop_is_dropped_after_its_grace() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let stubborn = with_job(trigger(1, "stubborn", Block::Serial), |job| {
        job.timeout = Some(DurationMs::millis(20));
        job.kill_grace = DurationMs::millis(0);
    });
    fixture.publish(&[stubborn]).await;
    let outcome = fixture.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::TimedOut);
    let text = outcome.message.expect("a message");
    assert_eq!(
        text,
        "the handler did not stop within its grace and was dropped"
    );
    worker.drain().await;
}

#[tokio::test]
async fn a_panic_is_a_failure_with_its_message() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture
        .publish(&[
            trigger(1, "panic", Block::Serial),
            trigger(2, "noop", Block::Serial),
        ])
        .await;
    let outcome = fixture.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::Failed);
    let text = outcome.message.expect("a message");
    assert_eq!(text, "the handler panicked: no such invoice");
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn an_unknown_handler_fails_the_attempt_and_the_message_lists_known_ones() {
    let fixture = Fixture::new().await;
    let key = SigningKey::from_seed([7; 32]);
    let public = key.public_base64();
    let keys = VerifyingKeys::from_base64([public.as_str()]).expect("keys");
    let worker = run(fixture.builder().trust(keys));
    let mut script = with_job(trigger(2, "", Block::Serial), |job| {
        job.handler = HandlerSpec::from(ShellSpec::default());
    });
    key.sign(&mut script);
    fixture
        .publish(&[trigger(1, "invoice", Block::Serial), script])
        .await;
    for (n, what) in [(1, "native:invoice"), (2, "shell")] {
        let outcome = fixture.outcome(n).await;
        assert_eq!(outcome.kind, OutcomeKind::Failed);
        let text = outcome.message.expect("a message");
        let can = "native:gate, native:noop, native:panic, native:stubborn";
        let expected = format!("{what} is unknown or not allowed on this worker, which runs {can}");
        assert_eq!(text, expected);
    }
    worker.drain().await;
}

#[tokio::test]
async fn many_outcomes_are_published_in_few_messages() {
    let fixture = Fixture::new().await;
    let triggers: Vec<_> = (1..=300)
        .map(|n| trigger(n, "noop", Block::Parallel(8)))
        .collect();
    fixture.publish(&triggers).await;
    let worker = fixture.start();
    fixture.kinds(1..=300).await;
    worker.drain().await;
    for run in 1..=300 {
        assert_eq!(fixture.outcomes(run).len(), 1, "of run {run}");
    }
    let messages = fixture.messages.load(Ordering::SeqCst);
    assert!(messages < 100, "{messages} messages");
}

#[tokio::test]
async fn outcomes_that_are_too_large_together_are_published_one_by_one() {
    let fixture = Fixture::with(EmbeddedOptions {
        max_payload_bytes: 1_000,
        ..EmbeddedOptions::default()
    })
    .await;
    let triggers: Vec<_> = (1..=60)
        .map(|n| trigger(n, "noop", Block::Parallel(8)))
        .collect();
    fixture.publish(&triggers).await;
    let worker = fixture.start();
    fixture.kinds(1..=60).await;
    worker.drain().await;
    for run in 1..=60 {
        assert_eq!(fixture.outcomes(run).len(), 1, "of run {run}");
    }
}

/// A stream drops the second of two messages with one id. The owner of another worker's account may publish the first.
#[tokio::test]
async fn the_message_ids_of_reports_cannot_be_told_from_their_attempts() {
    let mut ids = Vec::new();
    for _ in 0..2 {
        let fixture = Fixture::new().await;
        let worker = fixture.start();
        fixture.publish(&[trigger(1, "gate", Block::Serial)]).await;
        // The start and the outcome are messages of their own, and each has one report.
        fixture
            .wait("a reported start", || {
                let mut reports = fixture.reports().into_iter();
                reports.find(|report| matches!(report.event, AttemptEvent::Started { .. }))
            })
            .await;
        fixture.gate.add_permits(1);
        fixture.outcome(1).await;
        worker.drain().await;
        ids.push(fixture.link.message_ids.lock().expect("lock").clone());
    }
    assert!(ids.iter().all(|of_one| of_one.len() >= 2), "{ids:?}");
    assert!(ids[0].is_disjoint(&ids[1]), "{ids:?}");
}
