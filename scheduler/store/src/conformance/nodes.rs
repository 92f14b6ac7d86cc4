//! Nodes and their leases.

use cueline_model::{RunKind, Schedule, Timestamp};

use super::fixture::{Fixture, actor, ask, by_hand, job_with, refused};
use crate::{ErrorKind, FireDueRequest, NodeId, RenewedLease};

use super::fixture::EachFireTime;

async fn renews(fixture: &Fixture, node: NodeId, lease_ms: u64) -> bool {
    let renewed = fixture.store.renew_lease(node, lease_ms, None).await;
    renewed.expect("answers").is_some()
}

/// Only a node that finds no other node alive is the first.
pub async fn the_first_node_is_reported(fixture: &Fixture) {
    let one = fixture
        .store
        .register_node("one", 10_000)
        .await
        .expect("one");
    let two = fixture
        .store
        .register_node("two", 10_000)
        .await
        .expect("two");
    assert!(one.first);
    assert!(!two.first);
    assert_ne!(one.node, two.node);
    fixture.clock.advance(10_000);
    let three = fixture
        .store
        .register_node("one", 10_000)
        .await
        .expect("three");
    assert!(three.first, "the leases of the others have run out");
    assert_ne!(three.node, one.node);
}

/// A name belongs to one process at a time, so a restart does not wait for the earlier lease.
pub async fn a_restart_ends_the_lease_of_its_name(fixture: &Fixture) {
    fixture.apply(&[super::fixture::each_second("a")]).await;
    let old = fixture
        .store
        .register_node("one", 10_000)
        .await
        .expect("old");
    let run = fixture.fire_one(old.node).await;
    let new = fixture
        .store
        .register_node("one", 10_000)
        .await
        .expect("new");
    assert!(new.first);
    assert!(!renews(fixture, old.node, 10).await);
    let claimed = fixture.claim(new.node).await;
    assert_eq!(claimed.iter().map(|r| r.id).collect::<Vec<_>>(), [run.id]);
}

/// A renewal counts from now.
pub async fn a_lease_expires(fixture: &Fixture) {
    let node = fixture.node_for(10_000).await;
    fixture.clock.advance(9_999);
    assert!(renews(fixture, node, 10_000).await);
    fixture.clock.advance(9_999);
    assert!(!fixture.store.register_node("b", 1).await.expect("b").first);
    fixture.clock.advance(1);
    assert!(fixture.store.register_node("c", 1).await.expect("c").first);
}

/// Other nodes may have taken over: the node has to register again.
pub async fn renewing_late_is_refused(fixture: &Fixture) {
    let node = fixture.node_for(10_000).await;
    fixture.clock.advance(10_000);
    assert!(!renews(fixture, node, 10_000).await);
    let stranger = NodeId(999_999);
    assert!(!renews(fixture, stranger, 10).await);
}

/// After an orderly stop no other node has to wait.
pub async fn released_lease_ends_at_once(fixture: &Fixture) {
    let node = fixture.node_for(10_000).await;
    fixture.store.release_lease(node).await.expect("releases");
    assert!(!renews(fixture, node, 10_000).await);
    assert!(
        fixture
            .store
            .register_node("next", 10)
            .await
            .expect("next")
            .first
    );
}

/// A node that does not reach the broker leaves runs to one that does. Only live nodes count, and never the node itself.
pub async fn a_renewal_tells_when_others_reached_the_broker(fixture: &Fixture) {
    let renew = async |node, lease_ms, at: Option<Timestamp>| {
        let renewed = fixture.store.renew_lease(node, lease_ms, at).await;
        renewed.expect("answers")
    };
    let others = |at| {
        Some(RenewedLease {
            has_others: true,
            other_reached_broker_at: at,
        })
    };
    let one = fixture.node_for(10_000).await;
    let alone = renew(one, 10_000, Some(fixture.now())).await;
    assert_eq!(alone, Some(RenewedLease::default()));
    let two = fixture.node_for(10_000).await;
    let three = fixture.node_for(10_000).await;
    let before = fixture.now();
    assert_eq!(renew(two, 10_000, None).await, others(Some(before)));
    assert_eq!(renew(one, 10_000, Some(before)).await, others(None));
    fixture.clock.advance(1_000);
    let earlier = fixture.now().minus_ms(500);
    renew(two, 20_000, Some(earlier)).await;
    assert_eq!(renew(three, 10_000, None).await, others(Some(earlier)));
    // The clock of a node may be ahead.
    let ahead = fixture.now().plus_ms(60_000);
    renew(one, 10_000, Some(ahead)).await;
    let now = fixture.now();
    assert_eq!(renew(three, 10_000, None).await, others(Some(now)));
    // A node that rejoins has to reach the broker again.
    let again = fixture.store.rejoin_node(one, "one", 10_000).await;
    let again = again.expect("rejoins");
    assert_eq!(renew(three, 10_000, None).await, others(Some(earlier)));
    assert_eq!(renew(again, 10_000, None).await, others(Some(earlier)));
    fixture.clock.advance(10_000);
    assert_eq!(renew(three, 10_000, Some(now)).await, None, "it expired");
    let left = renew(two, 10_000, Some(earlier)).await;
    assert_eq!(left, Some(RenewedLease::default()), "alone again");
}

