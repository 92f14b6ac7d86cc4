//! G13 and G2: the claims of nodes that die or stall.

use cueline_engine::ManualEngine;
use cueline_model::RunState;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fault, Fixture, actor, tick};

/// Longer than a lease.
const STALL_MS: i64 = 15_001;

/// Two nodes, two executors, and a run claimed by node one that `round` gives to e2.
async fn claimed() -> (Fixture, ManualEngine, ManualEngine, [FakeExecutor; 2]) {
    let fixture = Fixture::new().await;
    let mut one = fixture.engine("one").await;
    let mut two = fixture.engine("two").await;
    let executors = [fixture.executor("e1").await, fixture.executor("e2").await];
    one.receive_heartbeats().await.expect("stores heartbeats");
    tick(&mut two).await;
    fixture.apply("job", json!({ "route": "round" })).await;
    // The first run goes to e1 and is cancelled.
    let first = fixture.trigger("job").await;
    fixture
        .real()
        .cancel_run(first, &actor("a test"))
        .await
        .expect("cancels");
    fixture.trigger("job").await;
    one.claim().await.expect("claims");
    (fixture, one, two, executors)
}

/// Node one takes no turn for longer than its lease. Another executor joins, so that a new routing decision would
/// differ.
async fn stall(
    fixture: &Fixture,
    two: &mut ManualEngine,
    executors: &[FakeExecutor],
) -> FakeExecutor {
    for ms in [8_000, STALL_MS] {
        fixture.set(ms);
        for executor in executors {
            executor.heartbeat().await;
        }
        if ms < STALL_MS {
            assert_eq!(tick(two).await, 0, "the lease holds");
        }
    }
    fixture.executor("e0").await
}

async fn assert_only_at(published: u64, executor: &FakeExecutor, others: [&FakeExecutor; 2]) {
    let triggers = executor.take().await;
    assert_eq!(triggers.len() as u64, published, "at {}", executor.name);
    assert!(
        triggers
            .iter()
            .all(|t| t.attempt_id() == triggers[0].attempt_id())
    );
    for other in others {
        assert!(other.take().await.is_empty(), "at {}", other.name);
    }
}

#[tokio::test]
async fn claims_of_a_dead_node_are_taken_over_after_its_lease() {
    let (fixture, one, mut two, [e1, e2]) = Box::pin(claimed()).await;
    drop(one);
    for ms in [5_000, 10_000, 14_999] {
        fixture.set(ms);
        assert_eq!(tick(&mut two).await, 0, "at {ms} ms it may be alive");
    }
    fixture.set(15_000);
    e1.heartbeat().await;
    e2.heartbeat().await;
    assert_eq!(tick(&mut two).await, 1);
    assert_eq!(e2.take().await.len() + e1.take().await.len(), 1);
}

#[tokio::test]
async fn a_node_that_restarts_under_its_name_takes_over_at_once() {
    let (fixture, one, _two, executors) = Box::pin(claimed()).await;
    drop(one);
    let mut one = fixture.engine("one").await;
    for executor in &executors {
        executor.heartbeat().await;
    }
    assert_eq!(tick(&mut one).await, 1);
}

