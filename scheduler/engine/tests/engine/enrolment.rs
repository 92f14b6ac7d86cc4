//! Workers enrol their keys by tokens, and replace them.

use cueline_broker::QueueId;
use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunId, RunState};
use cueline_protocol::origin::{EnrolmentToken, Purpose, WorkerKey};
use cueline_protocol::{HeartbeatMessage, Trigger};
use cueline_store::{Store as _, WorkerKeyState};
use serde_json::json;

use crate::fixture::{FakeExecutor, Fault, Fixture, actor, eventually, tick};

fn key(seed: u8) -> WorkerKey {
    WorkerKey::from_seed([seed; 32])
}

fn key_id(seed: u8) -> String {
    key(seed).public().id().to_string()
}

async fn receive(engine: &mut ManualEngine) {
    let received = engine.receive_heartbeats().await;
    received.expect("stores heartbeats");
}

async fn is_known(fixture: &Fixture, executor: &FakeExecutor) -> bool {
    let known = fixture.store.executors().await.expect("reads");
    known.iter().any(|e| e.heartbeat.executor == executor.id())
}

/// A heartbeat with the claim of this token.
async fn claim(executor: &FakeExecutor, token: &EnrolmentToken, seed: u8) {
    let claim = token.claim(&executor.id(), &key(seed).public());
    let change = |message: &mut HeartbeatMessage| message.enrolment = Some(claim);
    executor.heartbeat_message(change).await;
}

#[tokio::test]
async fn a_token_admits_the_key_of_a_worker() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let token = EnrolmentToken::new([1; 8], [1; 32]);
    fixture.store_token(&token, 1).await;
    let mut e1 = fixture.silent_executor("e1").await;
    e1.seal_with(&key(1));
    claim(&e1, &token, 1).await;
    receive(&mut engine).await;
    assert!(!is_known(&fixture, &e1).await, "its key was not enrolled");
    assert_eq!(e1.received_key_answers(), [(key_id(1), None)]);
    assert_eq!(engine.admin().since_start().forged_heartbeats, 0);

    // The answer may be lost, so the claim is repeated and answered, a second later at the earliest.
    for (at, answers) in [(10, 0), (1_000, 1)] {
        fixture.set(at);
        claim(&e1, &token, 1).await;
        receive(&mut engine).await;
        assert!(is_known(&fixture, &e1).await);
        assert_eq!(e1.received_key_answers().len(), answers, "after {at} ms");
    }
    let tokens = fixture.store.enrolment_tokens().await.expect("reads");
    assert_eq!(tokens[0].uses_left, 0, "one use");
}

/// A whole fleet may start at once.
#[tokio::test]
async fn claims_that_wait_are_carried_out_together() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let token = EnrolmentToken::new([1; 8], [1; 32]);
    fixture.store_token(&token, 30).await;
    let mut workers = Vec::new();
    for seed in 1..=31 {
        let name = format!("e{seed}").leak();
        let mut worker = fixture.silent_executor(name).await;
        worker.seal_with(&key(seed));
        claim(&worker, &token, seed).await;
        workers.push((seed, worker));
    }
    receive(&mut engine).await;
    for method in ["token_verifier", "enrol_workers"] {
        assert_eq!(fixture.store.calls(method), 1, "{method}");
    }
    let mut refused = 0;
    for (seed, worker) in &mut workers {
        let answers = worker.received_key_answers();
        let [(id, refusal)] = &answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!(*id, key_id(*seed));
        refused += usize::from(refusal.is_some());
    }
    assert_eq!(refused, 1, "the token has 30 uses");
}

/// The row of a token may be damaged.
#[tokio::test]
async fn a_claim_that_the_store_cannot_judge_stops_no_other() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let token = EnrolmentToken::new([1; 8], [1; 32]);
    fixture.store_token(&token, 2).await;
    let mut workers = Vec::new();
    for (name, seed) in [("e1", 1), ("e2", 2)] {
        let mut worker = fixture.silent_executor(name).await;
        worker.seal_with(&key(seed));
        claim(&worker, &token, seed).await;
        workers.push(worker);
    }
    // The call for both, and that for the first one alone.
    for _ in 0..2 {
        fixture.store.fail_next("token_verifier", Fault::Broken);
    }
    receive(&mut engine).await;
    assert_eq!(workers[0].received_key_answers(), []);
    assert_eq!(workers[1].received_key_answers(), [(key_id(2), None)]);
}

