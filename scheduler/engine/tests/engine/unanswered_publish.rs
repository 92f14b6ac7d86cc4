//! The broker does not answer a publish. The run stays `dispatching`, for the same executor, until the broker accepts
//! it.

use std::collections::BTreeSet;
use std::time::Duration;

use cueline_broker::conformance::{Fault, Operation};
use cueline_broker::{ErrorKind, Settlement};
use cueline_broker_embedded::EmbeddedOptions;
use cueline_engine::{EngineOptions, ManualEngine};
use cueline_model::{OutcomeKind, RunId, RunState, Session};
use cueline_store::Store as _;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fault as StoreFault, Fixture, tick};

async fn publishing(fixture: &Fixture, run: RunId) -> usize {
    let job = fixture.run(run).await.job_id;
    fixture
        .store
        .dispatching_attempts(&[job])
        .await
        .expect("lists")
        .len()
}

/// Two executors, and a job that is routed to the first.
async fn two_executors(
    options: EmbeddedOptions,
) -> (Fixture, ManualEngine, FakeExecutor, FakeExecutor) {
    let fixture = Fixture::with(options).await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let e2 = fixture.executor("e2").await;
    fixture.apply("job", json!({ "route": "first" })).await;
    tick(&mut engine).await;
    (fixture, engine, e1, e2)
}

/// A pause of the job waits for it, because the trigger may be in its queue.
#[tokio::test]
async fn an_unanswered_trigger_is_published_until_the_broker_accepts_it() {
    let (fixture, mut engine, e1, _) = two_executors(EmbeddedOptions::default()).await;
    let run = fixture.trigger("job").await;
    let other = fixture.trigger("job").await;
    fixture
        .broker_faults
        .next(Operation::Publish, Fault::Unanswered, 1);
    assert_eq!(tick(&mut engine).await, 0);
    fixture.pause("job").await;
    for run in [run, other] {
        assert_eq!(fixture.state(run).await, RunState::Dispatching);
    }
    assert_eq!(publishing(&fixture, run).await, 2);
    assert_eq!(tick(&mut engine).await, 0, "not at once");
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 2);
    assert_eq!(publishing(&fixture, run).await, 0);
    assert_eq!(fixture.state(run).await, RunState::Queued);
    // A broker without deduplication holds each twice; the executor recognises them by run and attempt.
    let taken: BTreeSet<_> = e1.take().await.iter().map(|t| t.run).collect();
    assert_eq!(taken, BTreeSet::from([run, other]));
}

/// The executor was away for long. It returns triggers of its earlier session.
#[tokio::test]
async fn a_trigger_that_is_published_again_names_the_present_session() {
    let (fixture, mut engine, e1, _) = two_executors(EmbeddedOptions::default()).await;
    let run = fixture.trigger("job").await;
    let lost = Fault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::Publish, lost, 1);
    engine.tick().await.expect_err("there is no answer");
    e1.heartbeat_with(|heartbeat| heartbeat.session = Session(2))
        .await;
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 1);
    let trigger = e1.take_one().await;
    assert_eq!((trigger.run, trigger.session), (run, Some(Session(2))));
}

/// A queue keeps the order of its triggers through a publish without an answer (G6).
#[tokio::test]
async fn a_newer_trigger_waits_behind_an_unanswered_one_of_its_queue() {
    let (fixture, mut engine, e1, _) = two_executors(EmbeddedOptions::default()).await;
    let older = fixture.trigger("job").await;
    fixture
        .broker_faults
        .next(Operation::Publish, Fault::Unanswered, 1);
    assert_eq!(tick(&mut engine).await, 0);
    fixture.set(500);
    let newer = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0, "the older one has no answer");
    assert_eq!(fixture.state(newer).await, RunState::Dispatching);
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 2);
    // A broker without deduplication holds the older one twice, and each copy is before the newer one.
    let taken: Vec<_> = e1.take().await.iter().map(|t| t.run).collect();
    let newer_at = taken.iter().position(|run| *run == newer);
    assert!(newer_at.is_some(), "{taken:?}");
    assert!(taken.iter().rposition(|run| *run == older) < newer_at);
}

