//! Nodes and their leases.

use cueline_model::{RunKind, Schedule};

use super::world::{World, ask, job_with, refused};
use crate::{ErrorKind, FireDueRequest, NodeId};

use super::world::EachFireTime;

/// Only a node that finds nobody alive is the first.
pub async fn first_node_is_told_so(w: &World) {
    let one = w.store.register_node("one", 10_000).await.expect("one");
    let two = w.store.register_node("two", 10_000).await.expect("two");
    assert!(one.first);
    assert!(!two.first);
    assert_ne!(one.node, two.node);
    w.clock.advance(10_000);
    let three = w.store.register_node("one", 10_000).await.expect("three");
    assert!(three.first, "the leases of the others have run out");
    assert_ne!(three.node, one.node);
}

/// A name belongs to one process at a time: after a restart nobody has to wait for the lease of the one before.
pub async fn restart_supersedes(w: &World) {
    w.apply(&[super::world::each_second("a")]).await;
    let old = w.store.register_node("one", 10_000).await.expect("old");
    let run = w.fire_one(old.node).await;
    let new = w.store.register_node("one", 10_000).await.expect("new");
    assert!(new.first);
    assert!(!w.store.renew_lease(old.node, 10).await.expect("answers"));
    let claimed = w.claim(new.node).await;
    assert_eq!(claimed.iter().map(|r| r.id).collect::<Vec<_>>(), [run.id]);
}

/// A lease is renewed from now on.
pub async fn lease_runs_out(w: &World) {
    let node = w.node_for(10_000).await;
    w.clock.advance(9_999);
    assert!(w.store.renew_lease(node, 10_000).await.expect("renews"));
    w.clock.advance(9_999);
    assert!(!w.store.register_node("b", 1).await.expect("b").first);
    w.clock.advance(1);
    assert!(w.store.register_node("c", 1).await.expect("c").first);
}

/// Others may have taken over: the node has to register anew.
pub async fn renewing_late_is_refused(w: &World) {
    let node = w.node_for(10_000).await;
    w.clock.advance(10_000);
    assert!(!w.store.renew_lease(node, 10_000).await.expect("answers"));
    let stranger = NodeId(999_999);
    assert!(!w.store.renew_lease(stranger, 10).await.expect("answers"));
}

/// An orderly stop does not make others wait.
pub async fn released_lease_ends_at_once(w: &World) {
    let node = w.node_for(10_000).await;
    w.store.release_lease(node).await.expect("releases");
    assert!(!w.store.renew_lease(node, 10_000).await.expect("answers"));
    assert!(w.store.register_node("next", 10).await.expect("next").first);
}

/// `@reboot`: when the first node of a cluster starts, and not when others join.
pub async fn startup_jobs_run_once_per_start(w: &World) {
    let mut paused = job_with("paused", Schedule::Startup);
    paused.enabled = Some(false);
    w.apply(&[job_with("boot", Schedule::Startup), paused])
        .await;
    let one = w.node_for(10_000).await;
    w.node_for(10_000).await;
    let runs = w.claim(one).await;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].kind, RunKind::Startup);
    assert_eq!(runs[0].fire_at, w.now());
    assert_eq!(runs[0].job.spec.name.as_str(), "boot");
    w.clock.advance(20_000);
    let again = w.node().await;
    let runs = w.claim(again).await;
    assert_eq!(
        runs.len(),
        2,
        "the one taken over and the one of this start"
    );
}

/// Nobody would ever find what an unknown node had claimed.
pub async fn unknown_node_cannot_claim(w: &World) {
    let stranger = NodeId(999_999);
    w.apply(&[super::world::each_second("a")]).await;
    w.clock.advance(1_000);
    let request = FireDueRequest {
        node: stranger,
        horizon_ms: 0,
        limit: 10,
    };
    let fired = w.store.fire_due(request, &EachFireTime).await;
    refused(fired, ErrorKind::Conflict, "999999");
    w.store.trigger(&ask("a")).await.expect("triggers");
    let claimed = w.store.claim_waiting(stranger, 0, 10).await;
    refused(claimed, ErrorKind::Conflict, "999999");
}

/// All nodes, and each after it started again, have to see the same id.
pub async fn a_store_has_an_id(w: &World) {
    let id = w.store.store_id().await.expect("an id");
    assert_ne!(id.0, 0);
    assert_eq!(w.store.store_id().await.expect("an id"), id);
    let other = w.harness.open().await;
    assert_eq!(other.store_id().await.expect("an id"), id);
}
