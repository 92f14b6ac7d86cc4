//! G13 and G2: nodes that die or stall, and what they had claimed.

use cueline_engine::ManualEngine;
use cueline_model::RunState;
use serde_json::json;

use crate::executor::{Executor, id_of};
use crate::failing_store::Fault;
use crate::scene::{Scene, tick};

/// Longer than a lease.
const STALL_MS: i64 = 15_001;

/// Two nodes, two executors, and a run that node one has claimed; its turn is e2's.
async fn claimed() -> (Scene, ManualEngine, ManualEngine, [Executor; 2]) {
    let scene = Scene::new().await;
    let mut one = scene.engine("one").await;
    let mut two = scene.engine("two").await;
    let executors = [
        Executor::start(&scene, "e1").await,
        Executor::start(&scene, "e2").await,
    ];
    one.hear().await.expect("hears");
    tick(&mut two).await;
    scene.apply("job", json!({ "route": "round" })).await;
    // The first turn is e1's, and not of interest.
    let first = scene.trigger("job").await;
    scene
        .real()
        .cancel_run(first, "a test")
        .await
        .expect("cancels");
    scene.trigger("job").await;
    one.claim().await.expect("claims");
    (scene, one, two, executors)
}

/// Time passes for node one as it does in a stalled process: not at all. Another executor joins meanwhile, so that routing anew would lead
/// elsewhere.
async fn stall(scene: &Scene, two: &mut ManualEngine, executors: &[Executor]) -> Executor {
    for ms in [8_000, STALL_MS] {
        scene.set(ms);
        for executor in executors {
            executor.heartbeat().await;
        }
        if ms < STALL_MS {
            assert_eq!(tick(two).await, 0, "the lease holds");
        }
    }
    Executor::start(scene, "e0").await
}

async fn assert_only_at(published: u64, executor: &Executor, others: [&Executor; 2]) {
    let triggers = executor.take().await;
    assert_eq!(triggers.len() as u64, published, "at {}", executor.name);
    assert!(triggers.iter().all(|t| id_of(t) == id_of(&triggers[0])));
    for other in others {
        assert!(other.take().await.is_empty(), "at {}", other.name);
    }
}

#[tokio::test]
async fn what_a_dead_node_had_claimed_is_taken_over_within_the_lease() {
    let (scene, one, mut two, [e1, e2]) = claimed().await;
    drop(one);
    for ms in [5_000, 10_000, 14_999] {
        scene.set(ms);
        assert_eq!(tick(&mut two).await, 0, "at {ms} ms it may be alive");
    }
    scene.set(15_000);
    e1.heartbeat().await;
    e2.heartbeat().await;
    assert_eq!(tick(&mut two).await, 1);
    assert_eq!(e2.take().await.len() + e1.take().await.len(), 1);
}

#[tokio::test]
async fn a_node_that_comes_back_under_its_name_takes_over_at_once() {
    let (scene, one, _two, executors) = claimed().await;
    drop(one);
    let mut one = scene.engine("one").await;
    for executor in &executors {
        executor.heartbeat().await;
    }
    assert_eq!(tick(&mut one).await, 1);
}