#[tokio::test]
async fn a_known_worker_is_answered_while_the_store_is_away() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let token = EnrolmentToken::new([1; 8], [1; 32]);
    fixture.store_token(&token, 2).await;
    let (mut e1, mut e2) = (
        fixture.silent_executor("e1").await,
        fixture.silent_executor("e2").await,
    );
    e1.seal_with(&key(1));
    e2.seal_with(&key(2));
    claim(&e1, &token, 1).await;
    receive(&mut engine).await;
    assert_eq!(e1.received_key_answers().len(), 1);
    // It starts again, with another worker.
    fixture.set(2_000);
    claim(&e2, &token, 2).await;
    claim(&e1, &token, 1).await;
    fixture.store.fail_next("token_verifier", Fault::Before);
    receive(&mut engine).await;
    assert_eq!(e1.received_key_answers(), [(key_id(1), None)]);
    assert_eq!(e2.received_key_answers(), []);
    claim(&e2, &token, 2).await;
    receive(&mut engine).await;
    assert_eq!(e2.received_key_answers(), [(key_id(2), None)]);
}

#[tokio::test]
async fn a_refused_worker_is_told_why() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let stored = EnrolmentToken::new([1; 8], [1; 32]);
    fixture.store_token(&stored, 1).await;
    let mut e1 = fixture.silent_executor("e1").await;
    e1.seal_with(&key(1));
    for (at, token, why) in [
        (
            0,
            EnrolmentToken::new([2; 8], [1; 32]),
            "no such enrolment token",
        ),
        (
            10_000,
            EnrolmentToken::new([1; 8], [2; 32]),
            "another token",
        ),
    ] {
        fixture.set(at);
        // It is told once.
        for _ in 0..2 {
            claim(&e1, &token, 1).await;
            receive(&mut engine).await;
        }
        let answers = e1.received_key_answers();
        let [(id, Some(reason))] = &answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!(*id, key_id(1));
        assert!(reason.contains(why), "{reason}");
    }
    assert!(!is_known(&fixture, &e1).await);
    // The right token ends it, whatever it was told before.
    claim(&e1, &stored, 1).await;
    receive(&mut engine).await;
    assert_eq!(e1.received_key_answers(), [(key_id(1), None)]);
}

/// The store was restored, or a standby without the key took over.
#[tokio::test]
async fn a_worker_without_a_claim_is_told_that_its_key_is_unknown_or_revoked() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let mut e1 = fixture.silent_executor("e1").await;
    e1.seal_with(&key(1));
    for _ in 0..2 {
        e1.heartbeat().await;
        receive(&mut engine).await;
    }
    let answers = e1.received_key_answers();
    let [(id, Some(reason))] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(*id, key_id(1));
    assert!(reason.contains("is not enrolled"), "{reason}");
    assert_eq!(engine.admin().since_start().forged_heartbeats, 2);

    let mut e2 = fixture.enrolled_executor("e2", 2).await;
    let (e2_id, e2_key) = (e2.id(), key_id(2));
    let set = async |state| {
        let store = fixture.real();
        let set = store
            .set_worker_key(&e2_id, &e2_key, state, &actor("ann"))
            .await;
        assert!(set.expect("sets"));
    };
    set(WorkerKeyState::Revoked).await;
    engine.refresh_keys().await.expect("reads");
    e2.heartbeat().await;
    receive(&mut engine).await;
    let answers = e2.received_key_answers();
    let [(id, Some(reason))] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(*id, key_id(2));
    assert!(reason.contains("is revoked"), "{reason}");

    // Once it is allowed, a worker that asks learns it.
    set(WorkerKeyState::Allowed).await;
    engine.refresh_keys().await.expect("reads");
    e2.heartbeat_message(|message| message.confirm_key = true)
        .await;
    receive(&mut engine).await;
    assert_eq!(e2.received_key_answers(), [(key_id(2), None)]);
}

/// Another node has enrolled the key after this one read the keys. A refusal would stop the worker's reports.
#[tokio::test]
async fn a_key_is_refused_only_after_the_keys_were_read_again() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let mut e1 = fixture.enrolled_executor("e1", 1).await;
    e1.heartbeat().await;
    receive(&mut engine).await;
    assert!(e1.received_key_answers().is_empty());
    assert_eq!(engine.admin().since_start().forged_heartbeats, 0);
}

/// The key was lost while its rotation waits.
#[tokio::test]
async fn a_token_admits_a_key_again_whose_rotation_waits() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let token = EnrolmentToken::new([1; 8], [1; 32]);
    fixture.store_token(&token, 1).await;
    let mut e1 = fixture.silent_executor("e1").await;
    e1.seal_with(&key(1));
    for enrolled in [1, 2] {
        let enrolment = token.claim(&e1.id(), &key(1).public());
        let rotation = key(1).rotate_to(&e1.id(), &key(2).public());
        e1.heartbeat_message(|message| {
            message.enrolment = Some(enrolment);
            message.rotation = Some(rotation);
        })
        .await;
        receive(&mut engine).await;
        let answers = e1.received_key_answers();
        assert!(answers.contains(&(key_id(enrolled), None)), "{answers:?}");
    }
}

