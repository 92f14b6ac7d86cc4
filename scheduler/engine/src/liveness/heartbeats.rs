//! Receives heartbeats of executors from the broker, stores them in batches, and records them in the registry.

use std::collections::BTreeMap;
use std::sync::Arc;

use cueline_broker::{Announcement, Listener};
use cueline_model::{ExecutorId, Heartbeat};
use cueline_protocol::{HeartbeatMessage, decode};
use cueline_runtime::Stop;
use cueline_store::{Store, StoreError};

use super::queue_provisioner::QueueProvisioner;
use super::registry::Registry;
use super::self_check::SelfCheck;
use crate::database_clock::DatabaseClock;
use crate::pipeline::node_claims::NodeClaims;

pub(crate) struct Heartbeats {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) queues: Arc<QueueProvisioner>,
    pub(crate) claims: Arc<NodeClaims>,
}

/// The most heartbeats stored at once.
const BATCH: usize = 500;

impl Heartbeats {
    /// Runs until the stop.
    pub(crate) async fn run(self, mut inbox: Listener, stop: Stop) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                count = inbox.recv_many(&mut batch, BATCH) => {
                    if count == 0 { return; }
                    match self.record(&batch).await {
                        // After a full batch more heartbeats may be waiting.
                        Ok(()) if count < BATCH => self.record_flush(),
                        Ok(()) => {}
                        Err(e) => tracing::error!(error = %e, "failed to store heartbeats; executor timeouts are paused until a later batch is stored"),
                    }
                    batch.clear();
                }
                () = tokio::time::sleep(self.self_check.intervals.every) => self.record_flush(),
                () = stop.soft() => return,
            }
            self.expire();
        }
    }

    /// Stores and registers the heartbeats of a batch.
    pub(crate) async fn record(&self, batch: &[Announcement]) -> Result<(), StoreError> {
        // The last heartbeat of an executor replaces the earlier ones.
        let last: BTreeMap<ExecutorId, Heartbeat> = batch
            .iter()
            .filter_map(read)
            .map(|heartbeat| (heartbeat.executor.clone(), heartbeat))
            .collect();
        if last.is_empty() {
            return Ok(());
        }
        let heartbeats: Vec<Heartbeat> = last.into_values().collect();
        // The store comes first, because a broadcast is planned from the executors in the store.
        self.store.record_heartbeats(&heartbeats).await?;
        let now = self.clock.now();
        let mut has_changed = false;
        for heartbeat in heartbeats {
            let is_news = self.registry.record(&heartbeat, now);
            // A draining executor may be waiting for its queue, because its own rights do not let it declare one.
            if (is_news || heartbeat.draining) && !heartbeat.gone {
                self.queues.request(heartbeat.executor, is_news, now);
            }
            has_changed |= is_news;
        }
        if has_changed {
            self.claims.retry_unroutable();
        }
        Ok(())
    }

    /// Registers the executors whose last heartbeat, at any node, is recent. A starting node can then route at once.
    pub(crate) async fn restore(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        for known in self.store.executors().await? {
            let at = known.last_heartbeat_at.min(now);
            if !self.registry.is_expired(at, now) {
                self.registry.record(&known.heartbeat, at);
            }
        }
        Ok(())
    }

    /// Notes that all heartbeats received so far are stored.
    pub(crate) fn record_flush(&self) {
        if self.self_check.record_flush(self.clock.now()) {
            tracing::info!("heartbeat writes caught up; executor timeouts resume");
        }
    }

    /// Removes silent executors from the candidates.
    pub(crate) fn expire(&self) {
        if self.registry.expire(self.clock.now()) {
            self.claims.retry_unroutable();
        }
    }
}

fn read(announcement: &Announcement) -> Option<Heartbeat> {
    match decode::<HeartbeatMessage>(&announcement.payload) {
        Ok(message) => Some(message.heartbeat),
        Err(e) => {
            tracing::warn!(error = %e, "ignored a heartbeat that cannot be read; check the version of its worker");
            None
        }
    }
}
