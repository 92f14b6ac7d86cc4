//! Messages that become dead letters.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerOptions, Outgoing, QueueId};
use cueline_model::{Block, HandlerSpec, OutcomeKind, handler::ShellSpec};
use cueline_protocol::{SigningKey, Trigger, VerifyingKeys};
use cueline_test_support::SOON;
use cueline_worker::{Context, Failure};

use crate::fixture::{Fixture, message, run, trigger, with_job};

fn script(run: i64, text: &str) -> Trigger {
    with_job(trigger(run, "", Block::Serial), |job| {
        job.handler = HandlerSpec::from(ShellSpec {
            script: text.to_owned(),
            ..ShellSpec::default()
        });
    })
}

#[tokio::test]
async fn only_a_script_signed_by_a_trusted_key_runs() {
    let fixture = Fixture::new().await;
    let key = SigningKey::from_seed([7; 32]);
    let public = key.public_base64();
    let keys = VerifyingKeys::from_base64([public.as_str()]).expect("keys");
    let shell = cueline_worker::from_fn(|cx: Context| async move {
        match &cx.info().handler {
            HandlerSpec::Shell(shell) => Ok(shell.script.clone()),
            _ => Err(Failure::new("not a script")),
        }
    });
    let worker = run(fixture.builder().trust(keys).kind("shell", shell));

    let mut good = script(1, "echo good");
    key.sign(&mut good);
    let mut changed = script(2, "echo good");
    key.sign(&mut changed);
    let changed = with_job(changed, |job| {
        job.handler = script(2, "rm -rf /").job.handler.clone();
    });
    let mut untrusted = script(3, "echo untrusted");
    SigningKey::from_seed([8; 32]).sign(&mut untrusted);
    let unsigned = script(4, "echo unsigned");
    fixture.publish(&[good, changed, untrusted, unsigned]).await;

    let outcome = fixture.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::Succeeded);
    assert_eq!(outcome.output.as_deref(), Some("echo good"));
    fixture.wait_settled().await;
    assert_eq!(dead(&fixture, 3).await.len(), 3);
    worker.drain().await;
    for n in 2..=4 {
        assert_eq!(fixture.outcomes(n).len(), 0, "run {n}");
    }
}

/// The handlers are the worker's own code. Their parameters and fire times come with the trigger.
#[tokio::test]
async fn only_a_native_handler_with_a_genuine_trigger_runs() {
    let fixture = Fixture::new().await;
    let key = SigningKey::from_seed([7; 32]);
    let worker = run(fixture.verifying_builder().trust(key.verifying_keys()));
    let noop = |run| trigger(run, "noop", Block::Parallel(8));

    let mut batch = [noop(1), noop(2), noop(3), noop(4)];
    key.sign_all(&mut batch);
    let [first, second, mut changed, mut mixed] = batch;
    changed.params = Some("changed".to_owned());
    mixed.signature = second.signature.clone();
    let mut untrusted = noop(5);
    SigningKey::from_seed([8; 32]).sign(&mut untrusted);
    let unsigned = noop(6);
    fixture
        .publish(&[first, changed, mixed, untrusted, unsigned, second])
        .await;

    for n in 1..=2 {
        assert_eq!(fixture.outcome(n).await.kind, OutcomeKind::Succeeded);
    }
    fixture.wait_settled().await;
    assert_eq!(dead(&fixture, 4).await.len(), 4);
    worker.drain().await;
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 2);
    for n in 3..=6 {
        assert_eq!(fixture.outcomes(n).len(), 0, "run {n}");
    }
}

#[tokio::test]
async fn a_script_needs_a_signature_where_native_handlers_need_none() {
    let fixture = Fixture::new().await;
    let shell = cueline_worker::from_fn(|_cx: Context| async { Ok::<_, Failure>("it ran") });
    let worker = run(fixture.builder().kind("shell", shell));
    let native = trigger(1, "noop", Block::Serial);
    let mut untrusted = script(2, "echo untrusted");
    SigningKey::from_seed([8; 32]).sign(&mut untrusted);
    fixture
        .publish(&[native, untrusted, script(3, "echo unsigned")])
        .await;
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    fixture.wait_settled().await;
    assert_eq!(dead(&fixture, 2).await.len(), 2);
    worker.drain().await;
    assert_eq!(fixture.outcomes(2).len() + fixture.outcomes(3).len(), 0);
}

#[tokio::test]
async fn a_worker_needs_keys_unless_it_is_told_to_run_unverified_triggers() {
    let fixture = Fixture::new().await;
    let refused = fixture.verifying_builder().build().expect_err("no keys");
    let message = refused.to_string();
    assert!(
        message.contains("trust:") && message.contains("allow_unverified_native"),
        "{message}"
    );
    let key = SigningKey::from_seed([7; 32]);
    let trusting = fixture.verifying_builder().trust(key.verifying_keys());
    assert!(trusting.build().is_ok());
    assert!(fixture.builder().build().is_ok());
}

#[tokio::test]
async fn unreadable_and_misaddressed_triggers_become_dead_letters() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let readable = message(&trigger(1, "noop", Block::Serial));
    let mut other = trigger(2, "noop", Block::Serial);
    other.executor = "worker-2".parse().expect("name");
    let mut version = trigger(3, "noop", Block::Serial);
    version.v = 9;
    let unreadable = Outgoing {
        payload: Bytes::from_static(b"{\"v\":1,\"run\":\"x\"}"),
        ..readable.clone()
    };
    fixture
        .publish_raw(&[unreadable, message(&other), message(&version), readable])
        .await;
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    fixture.wait_settled().await;
    assert_eq!(dead(&fixture, 3).await.len(), 3);
    worker.drain().await;
    assert_eq!(fixture.outcomes(2).len() + fixture.outcomes(3).len(), 0);
}

/// The broker is tried for long, and a trigger whose ack comes too late is delivered again.
#[tokio::test]
async fn an_ack_does_not_wait_for_the_dead_letter_queue() {
    let fixture = Fixture::new().await;
    let options = BrokerOptions {
        retry_for: Duration::from_hours(1),
        ..BrokerOptions::default()
    };
    let broker = Broker::from_arc(fixture.link.clone(), options);
    let worker = run(fixture.builder().broker(broker));
    fixture.link.refuse_dead_letters(true);
    let unreadable = Outgoing {
        payload: Bytes::from_static(b"{}"),
        ..message(&trigger(1, "noop", Block::Serial))
    };
    fixture.publish_raw(&[unreadable]).await;
    let failed = || fixture.link.failed_dead.load(Ordering::SeqCst);
    let look = || (failed() > 0).then_some(());
    fixture.wait("a dead letter that is refused", look).await;

    fixture.publish(&[trigger(2, "noop", Block::Serial)]).await;
    fixture.outcome(2).await;
    fixture.wait_left(1).await;
    fixture.link.refuse_dead_letters(false);
    assert_eq!(dead(&fixture, 1).await.len(), 1);
    fixture.wait_settled().await;
    worker.drain().await;
}

async fn dead(fixture: &Fixture, count: usize) -> Vec<Bytes> {
    let mut found = Vec::new();
    while found.len() < count {
        let more = fixture.broker.fetch(&QueueId::Dead, 10, SOON).await;
        let more = more.expect("fetch");
        assert!(!more.is_empty(), "{} of {count} dead letters", found.len());
        found.extend(more.into_iter().map(|d| d.payload));
    }
    found
}
