//! G17: a genuine trigger that its executor refuses ends its attempt. No other dead letter changes a run.

use std::time::Duration;

use bytes::Bytes;
use cueline_broker::conformance::Operation;
use cueline_broker::{DeadLetter, QueueId, Settlement};
use cueline_engine::{EngineError, EngineOptions, ManualEngine, Origins};
use cueline_model::{AttemptId, RunId, RunState, StoreId};
use cueline_protocol::{SigningKey, Trigger, decode, encode};
use serde_json::{Value, json};

use crate::fixture::{FakeExecutor, Fault, Fixture, actor, eventually, name, tick};

const REASON: &str = "failed to accept the trigger: the trigger is not signed";

/// A run whose trigger is in the queue of its executor.
pub(crate) async fn queued_in(
    fixture: &Fixture,
    job: Value,
) -> (ManualEngine, FakeExecutor, RunId) {
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", job).await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    (engine, e1, run)
}

/// The executor moves all triggers in its queue to the dead letters. Returns their attempts.
pub(crate) async fn refuse(fixture: &Fixture, executor: &FakeExecutor) -> Vec<AttemptId> {
    let queue = executor.queue();
    let fetched = fixture.broker.fetch(&queue, 100, Duration::ZERO).await;
    let fetched = fetched.expect("fetches");
    let dead: Vec<_> = fetched
        .iter()
        .map(|d| (d.receipt, Settlement::Dead(REASON.to_owned())))
        .collect();
    fixture.broker.settle(&queue, &dead).await.expect("settles");
    let trigger = |payload: &[u8]| decode::<Trigger>(payload).expect("a trigger");
    fetched
        .iter()
        .map(|d| trigger(&d.payload).attempt_id())
        .collect()
}

/// The dead letter of a message that was refused in this queue.
pub(crate) fn letter(queue: &QueueId, payload: impl Into<Bytes>) -> DeadLetter {
    DeadLetter {
        reason: REASON.to_owned(),
        queue: queue.to_string(),
        topic: "job".to_owned(),
        at_ms: 0,
        payload: payload.into(),
    }
}

/// A scheduler handles the dead letters, and the executor says that it holds `held`. Returns the number stored.
pub(crate) async fn try_handle(
    engine: &mut ManualEngine,
    executor: &mut FakeExecutor,
    held: &[AttemptId],
) -> Result<usize, EngineError> {
    tokio::select! {
        stored = engine.store_dead_letters() => stored,
        never = executor.keep_answering(held) => match never {},
    }
}

/// The same by an executor that holds nothing.
pub(crate) async fn handle(engine: &mut ManualEngine, executor: &mut FakeExecutor) -> usize {
    try_handle(engine, executor, &[]).await.expect("keeps")
}

/// A scheduler reads this dead letter. The executor holds nothing.
pub(crate) async fn read(
    fixture: &Fixture,
    letter: &DeadLetter,
    engine: &mut ManualEngine,
    executor: &mut FakeExecutor,
) {
    let payload = letter.encode().expect("encodes");
    fixture.put(&QueueId::Dead, payload).await;
    assert_eq!(handle(engine, executor).await, 1);
}

/// The same of a letter that the broker has moved by itself.
pub(crate) async fn read_moved(
    fixture: &Fixture,
    letter: &DeadLetter,
    engine: &mut ManualEngine,
    executor: &mut FakeExecutor,
) {
    let moved = cueline_broker::conformance::Fault::MovedByBroker;
    fixture.broker_faults.next(Operation::Fetch, moved, 1);
    read(fixture, letter, engine, executor).await;
}

pub(crate) async fn stored_letters(fixture: &Fixture) -> usize {
    let letters = fixture.real().dead_letters(None, None, 100).await;
    letters.expect("reads").len()
}

#[tokio::test]
async fn a_refused_trigger_ends_its_attempt_with_the_reason() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    assert_eq!(refuse(&fixture, &e1).await.len(), 1);
    assert_eq!(handle(&mut engine, &mut e1).await, 1);
    let ended = fixture.run(run).await;
    assert_eq!((ended.state, ended.attempt), (RunState::Failed, 1));
    let expected = format!("the executor refused the trigger: {REASON}");
    assert_eq!(ended.message, Some(expected));
    assert_eq!(stored_letters(&fixture).await, 1);
    // Nothing is published again.
    fixture.set(40_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    assert_eq!(engine.reconcile(5_000).await.expect("compares"), 0);
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e1.take().await.is_empty());
}

/// An executor that was corrected meanwhile would run it.
#[tokio::test]
async fn the_trigger_of_an_ended_attempt_is_not_replayed() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, _) = queued_in(&fixture, json!({})).await;
    refuse(&fixture, &e1).await;
    handle(&mut engine, &mut e1).await;
    let letters = fixture.real().dead_letters(None, None, 9).await;
    let ids = [letters.expect("reads")[0].id];
    let replayed = engine
        .admin()
        .replay_dead_letters(None, &ids, &actor("a test"))
        .await;
    let refused = replayed.expect("answers").remove(0).refused;
    assert!(
        refused
            .as_deref()
            .is_some_and(|why| why.contains("is over")),
        "{refused:?}"
    );
    assert!(e1.take().await.is_empty());
    assert_eq!(stored_letters(&fixture).await, 1);
}