#[tokio::test]
async fn a_stalled_node_does_not_publish_what_another_has_taken_over() {
    let (scene, mut one, mut two, [e1, e2]) = claimed().await;
    let executors = [e1, e2];
    let e0 = stall(&scene, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    // It wakes in the middle of its work, and does not know yet.
    one.prepare().await.expect("prepares");
    assert_eq!(one.publish().await.expect("publishes"), 0);
    assert_eq!(tick(&mut one).await, 0, "then it gives up");
    let mut seen = e0.take().await;
    for executor in &executors {
        seen.extend(executor.take().await);
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
    // And works on, as a new node.
    scene.trigger("job").await;
    assert_eq!(tick(&mut one).await, 1);
}

/// Marked and not published, as far as the other node can tell perhaps published: the same attempt to the same executor.
#[tokio::test]
async fn a_node_that_dies_before_it_publishes() {
    let (scene, mut one, mut two, [e1, e2]) = claimed().await;
    one.prepare().await.expect("prepares");
    assert_eq!(scene.runs("job").await[1].state, RunState::Dispatching);
    drop(one);
    let executors = [e1, e2];
    let e0 = stall(&scene, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    let [e1, e2] = executors;
    assert_only_at(1, &e2, [&e0, &e1]).await;
    assert_eq!(scene.runs("job").await[1].state, RunState::Queued);
}

#[tokio::test]
async fn a_node_that_dies_between_publication_and_confirmation() {
    let (scene, mut one, mut two, [e1, e2]) = claimed().await;
    one.prepare().await.expect("prepares");
    scene.store.fail_next("confirm_dispatch", Fault::Before);
    one.publish().await.expect_err("is not written down");
    drop(one);
    let executors = [e1, e2];
    let e0 = stall(&scene, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    let [e1, e2] = executors;
    assert_only_at(2, &e2, [&e0, &e1]).await;
    assert_eq!(scene.runs("job").await[1].state, RunState::Queued);
}

/// It was not dead, only stalled between mark and publication: whatever it publishes now, the other one sent to the same executor.
#[tokio::test]
async fn a_node_that_stalls_before_it_publishes() {
    let (scene, mut one, mut two, [e1, e2]) = claimed().await;
    one.prepare().await.expect("prepares");
    let executors = [e1, e2];
    let e0 = stall(&scene, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    one.publish().await.expect("publishes");
    tick(&mut one).await;
    let [e1, e2] = executors;
    assert_only_at(2, &e2, [&e0, &e1]).await;
    assert_eq!(scene.runs("job").await[1].state, RunState::Queued);
}

/// What it had marked is not its own any more once it knows that its lease has run out.
#[tokio::test]
async fn a_node_that_has_lost_its_lease_publishes_nothing_of_before() {
    let (scene, mut one, mut two, [e1, e2]) = claimed().await;
    one.prepare().await.expect("prepares");
    let executors = [e1, e2];
    let e0 = stall(&scene, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    assert_eq!(tick(&mut one).await, 0);
    let [e1, e2] = executors;
    assert_only_at(1, &e2, [&e0, &e1]).await;
}

/// Even an executor that is not heard any more: it may have the trigger.
#[tokio::test]
async fn what_was_perhaps_published_goes_to_the_same_executor_even_if_it_is_silent() {
    let (scene, mut one, mut two, [e1, e2]) = claimed().await;
    one.prepare().await.expect("prepares");
    drop(one);
    scene.set(8_000);
    tick(&mut two).await;
    scene.set(STALL_MS);
    e1.heartbeat().await;
    assert_eq!(tick(&mut two).await, 1);
    assert!(e1.take().await.is_empty());
    assert_eq!(e2.take().await.len(), 1);
}

/// Two nodes at work on the same jobs at the same instants.
#[tokio::test]
async fn two_nodes_never_fire_twice() {
    let scene = Scene::new().await;
    let mut one = scene.engine("one").await;
    let mut two = scene.engine("two").await;
    let e1 = Executor::start(&scene, "e1").await;
    for n in 0..5 {
        let rest = json!({ "schedule": { "every": "1s" } });
        scene.apply(&format!("job-{n}"), rest).await;
    }
    let mut seen = std::collections::BTreeSet::new();
    for second in 1..=10 {
        scene.set(second * 1_000);
        e1.heartbeat().await;
        let (a, b) = tokio::join!(one.tick(), two.tick());
        a.expect("a turn");
        b.expect("a turn");
        for trigger in e1.take().await {
            assert_eq!(trigger.fire_at, Scene::at(second * 1_000));
            assert!(seen.insert((trigger.job.id, trigger.fire_at)));
        }
    }
    assert_eq!(seen.len(), 50);
}
