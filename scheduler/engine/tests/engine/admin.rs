//! Requests of operators about queues and dead letters.

use bytes::Bytes;
use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_broker::{Outgoing, QueueId, Settlement};
use cueline_model::{OutcomeKind, RunState, StoreId};
use cueline_protocol::{Trigger, encode};
use cueline_store::admin::{AdminError, ReplayedDeadLetter};
use serde_json::json;
use std::time::Duration;

use crate::emptied_queues::{answered, emptied};
use crate::fixture::{Fault, Fixture, actor, eventually, tick};

#[tokio::test]
async fn a_drained_queue_is_routed_again_and_a_purged_queue_is_cancelled() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    for _ in 0..2 {
        fixture.trigger("job").await;
    }
    assert_eq!(tick(&mut engine).await, 2);
    let admin = engine.admin();
    let queues = admin.queues().await.expect("counts");
    assert!(
        queues
            .iter()
            .any(|q| q.queue == e1.queue().to_string() && q.ready == Some(2)),
        "{queues:?}"
    );
    fixture.set(10);
    assert_eq!(admin.outstanding(&e1.id()).await.expect("reads").len(), 2);
    e1.drain().await;
    let mut e2 = fixture.executor("e2").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    let id = e1.id();
    let drained = answered(&mut e1, &[], admin.drain(&id, &actor("ann"))).await;
    assert_eq!(drained.expect("drains"), emptied(2, 0));
    assert_eq!(tick(&mut engine).await, 2);
    fixture.set(20);
    assert!(admin.outstanding(&id).await.expect("reads").is_empty());
    let id = e2.id();
    let purged = answered(&mut e2, &[], admin.purge(&id, &actor("ann"))).await;
    assert_eq!(purged.expect("purges"), emptied(2, 0));
    assert_eq!(fixture.states("job").await, [RunState::Cancelled; 2]);
    assert!(e2.take().await.is_empty());
}

#[tokio::test]
async fn a_queue_without_an_answer_is_listed_without_counts() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    tick(&mut engine).await;
    let faults = &fixture.broker_faults;
    for answers in [false, true] {
        if !answers {
            faults.next(Operation::Stats, BrokerFault::Unanswered, 1);
        }
        let queues = engine.admin().queues().await.expect("counts");
        let own: Vec<_> = queues
            .iter()
            .filter(|q| q.queue == e1.queue().to_string())
            .map(|q| (q.ready, q.unsettled))
            .collect();
        let count = answers.then_some(0);
        assert_eq!(own, [(count, count)]);
    }
}

/// A broker may deliver a trigger twice, or the trigger of a lost answer may reach the queue late.
#[tokio::test]
async fn a_drained_copy_of_a_running_attempt_changes_nothing() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    let running = e1.take_one().await;
    e1.started(&running, fixture.now()).await;
    tick(&mut engine).await;
    fixture.set(10);
    for purge in [false, true] {
        fixture.put(&e1.queue(), encode(&running)).await;
        let (admin, id) = (engine.admin(), e1.id());
        let done = if purge {
            admin.purge(&id, &actor("ann")).await
        } else {
            admin.drain(&id, &actor("ann")).await
        };
        assert_eq!(done.expect("empties the queue"), emptied(0, 0));
        assert_eq!(fixture.states("job").await, [RunState::Running]);
    }
    e1.ended(&running, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    let run = fixture.only_run("job").await;
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1));
}

/// The executor has restarted without its journal. It gets the attempts that it has not begun, and only those.
#[tokio::test]
async fn a_replay_publishes_attempts_that_the_executor_does_not_hold() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    for _ in 0..5 {
        fixture.trigger("job").await;
    }
    tick(&mut engine).await;
    let taken = e1.accept().await;
    e1.ended(&taken[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    e1.started(&taken[3], fixture.now()).await;
    e1.record_starts(&taken[4..]).await.expect("records");
    tick(&mut engine).await;
    fixture.set(10);
    let admin = engine.admin();
    let held = [taken[1].attempt_id()];
    let id = e1.id();
    let by = actor("a test");
    let (again, _) = tokio::join!(admin.replay(&id, &by), e1.answer_holdings(&held));
    assert_eq!(again.expect("replays"), 1);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.attempt_id(), taken[2].attempt_id());
    let unknown = fixture.silent_executor("e9").await.id();
    let refused = admin
        .replay(&unknown, &actor("a test"))
        .await
        .expect_err("refuses");
    assert!(matches!(refused, AdminError::Refused(_)), "{refused:?}");
}

