//! Sends cancellations to executors, repeatedly until each has taken effect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::Broker;
use cueline_model::StoreId;
use cueline_protocol::{Control, VERSION, encode};
use cueline_runtime::{Duty, Next};
use cueline_store::{PendingCancellation, Store, StoreError};

use crate::addresses::control_channel;
use crate::error::EngineError;
use crate::liveness::registry::Registry;

pub(crate) struct Cancellations {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) registry: Arc<Registry>,
    pub(crate) store_id: StoreId,
}

/// Cancellations per turn, roughly. The rest is sent once these have taken effect.
const BATCH: usize = 1_000;
/// Search depth. Up to this many, cancellations for dead executors cannot block those for live ones.
const MAX_SEARCHED: usize = 64_000;
/// A cancellation without effect is sent again after this time.
const RESEND_AFTER: Duration = Duration::from_secs(1);
/// Poll interval while nothing is pending. Another node may have accepted a request.
const POLL: Duration = Duration::from_secs(5);

impl Duty for Cancellations {
    type Error = EngineError;

    fn name(&self) -> &'static str {
        "cancellations"
    }

    async fn activate(&mut self) -> Result<Next, EngineError> {
        let (pending, is_any) = self.pending_at_live_executors().await?;
        for cancel in &pending {
            let message = Control::Cancel {
                v: VERSION,
                store: self.store_id,
                run: cancel.run,
            };
            let channel = control_channel(&cancel.executor);
            self.broker
                .announce(&channel, Bytes::from(encode(&message)))
                .await?;
        }
        Ok(Next::After(if is_any { RESEND_AFTER } else { POLL }))
    }
}

impl Cancellations {
    /// The cancellations that can be sent now, and whether any are pending at all.
    async fn pending_at_live_executors(
        &self,
    ) -> Result<(Vec<PendingCancellation>, bool), StoreError> {
        let mut limit = BATCH;
        loop {
            let mut pending = self.store.pending_cancellations(limit).await?;
            let count = pending.len();
            pending.retain(|c| self.registry.is_alive(&c.executor));
            if count < limit || pending.len() >= BATCH || limit >= MAX_SEARCHED {
                return Ok((pending, count > 0));
            }
            limit *= 8;
        }
    }
}
