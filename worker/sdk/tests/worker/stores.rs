//! Runs of several stores, and triggers that are too old to be taken.

use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{DeadLetter, QueueId};
use cueline_model::{AttemptEvent, AttemptId, Block, OutcomeKind, RunId, StoreId, Timestamp};
use cueline_protocol::{Control, HoldingsReply, ReportMessage, Trigger, VERSION};
use cueline_protocol::{decode, encode};

use crate::world::{World, control_channel, run, trigger};

const OLD: StoreId = StoreId(0xa1);
const NEW: StoreId = StoreId(0xb2);

fn of(store: StoreId, run: i64, handler: &str) -> Trigger {
    let mut trigger = trigger(run, handler, Block::Serial);
    trigger.store = store;
    trigger
}

/// The ends that were reported, with the store that each is said to be of.
fn ends(world: &World) -> Vec<(StoreId, i64, OutcomeKind)> {
    let ended = world.events().into_iter().filter_map(|event| match event {
        ReportMessage {
            store,
            run,
            event: AttemptEvent::Ended { outcome },
            ..
        } => Some((store, run.0, outcome.kind)),
        _ => None,
    });
    ended.collect()
}

async fn until_ended(world: &World, count: usize) -> Vec<(StoreId, i64, OutcomeKind)> {
    let enough = || Some(ends(world)).filter(|e| e.len() >= count);
    world.wait(&format!("{count} ends"), enough).await
}

#[tokio::test]
async fn a_run_of_another_store_is_another_run() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[of(OLD, 1, "noop")]).await;
    until_ended(&world, 1).await;
    // Runs and jobs of the new store have the numbers that those of the old one had.
    world.publish(&[of(OLD, 2, "gate")]).await;
    world.wait_entered(&[2]).await;
    world.publish(&[of(NEW, 1, "noop")]).await;
    until_ended(&world, 2).await;
    world.publish(&[of(NEW, 2, "gate")]).await;
    world.wait_entered(&[2, 2]).await;
    world.gate.add_permits(2);
    let expected = [(OLD, 1), (NEW, 1), (OLD, 2), (NEW, 2)];
    let found = until_ended(&world, 4).await;
    for (store, run) in expected {
        let its = (store, run, OutcomeKind::Succeeded);
        assert!(found.contains(&its), "{its:?} is not in {found:?}");
    }
    live.drain().await;

    // After a restart each is still answered as what it was.
    let live = world.start();
    world
        .publish(&[of(NEW, 1, "noop"), of(OLD, 1, "noop")])
        .await;
    let found = until_ended(&world, 6).await;
    assert_eq!(found.len(), 6);
    for store in [OLD, NEW] {
        let its = (store, 1, OutcomeKind::Succeeded);
        assert!(found[4..].contains(&its), "{found:?}");
    }
    assert_eq!(world.calls.load(std::sync::atomic::Ordering::SeqCst), 2);
    live.drain().await;
}

/// What waited or ran when a worker was killed is reported as its own store's.
#[tokio::test]
async fn what_a_killed_worker_left_is_told_of_the_right_store() {
    let world = World::new().await;
    let live = world.start();
    world
        .publish(&[of(OLD, 1, "gate"), of(NEW, 1, "gate")])
        .await;
    world.wait_entered(&[1, 1]).await;
    live.kill().await;
    let live = world.start();
    let found = until_ended(&world, 2).await;
    for store in [OLD, NEW] {
        assert!(found.contains(&(store, 1, OutcomeKind::Lost)), "{found:?}");
    }
    live.drain().await;
}

async fn held(world: &World, store: StoreId) -> Vec<AttemptId> {
    let order = Control::Holdings {
        v: VERSION,
        store,
        attempts: vec![AttemptId {
            run: RunId(1),
            attempt: 1,
        }],
    };
    let (channel, wait) = (control_channel(), Duration::from_secs(10));
    let asked = world
        .broker
        .ask(&channel, Bytes::from(encode(&order)), wait);
    let answer = asked.await.expect("ask").expect("an answer");
    decode::<HoldingsReply>(&answer).expect("readable").held
}

#[tokio::test]
async fn orders_are_about_runs_of_their_store() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[of(OLD, 1, "gate")]).await;
    world.wait_entered(&[1]).await;
    assert_eq!(held(&world, NEW).await, []);
    assert_eq!(held(&world, OLD).await.len(), 1);
    let cancel = async |store| {
        let order = Control::Cancel {
            v: VERSION,
            store,
            run: RunId(1),
        };
        let payload = Bytes::from(encode(&order));
        let sent = world.broker.announce(&control_channel(), payload).await;
        sent.expect("announce");
    };
    cancel(NEW).await;
    // Orders are heard in order: this one is answered after the cancellation was heard.
    assert_eq!(held(&world, OLD).await.len(), 1);
    assert!(ends(&world).is_empty(), "{:?}", ends(&world));
    cancel(OLD).await;
    assert_eq!(
        until_ended(&world, 1).await,
        [(OLD, 1, OutcomeKind::Cancelled)]
    );
    live.drain().await;
}

/// Whoever kept a trigger can publish it again: it is known, or too old.
#[tokio::test]
async fn a_trigger_past_its_deadline_is_not_taken_unless_it_is_known() {
    let world = World::new().await;
    let live = world.start();
    let mut good = of(OLD, 1, "noop");
    good.deadline = Timestamp::from_millis(i64::MAX / 2);
    world.publish(&[good.clone()]).await;
    until_ended(&world, 1).await;
    good.deadline = Timestamp::from_millis(1);
    let late = Trigger {
        run: RunId(2),
        ..good.clone()
    };
    world.publish(&[good, late.clone()]).await;
    until_ended(&world, 2).await;
    let queue = QueueId::Dead;
    let dead = world.broker.fetch(&queue, 10, Duration::from_secs(10));
    let dead = dead.await.expect("fetch");
    assert_eq!(dead.len(), 1);
    let letter = DeadLetter::decode(&dead[0].payload).expect("a dead letter");
    assert!(letter.reason.contains("it was good until"), "{letter:?}");
    assert_eq!(world.calls.load(std::sync::atomic::Ordering::SeqCst), 1);
    live.drain().await;

    // Where nobody but this process's own schedulers can send, it may have waited for long.
    let live = run(world.builder().shares_fate_with_schedulers());
    world.publish(&[late]).await;
    until_ended(&world, 3).await;
    assert_eq!(world.calls.load(std::sync::atomic::Ordering::SeqCst), 2);
    live.drain().await;
}