/// An executor answers for at most 1,000 attempts at once. All batches are asked about before any attempt is
/// published.
#[tokio::test]
async fn a_replay_of_many_attempts_asks_in_batches() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({ "backlog": 2_000 })).await;
    for _ in 0..1_001 {
        fixture.trigger("job").await;
    }
    assert_eq!(tick(&mut engine).await, 1_001);
    let mut held = Vec::new();
    for part in 0..2 {
        let taken = e1.accept().await;
        assert!(!taken.is_empty(), "part {part}");
        held.extend(taken.iter().map(Trigger::attempt_id));
    }
    fixture.set(10);
    let admin = engine.admin();
    let lost = [held.remove(0), held.pop().expect("the last")];
    let id = e1.id();
    let by = actor("a test");
    let (again, asked) = tokio::join!(admin.replay(&id, &by), async {
        [
            e1.answer_holdings(&held).await.len(),
            e1.answer_holdings(&held).await.len(),
        ]
    });
    assert_eq!((again.expect("replays"), asked), (2, [1_000, 1]));
    assert_eq!(tick(&mut engine).await, 2);
    let sent: Vec<_> = e1.take().await.iter().map(Trigger::attempt_id).collect();
    assert_eq!(sent, lost);
}

#[tokio::test]
async fn dead_letters_are_stored_once_and_replayed_into_their_queue() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.put(&e1.queue(), &b"unreadable"[..]).await;
    let got = fixture
        .broker
        .fetch(&e1.queue(), 9, Duration::ZERO)
        .await
        .expect("fetches");
    let dead = [(got[0].receipt, Settlement::Dead("not a trigger".to_owned()))];
    fixture
        .broker
        .settle(&e1.queue(), &dead)
        .await
        .expect("settles");
    let unknown = Outgoing {
        queue: QueueId::Dead,
        topic: "t".to_owned(),
        id: String::new(),
        payload: Bytes::from_static(b"unknown"),
    };
    fixture.broker.publish(&[unknown]).await.expect("publishes");
    fixture.store.fail_next("insert_dead_letters", Fault::After);
    engine
        .store_dead_letters()
        .await
        .expect_err("the store fails");
    let store = fixture.real();
    assert_eq!(
        store
            .dead_letters(None, None, 9)
            .await
            .expect("reads")
            .len(),
        2
    );
    eventually("they are delivered again", async || {
        engine.store_dead_letters().await.expect("keeps") == 2
    })
    .await;
    let letters = store.dead_letters(None, None, 9).await.expect("reads");
    assert_eq!(letters.len(), 2, "{letters:?}");
    let unreadable = letters
        .iter()
        .find(|l| l.payload == b"unreadable")
        .expect("is kept");
    assert_eq!(
        (unreadable.queue.as_str(), unreadable.reason.as_str()),
        ("x.default.e1", "not a trigger")
    );

    let ids: Vec<i64> = letters.iter().map(|l| l.id).collect();
    let replayed = engine
        .admin()
        .replay_dead_letters(None, &ids, &actor("a test"))
        .await
        .expect("replays");
    let done = ReplayedDeadLetter {
        id: unreadable.id,
        refused: None,
    };
    assert!(replayed.contains(&done), "{replayed:?}");
    assert!(
        replayed
            .iter()
            .any(|r| r.id != unreadable.id && r.refused.is_some())
    );
    let back = fixture
        .broker
        .fetch(&e1.queue(), 9, Duration::ZERO)
        .await
        .expect("fetches");
    assert_eq!(back[0].payload, &b"unreadable"[..]);
    let left = store.dead_letters(None, None, 9).await.expect("reads");
    assert_eq!(left.len(), 1, "{left:?}");
}

/// The trigger was left in the queue by a scheduler of another store. The run with the same number here is not ended.
#[tokio::test]
async fn a_trigger_of_another_store_is_not_routed_again() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    let mut trigger = e1.take_one().await;
    trigger.store = StoreId(7);
    fixture.put(&e1.queue(), encode(&trigger)).await;
    let drained = engine.admin().drain(&e1.id(), &actor("ann")).await;
    assert_eq!(drained.expect("drains"), emptied(0, 0));
    assert_eq!(fixture.state(run).await, RunState::Queued);
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].origin.as_deref(), Some("scheduler"));
    let reason = &letters[0].reason;
    assert!(reason.contains("another store"), "{reason}");
}
