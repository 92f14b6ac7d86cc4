//! What people do with queues and dead letters.

use bytes::Bytes;
use cueline_broker::{DeadLetter, Outgoing, QueueId, Settlement};
use cueline_engine::{DeskError, Replayed};
use cueline_model::{OutcomeKind, RunState, StoreId};
use cueline_protocol::encode;
use serde_json::json;
use std::time::Duration;

use crate::executor::{Executor, id_of};
use crate::scene::{Scene, name, tick, until};

#[tokio::test]
async fn a_drained_queue_goes_to_others_and_a_purged_one_to_nobody() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    for _ in 0..2 {
        scene.trigger("job").await;
    }
    assert_eq!(tick(&mut engine).await, 2);
    let desk = engine.desk();
    let queues = desk.queues().await.expect("counts");
    assert!(
        queues.iter().any(|q| q.queue == e1.queue() && q.ready == 2),
        "{queues:?}"
    );
    let (group, one) = (name("default"), name("e1"));
    scene.set(10);
    assert_eq!(
        desk.outstanding(&group, &one).await.expect("reads").len(),
        2
    );
    e1.drain().await;
    let e2 = Executor::start(&scene, "e2").await;
    engine.hear().await.expect("hears");
    assert_eq!(desk.drain(&group, &one, "ann").await.expect("drains"), 2);
    assert_eq!(tick(&mut engine).await, 2);
    assert!(
        desk.outstanding(&group, &one)
            .await
            .expect("reads")
            .is_empty()
    );
    assert_eq!(
        desk.purge(&group, &name("e2"), "ann")
            .await
            .expect("purges"),
        2
    );
    assert_eq!(scene.states("job").await, [RunState::Cancelled; 2]);
    assert!(e2.take().await.is_empty());
}

/// After a restart without its state: what it has not finished comes again, and only that.
#[tokio::test]
async fn a_replay_publishes_what_the_executor_does_not_hold() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let mut e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    for _ in 0..3 {
        scene.trigger("job").await;
    }
    tick(&mut engine).await;
    let taken = e1.take().await;
    e1.ended(&taken[0], OutcomeKind::Succeeded, scene.now())
        .await;
    tick(&mut engine).await;
    scene.set(10);
    let desk = engine.desk();
    let (group, one) = (name("default"), name("e1"));
    let held = [id_of(&taken[1])];
    let (again, _) = tokio::join!(desk.replay(&group, &one), e1.answer(&held));
    assert_eq!(again.expect("replays"), 1);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(id_of(&e1.take_one().await), id_of(&taken[2]));
    let nobody = desk.replay(&group, &name("e9")).await.expect_err("refuses");
    assert!(matches!(nobody, DeskError::Refused(_)), "{nobody:?}");
}

/// An executor answers for so many attempts at once: it is asked about more in parts, before any of them goes out again.
#[tokio::test]
async fn a_replay_of_many_asks_in_parts() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let mut e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({ "backlog": 2_000 })).await;
    for _ in 0..1_001 {
        scene.trigger("job").await;
    }
    assert_eq!(tick(&mut engine).await, 1_001);
    let mut held = Vec::new();
    for part in 0..2 {
        let taken = e1.take().await;
        assert!(!taken.is_empty(), "part {part}");
        held.extend(taken.iter().map(id_of));
    }
    scene.set(10);
    let desk = engine.desk();
    let (group, one) = (name("default"), name("e1"));
    let lost = [held.remove(0), held.pop().expect("the last")];
    let (again, asked) = tokio::join!(desk.replay(&group, &one), async {
        [e1.answer(&held).await.len(), e1.answer(&held).await.len()]
    });
    assert_eq!((again.expect("replays"), asked), (2, [1_000, 1]));
    assert_eq!(tick(&mut engine).await, 2);
    let sent: Vec<_> = e1.take().await.iter().map(id_of).collect();
    assert_eq!(sent, lost);
}

#[tokio::test]
async fn dead_letters_are_kept_once_and_replayed_into_their_queue() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.put(&e1.queue(), &b"odd"[..]).await;
    let got = scene
        .broker
        .fetch(&e1.queue(), 9, Duration::ZERO)
        .await
        .expect("fetches");
    let dead = [(got[0].receipt, Settlement::Dead("not a trigger".to_owned()))];
    scene
        .broker
        .settle(&e1.queue(), &dead)
        .await
        .expect("settles");
    let foreign = Outgoing {
        queue: QueueId::Dead,
        topic: "t".to_owned(),
        id: String::new(),
        payload: Bytes::from_static(b"foreign"),
    };
    scene.broker.publish(&[foreign]).await.expect("publishes");
    scene
        .store
        .fail_next("insert_dead_letters", crate::failing_store::Fault::After);
    engine.take_dead().await.expect_err("the store fails");
    let store = scene.real();
    assert_eq!(store.dead_letters(None, 9).await.expect("reads").len(), 2);
    until("they come again", async || {
        engine.take_dead().await.expect("keeps") == 2
    })
    .await;
    let letters = store.dead_letters(None, 9).await.expect("reads");
    assert_eq!(letters.len(), 2, "{letters:?}");
    let odd = letters
        .iter()
        .find(|l| l.payload == b"odd")
        .expect("is kept");
    assert_eq!(
        (odd.queue.as_str(), odd.reason.as_str()),
        ("x.default.e1", "not a trigger")
    );

    let ids: Vec<i64> = letters.iter().map(|l| l.id).collect();
    let replayed = engine.desk().replay_dead(&ids).await.expect("replays");
    let done = Replayed {
        id: odd.id,
        refused: None,
    };
    assert!(replayed.contains(&done), "{replayed:?}");
    assert!(
        replayed
            .iter()
            .any(|r| r.id != odd.id && r.refused.is_some())
    );
    let back = scene
        .broker
        .fetch(&e1.queue(), 9, Duration::ZERO)
        .await
        .expect("fetches");
    assert_eq!(back[0].payload, &b"odd"[..]);
    let left = store.dead_letters(None, 9).await.expect("reads");
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Left in the queue from the time of another store: nothing is known of its run here, and the run of that number is not ended.
#[tokio::test]
async fn a_trigger_of_another_store_is_not_routed_again() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    tick(&mut engine).await;
    let mut trigger = e1.take_one().await;
    trigger.store = StoreId(7);
    scene.put(&e1.queue(), encode(&trigger)).await;
    let (group, one) = (name("default"), name("e1"));
    let drained = engine.desk().drain(&group, &one, "ann").await;
    assert_eq!(drained.expect("drains"), 0);
    assert_eq!(scene.state(run).await, RunState::Queued);
    let dead = scene.broker.fetch(&QueueId::Dead, 10, Duration::ZERO).await;
    let dead = dead.expect("fetches");
    assert_eq!(dead.len(), 1);
    let letter = DeadLetter::decode(&dead[0].payload).expect("a dead letter");
    assert!(letter.reason.contains("another store"), "{letter:?}");
}