/// The older trigger may be in its queue, and stays. The newer one is certainly in none.
#[tokio::test]
async fn a_run_behind_a_queue_that_accepts_nothing_is_released_after_30_s() {
    for fault in [None, Some(StoreFault::Before), Some(StoreFault::After)] {
        let fixture = Fixture::new().await;
        let options = EngineOptions {
            publish_batch: 1,
            ..EngineOptions::default()
        };
        let mut engine = fixture.engine_with(options).await;
        let e1 = fixture.executor("e1").await;
        fixture.apply("job", json!({ "scope": "executor" })).await;
        tick(&mut engine).await;
        fixture
            .broker_faults
            .always(Operation::Publish, Fault::Unanswered);
        let older = fixture.trigger("job").await;
        assert_eq!(tick(&mut engine).await, 0);
        let newer = fixture.trigger("job").await;
        for second in 0..=30 {
            fixture.set(second * 1_000);
            assert_eq!(tick(&mut engine).await, 0);
        }
        assert_eq!(fixture.state(newer).await, RunState::Dispatching);
        fixture.set(31_000);
        if let Some(fault) = fault {
            fixture.store.fail_next("release_claims", fault);
            engine.tick().await.expect_err("the store fails");
        }
        assert_eq!(tick(&mut engine).await, 0);
        assert_eq!(fixture.state(newer).await, RunState::Scheduled);
        assert_eq!(fixture.state(older).await, RunState::Dispatching);
        // It is routed again. The broker answers meanwhile.
        fixture.broker_faults.clear();
        let e2 = fixture.executor("e2").await;
        fixture.set(32_000);
        assert_eq!(tick(&mut engine).await, 1, "the older one");
        fixture.set(41_000);
        assert_eq!(tick(&mut engine).await, 1, "the newer one");
        let taken: BTreeSet<_> = e1.take().await.iter().map(|t| t.run).collect();
        assert_eq!(taken, BTreeSet::from([older]), "{fault:?}");
        assert_eq!(e2.take_one().await.run, newer);
    }
}

/// The executor has already reported its end.
#[tokio::test]
async fn an_unanswered_trigger_that_has_arrived_is_not_published_again() {
    let (fixture, mut engine, e1, _) = two_executors(EmbeddedOptions::default()).await;
    let run = fixture.trigger("job").await;
    fixture
        .broker_faults
        .next(Operation::Publish, Fault::Unanswered, 1);
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Succeeded);
    let calls = fixture.broker_faults.calls(Operation::Publish);
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(fixture.broker_faults.calls(Operation::Publish), calls);
}

/// The first publish may have succeeded. A released run could go to a second executor.
#[tokio::test]
async fn a_trigger_that_may_be_published_stays_with_its_executor_when_the_queue_is_full() {
    let (fixture, mut engine, e1, e2) = two_executors(EmbeddedOptions {
        queue_limit: 1,
        ..EmbeddedOptions::default()
    })
    .await;
    let run = fixture.trigger("job").await;
    let lost = Fault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::Publish, lost, 1);
    engine.tick().await.expect_err("there is no answer");
    fixture.put(&e1.queue(), &b"another message"[..]).await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(fixture.state(run).await, RunState::Dispatching);
    // No other executor gets it, even after its executor has left.
    e1.leave().await;
    e2.heartbeat().await;
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e2.take().await.is_empty());
    let unreadable = fixture.broker.fetch(&e1.queue(), 9, Duration::ZERO).await;
    let unreadable: Vec<_> = unreadable
        .expect("fetches")
        .iter()
        .map(|d| (d.receipt, Settlement::Ack))
        .collect();
    let settled = fixture.broker.settle(&e1.queue(), &unreadable).await;
    settled.expect("settles");
    fixture.set(2_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
    assert!(e2.take().await.is_empty());
}

/// The broker has certainly not accepted the trigger.
#[tokio::test]
async fn a_refused_trigger_is_released_and_routed_to_another_executor() {
    let (fixture, mut engine, e1, e2) = two_executors(EmbeddedOptions {
        queue_limit: 1,
        ..EmbeddedOptions::default()
    })
    .await;
    fixture.put(&e1.queue(), &b"another message"[..]).await;
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(fixture.state(run).await, RunState::Scheduled);
    e1.leave().await;
    e2.heartbeat().await;
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e2.take_one().await.run, run);
}
