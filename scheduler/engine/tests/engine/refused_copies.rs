//! G17: a refused trigger may be another copy of one that its executor has accepted or will accept.

use std::time::Duration;

use cueline_broker::conformance::{Fault, Operation};
use cueline_broker::{DeadLetter, ErrorKind, QueueId, Settlement};
use cueline_model::{OutcomeKind, RunState};
use cueline_protocol::{KNOWN_FROM_ANOTHER_RUN, encode};
use serde_json::json;

use crate::fixture::{Fixture, eventually, tick};
use crate::refused_triggers::{
    handle, letter, queued_in, read, refuse, stored_letters, try_handle,
};

/// Another scheduler signed the second copy with a key that the executor does not trust.
#[tokio::test]
async fn an_attempt_that_its_executor_holds_is_not_ended() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    let trigger = e1.accept().await.remove(0);
    let copy = letter(&e1.queue(), encode(&trigger));
    let payload = copy.encode().expect("encodes");
    fixture.put(&QueueId::Dead, payload).await;
    let held = [trigger.attempt_id()];
    let stored = try_handle(&mut engine, &mut e1, &held).await;
    assert_eq!(stored.expect("keeps"), 1);
    assert_eq!(fixture.state(run).await, RunState::Queued);
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Succeeded);
}

#[tokio::test]
async fn an_attempt_that_has_started_is_not_ended() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    let trigger = e1.take_one().await;
    e1.started(&trigger, fixture.now()).await;
    tick(&mut engine).await;
    let copy = letter(&e1.queue(), encode(&trigger));
    read(&fixture, &copy, &mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Running);
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    let later = DeadLetter { at_ms: 1, ..copy };
    read(&fixture, &later, &mut engine, &mut e1).await;
    let ended = fixture.run(run).await;
    assert_eq!((ended.state, ended.attempt), (RunState::Succeeded, 1));
}

/// The store has issued the run id again. The executor holds the other run under it.
#[tokio::test]
async fn an_executor_that_knows_the_run_id_from_another_run_is_not_asked() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    let trigger = e1.accept().await.remove(0);
    let reason = format!("{KNOWN_FROM_ANOTHER_RUN}{run} with another job, fire time or shard");
    let refused = DeadLetter {
        reason,
        ..letter(&e1.queue(), encode(&trigger))
    };
    let payload = refused.encode().expect("encodes");
    fixture.put(&QueueId::Dead, payload).await;
    let held = [trigger.attempt_id()];
    let stored = try_handle(&mut engine, &mut e1, &held).await;
    assert_eq!(stored.expect("keeps"), 1);
    assert_eq!(fixture.state(run).await, RunState::Failed);
}

/// The executor has lost its state directory. Reconcile ends the attempt `lost`.
#[tokio::test]
async fn an_attempt_with_a_recorded_start_is_not_ended() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    let trigger = e1.take_one().await;
    let copy = letter(&e1.queue(), encode(&trigger));
    read(&fixture, &copy, &mut engine, &mut e1).await;
    assert_eq!(fixture.state(run).await, RunState::Queued);
}

#[tokio::test]
async fn a_letter_waits_until_its_executor_answers() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    refuse(&fixture, &e1).await;
    assert_eq!(engine.store_dead_letters().await.expect("asks"), 0);
    assert_eq!(fixture.state(run).await, RunState::Queued);
    assert_eq!(stored_letters(&fixture).await, 0);
    eventually("the executor is asked again", async || {
        handle(&mut engine, &mut e1).await == 1
    })
    .await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
    assert_eq!(stored_letters(&fixture).await, 1);
}

/// Failover routes the run of a dead executor again.
#[tokio::test]
async fn a_silent_executor_is_not_asked() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    refuse(&fixture, &e1).await;
    for ms in [10_000, 20_000] {
        fixture.set(ms);
        tick(&mut engine).await;
    }
    tokio::select! {
        stored = engine.store_dead_letters() => assert_eq!(stored.expect("waits"), 0),
        asked = e1.answer_holdings(&[]) => panic!("it was asked about {asked:?}"),
    }
    assert_eq!(fixture.state(run).await, RunState::Queued);
}

/// Whether the attempt has started is not known. In the end, reconcile finds out.
#[tokio::test]
async fn a_letter_waits_at_most_until_its_trigger_has_lost_half_of_its_time() {
    let fixture = Fixture::new().await;
    let (mut engine, mut e1, run) = queued_in(&fixture, json!({})).await;
    refuse(&fixture, &e1).await;
    let fault = Fault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::ReadLog, fault, 1);
    assert_eq!(handle(&mut engine, &mut e1).await, 0);
    fixture.set(1_800_001);
    eventually("the letter is delivered again", async || {
        handle(&mut engine, &mut e1).await == 1
    })
    .await;
    assert_eq!(fixture.state(run).await, RunState::Queued);
    assert_eq!(stored_letters(&fixture).await, 1);
}

/// A publish without an answer was repeated. The executor may have been corrected in between.
#[tokio::test]
async fn a_letter_waits_while_a_second_copy_may_be_in_the_queue() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    fixture
        .broker_faults
        .next(Operation::Publish, Fault::Unanswered, 1);
    assert_eq!(tick(&mut engine).await, 0);
    fixture.set(2_001);
    assert_eq!(tick(&mut engine).await, 1);
    let queue = e1.queue();
    let copies = fixture.broker.fetch(&queue, 9, Duration::ZERO).await;
    let copies = copies.expect("fetches");
    assert_eq!(copies.len(), 2);
    let first = letter(&queue, copies[0].payload.clone());
    let payload = first.encode().expect("encodes");
    fixture.put(&QueueId::Dead, payload).await;
    assert_eq!(handle(&mut engine, &mut e1).await, 0);
    assert_eq!(fixture.state(run).await, RunState::Queued);
    let acks: Vec<_> = copies
        .iter()
        .map(|d| (d.receipt, Settlement::Ack))
        .collect();
    fixture.broker.settle(&queue, &acks).await.expect("settles");
    eventually("the letter is delivered again", async || {
        handle(&mut engine, &mut e1).await == 1
    })
    .await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
}
