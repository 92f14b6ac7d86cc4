//! Heartbeats, and the declaration of queues that follows from them.

use std::time::Duration;

use bytes::Bytes;
use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_broker::{ErrorKind, QueueId, StartLog};
use cueline_model::Heartbeat;
use cueline_protocol::{StartRecord, decode};
use cueline_runtime::{Ended, Lifecycle};
use cueline_store::Store as _;
use cueline_test_support::SOON;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fault, Fixture, eventually, name, tick};

async fn is_known(fixture: &Fixture, executor: &FakeExecutor) -> bool {
    let known = fixture.store.executors().await.expect("reads");
    known
        .iter()
        .any(|e| e.heartbeat.executor.name.as_str() == executor.name)
}

#[tokio::test]
async fn a_slow_queue_declaration_delays_neither_heartbeats_nor_triggers_nor_the_stop() {
    let fixture = Fixture::new().await;
    fixture.apply("job", json!({})).await;
    let lifecycle = Lifecycle::new();
    let engine = fixture.start(&lifecycle).await;
    let e1 = fixture.silent_executor("e1").await;
    let e2 = fixture.silent_executor("e2").await;
    let stuck = BrokerFault::Late(Duration::from_hours(1));
    fixture.broker_faults.always(Operation::Declare, stuck);
    for executor in [&e1, &e2] {
        executor.heartbeat().await;
        eventually("the heartbeat is recorded", async || {
            is_known(&fixture, executor).await
        })
        .await;
    }
    e1.leave().await;
    let run = fixture.trigger("job").await;
    engine.admin().wake_claim();
    let mut sent = Vec::new();
    eventually("it goes out", async || {
        sent.extend(e2.take().await);
        !sent.is_empty()
    })
    .await;
    assert_eq!(sent[0].run, run);
    assert_eq!(lifecycle.shut_down(SOON).await, Ended::Asked);
}

/// With hundreds of executors, one transaction for each heartbeat would take longer than the heartbeats are apart.
#[tokio::test]
async fn heartbeats_that_arrive_while_the_store_is_slow_are_stored_together() {
    const METHOD: &str = "record_heartbeats";
    let fixture = Fixture::new().await;
    let lifecycle = Lifecycle::new();
    let _engine = fixture.start(&lifecycle).await;
    let e1 = fixture.silent_executor("e1").await;
    fixture.store.hold(METHOD);
    let before = fixture.store.calls(METHOD);
    let send = async |number: usize| {
        let named =
            |heartbeat: &mut Heartbeat| heartbeat.executor.name = name(&format!("e{number}"));
        e1.heartbeat_with(named).await;
    };
    send(0).await;
    eventually("the store is asked", async || {
        fixture.store.calls(METHOD) > before
    })
    .await;
    for number in 1..300 {
        send(number).await;
    }
    fixture.store.release(METHOD);
    eventually("all are stored", async || {
        fixture.store.executors().await.expect("reads").len() == 300
    })
    .await;
    let calls = fixture.store.calls(METHOD) - before;
    assert!(calls <= 3, "{calls} transactions");
    assert_eq!(lifecycle.shut_down(SOON).await, Ended::Asked);
}

/// In a large fleet they arrive one at a time, all the time.
#[tokio::test]
async fn heartbeats_that_change_nothing_are_stored_together() {
    const METHOD: &str = "record_heartbeats";
    const HEARTBEATS: u32 = 40;
    let fixture = Fixture::new().await;
    let lifecycle = Lifecycle::new();
    let _engine = fixture.start(&lifecycle).await;
    let e1 = fixture.silent_executor("e1").await;
    e1.heartbeat().await;
    eventually("it is known", async || is_known(&fixture, &e1).await).await;
    let before = fixture.store.calls(METHOD);
    for number in 1..=HEARTBEATS {
        // Apart, because those that have arrived are stored together anyway.
        tokio::time::sleep(Duration::from_millis(10)).await;
        e1.heartbeat_with(|heartbeat| heartbeat.running = number.into())
            .await;
    }
    eventually("the last one is stored", async || {
        let known = fixture.store.executors().await.expect("reads");
        known[0].heartbeat.running == u64::from(HEARTBEATS)
    })
    .await;
    let calls = fixture.store.calls(METHOD) - before;
    assert!(calls <= 20, "{calls} transactions");
    assert_eq!(lifecycle.shut_down(SOON).await, Ended::Asked);
}

/// Heartbeats never stop arriving while the store writes those before them.
#[tokio::test]
async fn a_steady_load_of_heartbeats_lets_silence_count() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let other = async || {
        let other = |heartbeat: &mut Heartbeat| heartbeat.executor.name = name("other");
        e1.heartbeat_with(other).await;
    };
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    engine.receive_loopback_heartbeat();
    assert_eq!(tick(&mut engine).await, 1);
    for at in 1..=31 {
        fixture.set(at * 1_000);
        engine.receive_loopback_heartbeat();
        other().await;
        fixture.store.hold("record_heartbeats");
        let during = async {
            other().await;
            fixture.store.release("record_heartbeats");
        };
        let (turn, ()) = tokio::join!(engine.tick(), during);
        turn.expect("a turn without faults");
    }
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
}

