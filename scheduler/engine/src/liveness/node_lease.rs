//! This node's lease. While it is renewed, no other node takes over the runs that this node has claimed.
//!
//! A node that does not reach the broker while another one does hands its claims over, and keeps its lease.

use std::sync::Arc;

use cueline_runtime::{Activator, Duty, Next};
use cueline_store::{NodeId, RenewedLease, Store, StoreError};

use super::broker_reach::BrokerReach;
use super::self_check::SelfCheck;
use crate::claims::{NodeClaims, Unpublished};
use crate::database_clock::DatabaseClock;

/// Registers the node, renews its lease, and follows the database's clock.
pub(crate) struct NodeLease {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) broker_reach: Arc<BrokerReach>,
    pub(crate) claim: Activator,
    pub(crate) node_name: String,
    pub(crate) lease_ms: u64,
    /// The renewals in a row that found this node without the broker and another one with it.
    pub(crate) turns_cut_off: u32,
}

/// The claims are handed over at this renewal, which follows the first one by one and a half seconds. A node that reaches
/// the broker has another message of its own within a second: after its machine stood still, or after its clock stepped.
const HAND_OVER_AT_TURN: u32 = 4;
/// Claims released in one transaction.
const MAX_RELEASED: usize = 2_000;

/// A larger difference between local and database clock is logged (G14).
const MAX_OFFSET_MS: u64 = 500;

impl Duty for NodeLease {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "node lease"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        self.renew().await?;
        Ok(Next::After(self.broker_reach.renew_after(self.clock.now())))
    }
}

impl NodeLease {
    /// Renews the lease. Registers the node first if it is not registered.
    pub(crate) async fn renew(&mut self) -> Result<(), StoreError> {
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
        let reached_broker_at = self.broker_reach.own();
        let renewed = self
            .store
            .renew_lease(node, self.lease_ms, reached_broker_at)
            .await?;
        if let Some(renewed) = renewed {
            return self.compare_reach(node, renewed).await;
        }
        tracing::warn!(
            node = node.0,
            "node lease expired; dropping all claims and joining again. Check the load of this machine and of the database"
        );
        self.self_check.restart_listening(self.clock.now());
        self.rejoin(node).await
    }

    /// Hands the claims over if another node reaches the broker and this one does not.
    async fn compare_reach(
        &mut self,
        node: NodeId,
        renewed: RenewedLease,
    ) -> Result<(), StoreError> {
        self.broker_reach.record(renewed);
        let Some(why) = self.broker_reach.problem(self.clock.now()) else {
            if self.turns_cut_off > 0 {
                tracing::info!("this node claims runs again");
            }
            self.turns_cut_off = 0;
            return Ok(());
        };
        self.turns_cut_off = self.turns_cut_off.saturating_add(1);
        if self.turns_cut_off == 1 {
            tracing::warn!(
                node = node.0,
                error = %why,
                "another node reaches the broker and this one does not; claiming nothing. Check the network between this machine and the broker"
            );
        }
        // Later turns find claims that a call made while it was handed over.
        let is_left = self.turns_cut_off > HAND_OVER_AT_TURN && self.claims.claimed_count() > 0;
        if self.turns_cut_off == HAND_OVER_AT_TURN || is_left {
            return self.hand_over(node).await;
        }
        Ok(())
    }

    /// Lets other nodes have all claims. Runs that were certainly not published are released and routed again. Those that
    /// are being published, or may be, are left as by a lost node: another node publishes the same attempt to the same
    /// executor.
    async fn hand_over(&self, node: NodeId) -> Result<(), StoreError> {
        self.release(node, self.claims.take_unpublished()).await;
        self.rejoin(node).await?;
        tracing::warn!(
            node = node.0,
            "handed over all claims to the nodes that reach the broker"
        );
        Ok(())
    }

    /// Ends when another node is not known any more to reach the broker, at most half a lease after it did. What is left
    /// then is claimed by others as the runs of a lost node.
    async fn release(&self, node: NodeId, unpublished: Unpublished) {
        // What policy `skip` would skip counts as postponed, not as missed. The others keep their due times: that of a retry
        // and of a backfill is their place in their lane.
        let postponed = Some(self.clock.now());
        let postponed = unpublished
            .skipped_if_late
            .chunks(MAX_RELEASED)
            .map(|part| (part, postponed));
        let others = unpublished
            .others
            .chunks(MAX_RELEASED)
            .map(|part| (part, None));
        for (part, due_at) in postponed.chain(others) {
            if !self.broker_reach.is_cut_off(self.clock.now()) {
                tracing::debug!("stopped releasing runs; any node claims the others");
                return;
            }
            if let Err(e) = self.store.release_claims(node, part, due_at).await {
                tracing::warn!(error = %e, runs = part.len(), "failed to release runs; other nodes claim them all the same");
            }
        }
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