/// A cluster may run for months in which no node starts and some rejoin. The row of a node with claims stays, because other
/// nodes find them by it.
pub async fn nodes_that_ended_long_ago_are_deleted(fixture: &Fixture) {
    const A_DAY_MS: u64 = 24 * 3_600_000;
    fixture.apply(&[by_hand("a")]).await;
    for rejoins in [true, false] {
        let old = fixture.node_for(10_000).await;
        let live = fixture.node().await;
        let delete_old = async || {
            if rejoins {
                let again = fixture.store.rejoin_node(live, "live", 10_000).await;
                again.expect("rejoins")
            } else {
                fixture.node().await
            }
        };
        let runs = fixture.trigger("a").await;
        assert_eq!(fixture.claim(old).await.len(), 1);
        fixture.clock.advance(A_DAY_MS + 10_001);
        let next = delete_old().await;
        let taken_over = fixture.claim(next).await;
        let taken_over: Vec<_> = taken_over.iter().map(|run| run.id).collect();
        assert_eq!(taken_over, runs, "{rejoins}");
        delete_old().await;
        let claimed = fixture.store.claim_waiting(old, 0, 10).await;
        refused(claimed, ErrorKind::Conflict, &old.0.to_string());
        let cancelled = fixture.store.cancel_run(runs[0], &actor("a test")).await;
        cancelled.expect("cancels");
    }
}

/// `@reboot`: when the first node of a cluster starts, and not when others join.
pub async fn startup_jobs_run_once_per_start(fixture: &Fixture) {
    let mut paused = job_with("paused", Schedule::Startup);
    paused.enabled = Some(false);
    fixture
        .apply(&[job_with("boot", Schedule::Startup), paused])
        .await;
    let one = fixture.node_for(10_000).await;
    fixture.node_for(10_000).await;
    let runs = fixture.claim(one).await;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].kind, RunKind::Startup);
    assert_eq!(runs[0].fire_at, fixture.now());
    assert_eq!(runs[0].job.spec.name.as_str(), "boot");
    fixture.clock.advance(20_000);
    let again = fixture.node().await;
    let runs = fixture.claim(again).await;
    assert_eq!(
        runs.len(),
        2,
        "the one taken over and the one of this start"
    );
}

/// No node would find the claims of an unknown one.
pub async fn unknown_node_cannot_claim(fixture: &Fixture) {
    let stranger = NodeId(999_999);
    fixture.apply(&[super::fixture::each_second("a")]).await;
    fixture.clock.advance(1_000);
    let request = FireDueRequest {
        node: stranger,
        horizon_ms: 0,
        limit: 10,
        max_runs: usize::MAX,
    };
    let fired = fixture.store.fire_due(request, &EachFireTime).await;
    refused(fired, ErrorKind::Conflict, "999999");
    fixture.store.trigger(&ask("a")).await.expect("triggers");
    let claimed = fixture.store.claim_waiting(stranger, 0, 10).await;
    refused(claimed, ErrorKind::Conflict, "999999");
}

/// All nodes see the same id, after each start.
pub async fn a_store_has_an_id(fixture: &Fixture) {
    let id = fixture.store.store_id().await.expect("an id");
    assert_ne!(id.0, 0);
    assert_eq!(fixture.store.store_id().await.expect("an id"), id);
    let other = fixture.harness.open().await;
    assert_eq!(other.store_id().await.expect("an id"), id);
}