/// A store that comes back late would make heartbeats of that time new.
#[tokio::test]
async fn an_old_heartbeat_is_not_stored_as_a_new_one() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.silent_executor("e1").await;
    e1.heartbeat().await;
    fixture.store.fail_next("record_heartbeats", Fault::Before);
    assert!(engine.receive_heartbeats().await.is_err());
    fixture.set(600_000);
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    assert!(!is_known(&fixture, &e1).await);
    e1.heartbeat().await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    assert!(is_known(&fixture, &e1).await);
}

/// More heartbeats arrived than the listener keeps: those of live executors may be among the lost ones.
#[tokio::test]
async fn lost_heartbeats_restart_the_count_of_silence() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    for at in 0..29 {
        fixture.set(at * 1_000);
        engine.receive_loopback_heartbeat();
        assert_eq!(tick(&mut engine).await, usize::from(at == 0));
    }
    for _ in 0..12_000 {
        let other = |heartbeat: &mut Heartbeat| heartbeat.executor.name = name("other");
        e1.heartbeat_with(other).await;
    }
    for at in 29..35 {
        fixture.set(at * 1_000);
        engine.receive_loopback_heartbeat();
        tick(&mut engine).await;
    }
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(e1.take().await.len(), 1, "its trigger is still there");
}

#[tokio::test]
async fn the_last_heartbeat_of_a_batch_counts() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    e1.leave().await;
    e1.drain().await;
    e1.heartbeat().await;
    fixture.trigger("job").await;
    let declared = fixture.broker_faults.calls(Operation::Declare);
    assert_eq!(tick(&mut engine).await, 1);
    let declared = fixture.broker_faults.calls(Operation::Declare) - declared;
    assert_eq!(declared, 1, "its queue, once");
    e1.heartbeat().await;
    e1.leave().await;
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
}

/// The queue could not be declared after the heartbeat.
#[tokio::test]
async fn the_first_trigger_declares_a_missing_queue() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    fixture
        .broker
        .delete(&e1.queue(), false)
        .await
        .expect("deletes");
    let away = BrokerFault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::Declare, away, 1);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
}

#[tokio::test]
async fn an_executor_that_waits_for_its_queue_gets_it_with_its_next_heartbeat() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.silent_executor("e1").await;
    fixture
        .broker
        .delete(&e1.queue(), false)
        .await
        .expect("deletes");
    let away = BrokerFault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::Declare, away, 1);
    let is_there = async || {
        let stats = fixture.broker.stats(&[e1.queue()]).await.expect("counts");
        stats.of(&e1.queue()).is_some()
    };
    for expected in [false, true] {
        e1.drain().await;
        engine
            .receive_heartbeats()
            .await
            .expect("stores heartbeats");
        assert_eq!(is_there().await, expected);
    }
}

/// An executor that waits asks again and again. Each mark takes the place of a record.
#[tokio::test]
async fn a_start_log_is_marked_for_a_new_executor_and_while_it_has_no_records() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.silent_executor("e1").await;
    let log = e1.start_log();
    let records = async || {
        let records = fixture.broker.read_log(&log).await;
        records.expect("reads").len()
    };
    for at in [0, 11_000, 22_000] {
        fixture.set(at);
        e1.drain().await;
        let stored = engine.receive_heartbeats().await;
        stored.expect("stores heartbeats");
        assert_eq!(records().await, 2, "a declaration and a mark");
    }
    let mut second = fixture.engine("two").await;
    e1.heartbeat().await;
    for engine in [&mut engine, &mut second] {
        let stored = engine.receive_heartbeats().await;
        stored.expect("stores heartbeats");
    }
    assert_eq!(
        records().await,
        6,
        "it drains no more, and is new to the second one"
    );
    let deleted = fixture.broker.delete_log(&log).await;
    deleted.expect("deletes");
    fixture.set(33_000);
    e1.drain().await;
    let stored = engine.receive_heartbeats().await;
    stored.expect("stores heartbeats");
    assert_eq!(records().await, 2, "the log is new");
}

/// Its queue and its log may exist before the schedulers know it.
#[tokio::test]
async fn a_start_log_with_records_of_an_unknown_executor_is_marked() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.silent_executor("e1").await;
    let log = e1.start_log();
    fixture.broker.declare_log(&log).await.expect("declares");
    let first = fixture.broker.append(&log, Bytes::from("first")).await;
    first.expect("appends");
    e1.heartbeat().await;
    let stored = engine.receive_heartbeats().await;
    stored.expect("stores heartbeats");
    let records = fixture.broker.read_log(&log).await.expect("reads");
    assert_eq!(records.len(), 3);
    let mark = decode::<StartRecord>(&records[2]).expect("decodes");
    assert!(matches!(mark, StartRecord::Mark { .. }), "{mark:?}");
}

#[tokio::test]
async fn an_executor_that_waits_gets_its_start_log_with_its_next_heartbeat() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.silent_executor("e1").await;
    let QueueId::Executor { group, executor } = e1.queue() else {
        panic!("{} is no executor's queue", e1.queue());
    };
    let log = StartLog { group, executor };
    let append = async || fixture.broker.append(&log, Bytes::from("start")).await;
    assert!(append().await.is_err(), "no scheduler has declared the log");
    let away = BrokerFault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::DeclareLog, away, 1);
    for expected in [false, true] {
        e1.drain().await;
        engine
            .receive_heartbeats()
            .await
            .expect("stores heartbeats");
        assert_eq!(append().await.is_ok(), expected);
    }
}
