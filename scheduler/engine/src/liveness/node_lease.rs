//! This node's lease. While it is renewed, no other node takes over the runs that this node has claimed.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Activator, Duty, Next};
use cueline_store::{NodeId, Store, StoreError};

use super::self_check::SelfCheck;
use crate::claims::NodeClaims;
use crate::database_clock::DatabaseClock;

/// Registers the node, renews its lease, and follows the database's clock.
pub(crate) struct NodeLease {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) claim: Activator,
    pub(crate) node_name: String,
    pub(crate) lease_ms: u64,
}

/// A larger difference between local and database clock is logged (G14).
const MAX_OFFSET_MS: u64 = 500;

impl Duty for NodeLease {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "node lease"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        self.renew().await?;
        Ok(Next::After(Duration::from_millis(self.lease_ms / 3)))
    }
}

impl NodeLease {
    /// Renews the lease. Registers the node first if it is not registered.
    pub(crate) async fn renew(&self) -> Result<(), StoreError> {
        self.adopt_database_clock().await?;
        let Some(node) = self.claims.node() else {
            return self.register().await;
        };
        if self.claims.take_uncertain() {
            tracing::warn!(
                node = node.0,
                "a store call failed with an unknown result; dropping all claims and claiming again. Check the database"
            );
            return self.rejoin(node).await;
        }
        if self.store.renew_lease(node, self.lease_ms).await? {
            return Ok(());
        }
        tracing::warn!(
            node = node.0,
            "node lease expired; dropping all claims and joining again. Check the load of this machine and of the database"
        );
        self.self_check.restart_listening(self.clock.now());
        self.rejoin(node).await
    }

    async fn adopt_database_clock(&self) -> Result<(), StoreError> {
        let asked_ms = self.clock.local_ms();
        let offset = self.clock.adopt(asked_ms, self.store.now().await?);
        if offset.unsigned_abs() > MAX_OFFSET_MS {
            tracing::warn!(
                offset_ms = offset,
                "local clock differs from the database's clock; due times follow the database. Synchronise this machine's clock"
            );
        }
        Ok(())
    }

    async fn register(&self) -> Result<(), StoreError> {
        let registered = self
            .store
            .register_node(&self.node_name, self.lease_ms)
            .await?;
        self.self_check.restart_listening(self.clock.now());
        self.claims.set_node(registered.node);
        self.claim.wake();
        Ok(())
    }

    /// Continues as a new node. The old node's runs, known here or not, are claimed again by any node.
    async fn rejoin(&self, old: NodeId) -> Result<(), StoreError> {
        self.claims.forget_all();
        let joined = self
            .store
            .rejoin_node(old, &self.node_name, self.lease_ms)
            .await;
        // Other stages may have claimed runs for the old node during the call.
        self.claims.forget_all();
        match joined {
            Ok(node) => {
                self.claims.set_node(node);
                self.claim.wake();
                Ok(())
            }
            Err(e) => {
                self.claims.set_uncertain();
                Err(e)
            }
        }
    }
}
