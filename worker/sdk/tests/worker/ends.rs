//! How attempts end.

use std::sync::atomic::Ordering;

use cueline_broker_embedded::EmbeddedOptions;
use cueline_model::{Block, DurationMs, HandlerSpec, OutcomeKind, handler::ShellSpec};
use cueline_protocol::{SigningKey, VerifyingKeys};
use cueline_worker::StopReason;

use crate::world::{World, run, stopped, trigger, with_job};

#[tokio::test]
async fn an_attempt_that_takes_too_long_times_out() {
    let world = World::new().await;
    let live = world.start();
    let limited = with_job(trigger(1, "gate", Block::Serial), |job| {
        job.timeout = Some(DurationMs::millis(50));
    });
    world
        .publish(&[limited, trigger(2, "noop", Block::Serial)])
        .await;
    let outcome = world.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::TimedOut);
    assert_eq!(outcome.message, Some(stopped(StopReason::TimedOut)));
    assert_eq!(world.outcome(2).await.kind, OutcomeKind::Succeeded);
    live.drain().await;
}

#[tokio::test]
async fn a_handler_that_does_not_stop_is_dropped_after_its_grace() {
    let world = World::new().await;
    let live = world.start();
    let stubborn = with_job(trigger(1, "stubborn", Block::Serial), |job| {
        job.timeout = Some(DurationMs::millis(20));
        job.kill_grace = DurationMs::millis(0);
    });
    world.publish(&[stubborn]).await;
    let outcome = world.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::TimedOut);
    let text = outcome.message.expect("a message");
    assert_eq!(
        text,
        "the handler did not stop within its grace and was dropped"
    );
    live.drain().await;
}

#[tokio::test]
async fn a_panic_is_a_failure_with_its_message() {
    let world = World::new().await;
    let live = world.start();
    world
        .publish(&[
            trigger(1, "panic", Block::Serial),
            trigger(2, "noop", Block::Serial),
        ])
        .await;
    let outcome = world.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::Failed);
    let text = outcome.message.expect("a message");
    assert_eq!(text, "the handler panicked: no such invoice");
    assert_eq!(world.outcome(2).await.kind, OutcomeKind::Succeeded);
    live.drain().await;
}

#[tokio::test]
async fn what_the_worker_cannot_run_fails_and_says_what_it_can() {
    let world = World::new().await;
    let key = SigningKey::from_seed([7; 32]);
    let public = key.public_base64();
    let keys = VerifyingKeys::from_base64([public.as_str()]).expect("keys");
    let live = run(world.builder().trust(keys));
    let mut script = with_job(trigger(2, "", Block::Serial), |job| {
        job.handler = HandlerSpec::Shell(ShellSpec::default());
    });
    key.sign(&mut script);
    world
        .publish(&[trigger(1, "invoice", Block::Serial), script])
        .await;
    for (n, what) in [(1, "native:invoice"), (2, "shell")] {
        let outcome = world.outcome(n).await;
        assert_eq!(outcome.kind, OutcomeKind::Failed);
        let text = outcome.message.expect("a message");
        let can = "native:gate, native:noop, native:panic, native:stubborn";
        let expected = format!("{what} is unknown or not allowed on this worker, which runs {can}");
        assert_eq!(text, expected);
    }
    live.drain().await;
}

/// A broker's work is by the message.
#[tokio::test]
async fn many_outcomes_go_in_few_messages() {
    let world = World::new().await;
    let triggers: Vec<_> = (1..=300)
        .map(|n| trigger(n, "noop", Block::Parallel(8)))
        .collect();
    world.publish(&triggers).await;
    let live = world.start();
    world.kinds(1..=300).await;
    live.drain().await;
    for run in 1..=300 {
        assert_eq!(world.outcomes(run).len(), 1, "of run {run}");
    }
    let messages = world.messages.load(Ordering::SeqCst);
    assert!(messages < 100, "{messages} messages");
}

/// A server may take less in one message than this worker puts into one.
#[tokio::test]
async fn outcomes_that_are_too_large_together_go_one_by_one() {
    let world = World::with(EmbeddedOptions {
        max_payload_bytes: 1_000,
        ..EmbeddedOptions::default()
    })
    .await;
    let triggers: Vec<_> = (1..=60)
        .map(|n| trigger(n, "noop", Block::Parallel(8)))
        .collect();
    world.publish(&triggers).await;
    let live = world.start();
    world.kinds(1..=60).await;
    live.drain().await;
    for run in 1..=60 {
        assert_eq!(world.outcomes(run).len(), 1, "of run {run}");
    }
}
