//! This node's lease: as long as it is renewed, the runs that the node has claimed are its own.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Duty, Next};
use cueline_store::{NodeId, StoreError};

use crate::shared::Shared;

/// Registers the node and renews its lease.
pub(crate) struct Node(pub(crate) Arc<Shared>);

/// G14: a node whose clock is further off says so.
const MAX_OFFSET_MS: u64 = 500;

impl Duty for Node {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "node"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        keep(&self.0).await?;
        Ok(Next::After(Duration::from_millis(
            self.0.options.lease_ms / 3,
        )))
    }
}

/// Registers the node if it is not, renews its lease if it is.
pub(crate) async fn keep(shared: &Shared) -> Result<(), StoreError> {
    let offset = shared.set_offset(shared.store.now().await?);
    if offset.unsigned_abs() > MAX_OFFSET_MS {
        tracing::warn!(
            offset_ms = offset,
            "this machine's clock differs from the database's; times follow the database"
        );
    }
    let lease = shared.options.lease_ms;
    if let Some(node) = shared.node() {
        if shared.take_doubt() {
            tracing::warn!(
                node = node.0,
                "what this node has claimed is in doubt after a failure; it claims anew"
            );
        } else if shared.store.renew_lease(node, lease).await? {
            return Ok(());
        } else {
            tracing::warn!(
                node = node.0,
                "this node's lease had run out; what it had claimed is given up"
            );
            shared.begin_to_hear();
        }
        return rejoin(shared, node).await;
    }
    let registered = shared
        .store
        .register_node(&shared.options.node_name, lease)
        .await?;
    shared.begin_to_hear();
    shared.set_node(Some(registered.node));
    shared.wakers.claim.wake();
    Ok(())
}

/// Goes on as a new node: whatever the old one had claimed, known here or not, is found by the next claim of whoever comes first.
async fn rejoin(shared: &Shared, old: NodeId) -> Result<(), StoreError> {
    let options = &shared.options;
    shared.forget_all();
    let joined = shared
        .store
        .rejoin_node(old, &options.node_name, options.lease_ms)
        .await;
    // Also what came in meanwhile.
    shared.forget_all();
    match joined {
        Ok(node) => {
            shared.set_node(Some(node));
            shared.wakers.claim.wake();
            Ok(())
        }
        Err(e) => {
            shared.doubt();
            Err(e)
        }
    }
}