/// Somebody has read the claim of another worker.
#[tokio::test]
async fn a_claim_is_worthless_for_another_worker() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let token = EnrolmentToken::new([1; 8], [1; 32]);
    fixture.store_token(&token, 9).await;
    let e1 = fixture.silent_executor("e1").await;
    let mut thief = fixture.silent_executor("e1").await;
    thief.seal_with(&key(9));
    // With the key of the claim, which the thief does not have, and with its own key in the claim.
    let copied = token.claim(&e1.id(), &key(1).public());
    let mut changed = copied.clone();
    changed.key = key(9).public();
    for claim in [copied, changed] {
        let change = |message: &mut HeartbeatMessage| message.enrolment = Some(claim);
        thief.heartbeat_message(change).await;
        receive(&mut engine).await;
    }
    let keys = fixture.store.worker_keys(0, 9).await.expect("reads");
    assert!(keys.keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn a_worker_replaces_its_key() {
    let fixture = Fixture::new().await;
    let mut e1 = fixture.enrolled_executor("e1", 1).await;
    let mut engine = fixture.verifying_engine("one").await;
    e1.heartbeat().await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    let trigger = e1.take_one().await;
    let rotation = key(1).rotate_to(&e1.id(), &key(2).public());
    // The second one comes after a lost answer, from a worker that was stopped for long.
    for at in [0, 1_000_000] {
        fixture.set(at);
        let claim = rotation.clone();
        let change = |message: &mut HeartbeatMessage| message.rotation = Some(claim);
        e1.heartbeat_message(change).await;
        receive(&mut engine).await;
        assert_eq!(e1.received_key_answers(), [(key_id(2), None)]);
    }
    let keys = fixture.store.worker_keys(0, 9).await.expect("reads").keys;
    let allowed: Vec<_> = keys
        .iter()
        .filter(|k| k.state == WorkerKeyState::Allowed)
        .map(|k| k.key_id.clone())
        .collect();
    assert_eq!(allowed, [key_id(2)]);
    e1.seal_with(&key(2));
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Succeeded);
}

/// A run that `e1` has started when its key is replaced. Its executor still seals with the old key.
async fn just_replaced(fixture: &Fixture) -> (FakeExecutor, ManualEngine, RunId, Trigger) {
    let mut e1 = fixture.enrolled_executor("e1", 1).await;
    let mut engine = fixture.verifying_engine("one").await;
    e1.heartbeat().await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    let trigger = e1.take_one().await;
    let claim = key(1).rotate_to(&e1.id(), &key(2).public());
    let change = |message: &mut HeartbeatMessage| message.rotation = Some(claim);
    e1.heartbeat_message(change).await;
    receive(&mut engine).await;
    assert_eq!(e1.received_key_answers(), [(key_id(2), None)]);
    (e1, engine, run, trigger)
}

/// Its results may have waited in the queue. What it says of now may come from a thief of the key.
#[tokio::test]
async fn a_replaced_key_counts_for_results_and_not_for_heartbeats() {
    let fixture = Fixture::new().await;
    let (e1, mut engine, run, trigger) = just_replaced(&fixture).await;
    e1.leave().await;
    receive(&mut engine).await;
    assert_eq!(engine.admin().since_start().forged_heartbeats, 1);
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Succeeded);
}

#[tokio::test]
async fn an_operator_revokes_a_replaced_key_at_once() {
    let fixture = Fixture::new().await;
    let (e1, mut engine, run, trigger) = just_replaced(&fixture).await;
    let (store, state) = (fixture.real(), WorkerKeyState::Revoked);
    let set = store
        .set_worker_key(&e1.id(), &key_id(1), state, &actor("ann"))
        .await;
    assert!(set.expect("revokes"));
    engine.refresh_keys().await.expect("reads");
    let before = fixture.state(run).await;
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, before);
    let letters = fixture.dead_letters().await;
    assert!(letters[0].reason.contains("is revoked"), "{letters:?}");
}

/// Another scheduler has enrolled it a moment ago.
#[tokio::test]
async fn results_with_a_new_key_are_verified_with_the_keys_of_now() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let e1 = fixture.enrolled_executor("e1", 1).await;
    let report = e1.seal(Purpose::Reports, b"not a report".to_vec());
    fixture.put(&QueueId::Results, report).await;
    tick(&mut engine).await;
    let letters = fixture.dead_letters().await;
    let origin = letters[0].origin.as_deref();
    assert_eq!(origin, Some("executor default/e1"), "{letters:?}");
}

/// A message whose origin cannot be looked up is no dead letter.
#[tokio::test]
async fn results_wait_while_keys_cannot_be_read() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.verifying_engine("one").await;
    let e1 = fixture.enrolled_executor("e1", 1).await;
    let report = e1.seal(Purpose::Reports, b"not a report".to_vec());
    fixture.put(&QueueId::Results, report).await;
    fixture.store.fail_next("worker_keys", Fault::Before);
    engine.ingest().await.expect_err("the store fails");
    assert!(fixture.dead_letters().await.is_empty());
    eventually("it is delivered again", async || {
        engine.ingest().await.expect("ingests") == 1
    })
    .await;
    assert_eq!(fixture.dead_letters().await.len(), 1);
}