#[tokio::test]
async fn a_stalled_node_does_not_publish_runs_that_another_node_has_taken_over() {
    let (fixture, mut one, mut two, [e1, e2]) = Box::pin(claimed()).await;
    let executors = [e1, e2];
    let e0 = stall(&fixture, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    // Node one continues in the middle of its work and does not know yet.
    one.prepare().await.expect("prepares");
    assert_eq!(one.publish().await.expect("publishes"), 0);
    assert_eq!(tick(&mut one).await, 0, "then it gives up");
    let mut seen = e0.take().await;
    for executor in &executors {
        seen.extend(executor.take().await);
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
    // It goes on as a new node.
    fixture.trigger("job").await;
    assert_eq!(tick(&mut one).await, 1);
}

/// The run is marked. The other node cannot tell whether its trigger was published.
#[tokio::test]
async fn after_a_death_before_the_publish_the_same_attempt_goes_to_the_same_executor() {
    let (fixture, mut one, mut two, [e1, e2]) = Box::pin(claimed()).await;
    one.prepare().await.expect("prepares");
    assert_eq!(fixture.runs("job").await[1].state, RunState::Dispatching);
    drop(one);
    let executors = [e1, e2];
    let e0 = stall(&fixture, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    let [e1, e2] = executors;
    assert_only_at(1, &e2, [&e0, &e1]).await;
    assert_eq!(fixture.runs("job").await[1].state, RunState::Queued);
}

#[tokio::test]
async fn after_a_death_before_the_confirmation_the_same_attempt_goes_to_the_same_executor() {
    let (fixture, mut one, mut two, [e1, e2]) = Box::pin(claimed()).await;
    one.prepare().await.expect("prepares");
    fixture.store.fail_next("confirm_dispatch", Fault::Before);
    one.publish().await.expect_err("is not written down");
    drop(one);
    let executors = [e1, e2];
    let e0 = stall(&fixture, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    let [e1, e2] = executors;
    assert_only_at(2, &e2, [&e0, &e1]).await;
    assert_eq!(fixture.runs("job").await[1].state, RunState::Queued);
}

/// Both nodes publish the trigger.
#[tokio::test]
async fn a_node_that_stalls_before_the_publish_sends_the_same_attempt_to_the_same_executor() {
    let (fixture, mut one, mut two, [e1, e2]) = Box::pin(claimed()).await;
    one.prepare().await.expect("prepares");
    let executors = [e1, e2];
    let e0 = stall(&fixture, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    one.publish().await.expect("publishes");
    tick(&mut one).await;
    let [e1, e2] = executors;
    assert_only_at(2, &e2, [&e0, &e1]).await;
    assert_eq!(fixture.runs("job").await[1].state, RunState::Queued);
}

#[tokio::test]
async fn a_node_that_has_lost_its_lease_drops_its_pending_triggers() {
    let (fixture, mut one, mut two, [e1, e2]) = Box::pin(claimed()).await;
    one.prepare().await.expect("prepares");
    let executors = [e1, e2];
    let e0 = stall(&fixture, &mut two, &executors).await;
    assert_eq!(tick(&mut two).await, 1);
    assert_eq!(tick(&mut one).await, 0);
    let [e1, e2] = executors;
    assert_only_at(1, &e2, [&e0, &e1]).await;
}

/// The silent executor may have the trigger.
#[tokio::test]
async fn a_trigger_that_may_be_published_goes_to_the_same_executor_even_when_it_is_silent() {
    let (fixture, mut one, mut two, [e1, e2]) = Box::pin(claimed()).await;
    one.prepare().await.expect("prepares");
    drop(one);
    fixture.set(8_000);
    tick(&mut two).await;
    fixture.set(STALL_MS);
    e1.heartbeat().await;
    assert_eq!(tick(&mut two).await, 1);
    assert!(e1.take().await.is_empty());
    assert_eq!(e2.take().await.len(), 1);
}

#[tokio::test]
async fn two_nodes_never_fire_twice() {
    let fixture = Fixture::new().await;
    let mut one = fixture.engine("one").await;
    let mut two = fixture.engine("two").await;
    let e1 = fixture.executor("e1").await;
    for n in 0..5 {
        let rest = json!({ "schedule": { "every": "1s" } });
        fixture.apply(&format!("job-{n}"), rest).await;
    }
    let mut seen = std::collections::BTreeSet::new();
    for second in 1..=10 {
        fixture.set(second * 1_000);
        e1.heartbeat().await;
        let (a, b) = tokio::join!(one.tick(), two.tick());
        a.expect("a turn");
        b.expect("a turn");
        for trigger in e1.take().await {
            assert_eq!(trigger.fire_at, Fixture::at(second * 1_000));
            assert!(seen.insert((trigger.job.id, trigger.fire_at)));
        }
    }
    assert_eq!(seen.len(), 50);
}