/// The job's retry policy is the bound.
#[tokio::test]
async fn a_refused_trigger_is_retried_like_a_failure() {
    let fixture = Fixture::new().await;
    let retry = json!({ "retry": { "max": 1, "first": "1s", "jitter_percent": 0 } });
    let (mut engine, mut e1, run) = queued_in(&fixture, retry).await;
    refuse(&fixture, &e1).await;
    handle(&mut engine, &mut e1).await;
    let again = fixture.run(run).await;
    assert_eq!((again.state, again.attempt), (RunState::Scheduled, 2));
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 1);
    let refused = refuse(&fixture, &e1).await;
    assert_eq!(refused, [AttemptId { run, attempt: 2 }]);
    handle(&mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
    assert_eq!(stored_letters(&fixture).await, 2);
}

#[tokio::test]
async fn a_trigger_may_be_refused_before_its_confirmation() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    let received = engine.receive_heartbeats().await;
    received.expect("stores heartbeats");
    engine.claim().await.expect("claims");
    engine.prepare().await.expect("prepares");
    fixture.store.fail_next("confirm_dispatch", Fault::Before);
    engine.publish().await.expect_err("the confirmation fails");
    assert_eq!(fixture.state(run).await, RunState::Dispatching);
    refuse(&fixture, &e1).await;
    assert_eq!(handle(&mut engine, &mut e1).await, 0, "it is not decided");
    assert_eq!(fixture.state(run).await, RunState::Dispatching);
    assert_eq!(engine.publish().await.expect("confirms"), 1);
    eventually("the letter is delivered again", async || {
        handle(&mut engine, &mut e1).await == 1
    })
    .await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
}

/// The dead letter is stored, then the attempt ends, then the message is acked.
#[tokio::test]
async fn a_crash_between_the_steps_repeats_them_without_effect() {
    for fault in [Fault::Before, Fault::After] {
        let fixture = Fixture::with_short_ack_wait().await;
        let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
        refuse(&fixture, &e1).await;
        fixture.store.fail_next("ingest_reports", fault);
        let failed = try_handle(&mut engine, &mut e1, &[]).await;
        failed.expect_err("the store fails");
        assert_eq!(stored_letters(&fixture).await, 1);
        eventually("the letter is delivered again", async || {
            handle(&mut engine, &mut e1).await == 1
        })
        .await;
        assert_eq!(fixture.state(run).await, RunState::Failed, "{fault:?}");
        assert_eq!(stored_letters(&fixture).await, 1, "{fault:?}");
        let timeline = fixture.timeline(run).await;
        assert!(!timeline.contains(&"refused".to_owned()), "{timeline:?}");
    }
}

/// Reconcile publishes it again with a new deadline.
#[tokio::test]
async fn a_late_trigger_does_not_end_its_attempt() {
    let fixture = Fixture::new().await;
    let options = EngineOptions {
        trigger_valid_ms: 20_000,
        ..EngineOptions::default()
    };
    let mut engine = fixture.engine_with(options).await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    for (age_ms, state) in [(10_001, RunState::Queued), (10_000, RunState::Failed)] {
        let run = fixture.trigger("job").await;
        assert_eq!(tick(&mut engine).await, 1);
        fixture.clock.advance(age_ms);
        refuse(&fixture, &e1).await;
        handle(&mut engine, &mut e1).await;
        assert_eq!(fixture.state(run).await, state, "after {age_ms} ms");
        e1.heartbeat().await;
        tick(&mut engine).await;
    }
}

/// An operator may have corrected the executor before the dead letter of the first copy is read.
#[tokio::test]
async fn the_refusal_of_an_earlier_copy_does_not_end_the_attempt() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    let refused = refuse(&fixture, &e1).await;
    fixture.set(10_000);
    let store = fixture.real();
    let two = store.register_node("two", 60_000).await.expect("registers");
    let again = store.reclaim_attempts(two.node, &refused, "a test").await;
    assert_eq!(again.expect("reclaims").len(), 1);
    store.confirm_dispatch(&refused).await.expect("confirms");
    assert_eq!(handle(&mut engine, &mut e1).await, 1);
    assert_eq!(fixture.state(run).await, RunState::Queued);
}

/// The executor has not refused these.
#[tokio::test]
async fn a_trigger_moved_by_the_broker_or_a_drain_does_not_end_its_attempt() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    let trigger = e1.accept().await.remove(0);
    let genuine = letter(&e1.queue(), encode(&trigger));
    let by_broker = DeadLetter {
        reason: "the broker dropped it".to_owned(),
        ..genuine.clone()
    };
    // A newer scheduler can read what the one that drained the queue could not.
    let by_drain = DeadLetter {
        reason: "failed to route the trigger again: failed to read the message".to_owned(),
        ..genuine.clone()
    };
    read_moved(&fixture, &by_broker, &mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Queued);
    read(&fixture, &by_drain, &mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Queued);
    read(&fixture, &genuine, &mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
}

