//! Runs that are triggered by hand: over the API, or by a message on the broker.

use std::sync::Arc;

use crate::claims::NodeClaims;
use crate::database_clock::DatabaseClock;
use crate::liveness::broker_reach::BrokerReach;
use crate::quotas::{NamespaceQuotas, QuotaRefusal};
use cueline_runtime::Activator;
use cueline_store::{Store, StoreError, TriggerOutcome, TriggerRequest};

/// Why a job was not triggered.
#[derive(Debug)]
pub(crate) enum TriggerError {
    Store(StoreError),
    Quota(QuotaRefusal),
}

impl From<StoreError> for TriggerError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<QuotaRefusal> for TriggerError {
    fn from(refusal: QuotaRefusal) -> Self {
        Self::Quota(refusal)
    }
}

/// Writes the runs of a trigger request. Due runs are written as claimed by this node and go to its wheel at once.
#[derive(Clone)]
pub(crate) struct ManualTrigger {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) broker_reach: Arc<BrokerReach>,
    pub(crate) quotas: Arc<NamespaceQuotas>,
    pub(crate) claim: Activator,
    pub(crate) max_claimed: usize,
}

impl ManualTrigger {
    /// Do not cancel this call. A run that is claimed for this node in the store but missing on its wheel is
    /// stranded.
    pub(crate) async fn trigger(
        &self,
        request: &TriggerRequest,
    ) -> Result<TriggerOutcome, TriggerError> {
        let namespace = request.job.namespace();
        self.quotas.admit_trigger(&namespace, self.clock.now())?;
        // A node at its memory limit leaves the runs unclaimed for any node with room, and one that does not reach the broker
        // for any node that does.
        let has_room = self.claims.claimed_count() < self.max_claimed;
        let may_claim = has_room && !self.broker_reach.is_cut_off(self.clock.now());
        let node = self.claims.node().filter(|_| may_claim);
        let triggered = self.store.trigger_claimed(node, request).await;
        if let Err(e) = &triggered
            && e.is_outcome_unknown()
        {
            self.claims.set_uncertain();
        }
        let (triggered, runs) = triggered?;
        if !triggered.duplicate {
            self.quotas.add_waiting(&namespace, triggered.runs.len());
        }
        if runs.is_empty() {
            self.claim.wake();
        }
        self.claims.schedule(runs);
        Ok(triggered)
    }
}
