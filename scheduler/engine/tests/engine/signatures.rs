//! Every trigger is signed with the key of its group, whatever its handler and whatever has published it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{QueueId, Settlement};
use cueline_engine::{EngineOptions, ManualEngine, Origins};
use cueline_model::StoreId;
use cueline_protocol::{SigningKey, SigningKeys, Trigger, decode};
use serde_json::{Value, json};

use crate::fixture::{Fixture, actor, name, tick};
use crate::refused_triggers::{letter, read_moved};

fn key() -> SigningKey {
    SigningKey::from_seed([1; 32])
}

fn key_of_billing() -> SigningKey {
    SigningKey::from_seed([2; 32])
}

fn keys() -> SigningKeys {
    SigningKeys::from(key()).with_group(name("billing"), key_of_billing())
}

async fn signing_engine(fixture: &Fixture) -> ManualEngine {
    fixture.signing_engine(keys(), Origins::InProcess).await
}

/// Executors `e1` of the groups `default` and `billing` that run everything.
async fn start_executors(fixture: &Fixture) {
    let e1 = fixture.silent_executor("e1").await;
    let billing = queue("billing");
    fixture.broker.declare(&billing).await.expect("declares");
    for group in ["default", "billing"] {
        e1.heartbeat_with(|heartbeat| {
            heartbeat.executor.group = name(group);
            heartbeat.capabilities = ["shell:bash", "command", "http", "native:work"]
                .map(str::to_owned)
                .to_vec();
        })
        .await;
    }
}

fn queue(group: &str) -> QueueId {
    QueueId::Executor {
        group: group.to_owned(),
        executor: "e1".to_owned(),
    }
}

/// Takes the triggers out of the queue.
async fn take(fixture: &Fixture, queue: &QueueId) -> Vec<(Bytes, Trigger)> {
    let fetched = fixture.broker.fetch(queue, 100, Duration::ZERO).await;
    let fetched = fetched.expect("fetches");
    let acks: Vec<_> = fetched
        .iter()
        .map(|d| (d.receipt, Settlement::Ack))
        .collect();
    fixture.broker.settle(queue, &acks).await.expect("settles");
    fetched
        .into_iter()
        .map(|d| {
            let trigger = decode(&d.payload).expect("a trigger");
            (d.payload, trigger)
        })
        .collect()
}

fn handlers() -> Vec<(&'static str, Value)> {
    vec![
        ("shell", json!({ "shell": { "script": "true" } })),
        ("command", json!({ "command": { "argv": ["true"] } })),
        ("http", json!({ "http": { "url": "http://localhost/" } })),
        ("native", json!({ "native": "work" })),
    ]
}

#[tokio::test]
async fn the_triggers_of_all_handlers_are_signed_with_the_key_of_their_group() {
    let fixture = Fixture::new().await;
    let mut engine = signing_engine(&fixture).await;
    start_executors(&fixture).await;
    for group in ["default", "billing"] {
        for (kind, handler) in handlers() {
            let job = format!("{group}-{kind}");
            let rest = json!({ "group": group, "handler": handler });
            fixture.apply(&job, rest).await;
            fixture.trigger(&job).await;
        }
    }
    assert_eq!(tick(&mut engine).await, 8);
    for (group, own, other) in [
        ("default", key(), key_of_billing()),
        ("billing", key_of_billing(), key()),
    ] {
        let taken = take(&fixture, &queue(group)).await;
        assert_eq!(taken.len(), 4);
        for (message, trigger) in &taken {
            let verified = own.verifying_keys().verify(message, trigger);
            assert_eq!(verified, Ok(()), "{trigger:?}");
            let verified = other.verifying_keys().verify(message, trigger);
            assert!(verified.is_err(), "{trigger:?}");
        }
    }
}

/// A burst has both kinds, and each message is that of its own run.
#[tokio::test]
async fn native_triggers_are_left_unsigned_if_told_and_all_others_are_signed() {
    let fixture = Fixture::new().await;
    let options = EngineOptions {
        sign_native: false,
        ..EngineOptions::default()
    };
    let engine = ManualEngine::new(
        fixture.store.clone(),
        fixture.broker.clone(),
        Arc::new(fixture.clock.clone()),
        options,
        Some(keys()),
        Origins::InProcess,
    );
    let mut engine = engine.await.expect("the engine starts");
    start_executors(&fixture).await;
    for (kind, handler) in handlers() {
        let job = format!("job-{kind}");
        fixture.apply(&job, json!({ "handler": handler })).await;
        fixture.trigger(&job).await;
        fixture.trigger(&job).await;
    }
    assert_eq!(tick(&mut engine).await, 8);
    let mut runs = BTreeSet::new();
    for (message, trigger) in take(&fixture, &queue("default")).await {
        let is_native = trigger.job.name.as_str() == "job-native";
        assert_eq!(trigger.signature.is_none(), is_native, "{trigger:?}");
        let verified = key().verifying_keys().verify(&message, &trigger);
        assert_eq!(verified.is_err(), is_native, "{trigger:?}");
        runs.insert(trigger.run);
    }
    assert_eq!(runs.len(), 8);
}