/// In a rolling upgrade the executor's build may be the wrong one. Reconcile publishes the trigger again, at most ten times.
#[tokio::test]
async fn a_trigger_that_its_executors_build_cannot_read_does_not_end_its_attempt() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    let trigger = e1.accept().await.remove(0);
    let genuine = letter(&e1.queue(), encode(&trigger));
    let message = encode(&trigger);
    let of_other_version = String::from_utf8(message.clone()).expect("UTF-8");
    let of_other_version = of_other_version.replacen("\"v\":1", "\"v\":2", 1);
    let shortened = &message[..message.len() / 2];
    for unreadable in [of_other_version.as_bytes(), shortened] {
        let reason = decode::<Trigger>(unreadable).expect_err("unreadable");
        let refused = DeadLetter {
            reason: reason.to_string(),
            ..genuine.clone()
        };
        read(&fixture, &refused, &mut engine, &mut e1).await;
        assert_eq!(fixture.state(run).await, RunState::Queued, "{reason}");
    }
    assert_eq!(stored_letters(&fixture).await, 2);
    read(&fixture, &genuine, &mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
}

#[tokio::test]
async fn a_trigger_of_another_run_or_executor_ends_nothing() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    let genuine = e1.accept().await.remove(0);
    let changes: [fn(&mut Trigger); 8] = [
        |t| t.executor = name("e2"),
        |t| t.group = name("other"),
        |t| t.fire_at = t.fire_at.plus_ms(1),
        |t| t.shard.index += 1,
        |t| t.attempt += 1,
        |t| t.run.0 += 1,
        |t| t.store = StoreId(t.store.0 ^ 1),
        |t| {
            SigningKey::from_seed([9; 32]).sign(t);
        },
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut trigger = genuine.clone();
        change(&mut trigger);
        let queue = QueueId::Executor {
            group: trigger.group.to_string(),
            executor: trigger.executor.to_string(),
        };
        let forged = letter(&queue, encode(&trigger));
        read(&fixture, &forged, &mut engine, &mut e1).await;
        assert_eq!(fixture.state(run).await, RunState::Queued, "change {n}");
    }
    // The genuine trigger, in the queue of another executor and in one of a scheduler.
    let other = QueueId::Executor {
        group: "default".to_owned(),
        executor: "e2".to_owned(),
    };
    for queue in [&other, &QueueId::Results] {
        let misdirected = letter(queue, encode(&genuine));
        read(&fixture, &misdirected, &mut engine, &mut e1).await;
        assert_eq!(fixture.state(run).await, RunState::Queued, "{queue}");
    }
    let genuine = letter(&e1.queue(), encode(&genuine));
    read(&fixture, &genuine, &mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
}

/// A user who can publish to an executor's queue can make its worker refuse such triggers.
#[tokio::test]
async fn only_a_trigger_with_the_schedulers_signature_ends_the_attempt() {
    let script = json!({ "shell": { "script": "true" } });
    for handler in [script, json!({ "native": "work" })] {
        only_a_signed_trigger_ends_the_attempt(handler).await;
    }
}

async fn only_a_signed_trigger_ends_the_attempt(handler: Value) {
    let fixture = Fixture::new().await;
    let key = SigningKey::from_seed([1; 32]);
    let origins = Origins::InProcess;
    let mut engine = fixture.signing_engine(key.into(), origins).await;
    let mut e1 = fixture.silent_executor("e1").await;
    let capabilities = ["shell:bash", "native:work"].map(str::to_owned);
    e1.heartbeat_with(|heartbeat| heartbeat.capabilities = capabilities.to_vec())
        .await;
    fixture.apply("job", json!({ "handler": handler })).await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    let queue = e1.queue();
    let fetched = fixture.broker.fetch(&queue, 9, Duration::ZERO).await;
    let payload = fetched.expect("fetches")[0].payload.clone();
    let signed: Trigger = decode(&payload).expect("a trigger");
    assert!(signed.signature.is_some(), "{signed:?}");

    let changed = Trigger {
        params: Some("changed".to_owned()),
        ..signed.clone()
    };
    let unsigned = Trigger {
        signature: None,
        ..signed.clone()
    };
    let mut by_stranger = signed;
    let by_stranger = SigningKey::from_seed([9; 32]).sign(&mut by_stranger);
    for forged in [encode(&changed), encode(&unsigned), by_stranger] {
        read(&fixture, &letter(&queue, forged), &mut engine, &mut e1).await;
        assert_eq!(fixture.state(run).await, RunState::Queued);
    }
    read(&fixture, &letter(&queue, payload), &mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
}