/// The deadline of the first trigger has lost half of its time, so it is written again.
#[tokio::test]
async fn a_trigger_that_is_written_again_is_signed_again() {
    let fixture = Fixture::new().await;
    let mut engine = signing_engine(&fixture).await;
    start_executors(&fixture).await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    let received = engine.receive_heartbeats().await;
    received.expect("stores heartbeats");
    engine.claim().await.expect("claims");
    engine.prepare().await.expect("prepares");
    fixture.clock.advance(31 * 60_000);
    assert_eq!(engine.publish().await.expect("publishes"), 1);
    let taken = take(&fixture, &queue("default")).await;
    let (message, trigger) = &taken[0];
    assert!(trigger.deadline > fixture.now().plus_ms(59 * 60_000));
    let verified = key().verifying_keys().verify(message, trigger);
    assert_eq!(verified, Ok(()));
}

/// It was lost on its way. Reconcile publishes it again.
#[tokio::test]
async fn a_trigger_that_is_published_again_is_signed() {
    let fixture = Fixture::new().await;
    let mut engine = signing_engine(&fixture).await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(take(&fixture, &e1.queue()).await.len(), 1);
    fixture.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&[]));
    assert_eq!(again.expect("compares"), 1);
    assert_eq!(tick(&mut engine).await, 1);
    let taken = take(&fixture, &e1.queue()).await;
    let (message, trigger) = &taken[0];
    let verified = key().verifying_keys().verify(message, trigger);
    assert_eq!(verified, Ok(()));
}

/// The broker has moved it. Its signature tells that a scheduler has sent it, so it may be replayed as it is.
#[tokio::test]
async fn a_signed_trigger_that_the_broker_moved_is_replayed_with_its_signature() {
    let fixture = Fixture::new().await;
    let mut e1 = fixture.enrolled_executor("e1", 1).await;
    let origins = Origins::enrolled(fixture.store.clone());
    let mut engine = fixture.signing_engine(keys(), origins).await;
    e1.heartbeat().await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    let (genuine, trigger) = take(&fixture, &e1.queue()).await.remove(0);
    let mut by_stranger = trigger.clone();
    let forged = SigningKey::from_seed([9; 32]).sign(&mut by_stranger);
    for payload in [genuine.clone(), forged.into()] {
        let moved = letter(&e1.queue(), payload);
        read_moved(&fixture, &moved, &mut engine, &mut e1).await;
    }
    let ids: Vec<i64> = fixture.dead_letters().await.iter().map(|l| l.id).collect();
    let replayed = engine
        .admin()
        .replay_dead_letters(None, &ids, &actor("ann"))
        .await;
    let replayed = replayed.expect("answers");
    let done = replayed.iter().filter(|one| one.refused.is_none());
    assert_eq!(done.count(), 1);
    let taken = take(&fixture, &e1.queue()).await;
    assert_eq!(taken, [(genuine, trigger)]);
}

/// A worker may put a trigger that it has received where the broker drops it.
#[tokio::test]
async fn a_signed_trigger_belongs_to_the_executor_that_it_is_signed_for() {
    let fixture = Fixture::new().await;
    let mut e1 = fixture.enrolled_executor("e1", 1).await;
    let origins = Origins::enrolled(fixture.store.clone());
    let mut engine = fixture.signing_engine(keys(), origins).await;
    e1.heartbeat().await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    let (genuine, trigger) = take(&fixture, &e1.queue()).await.remove(0);
    // A scheduler with the same keys and another store.
    let mut of_other_store = Trigger {
        store: StoreId(trigger.store.0 ^ 1),
        ..trigger
    };
    let of_other_store = key().sign(&mut of_other_store);
    let of_team = QueueId::Executor {
        group: "team-b/default".to_owned(),
        executor: "e1".to_owned(),
    };
    for moved in [
        letter(&of_team, genuine),
        letter(&e1.queue(), of_other_store),
    ] {
        read_moved(&fixture, &moved, &mut engine, &mut e1).await;
        let stored = fixture.dead_letters().await.pop().expect("a letter");
        assert_eq!((stored.origin, stored.namespace), (None, None));
    }
    assert_eq!(fixture.dead_letters().await.len(), 2);
}
