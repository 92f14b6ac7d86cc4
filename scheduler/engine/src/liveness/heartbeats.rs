//! Receives heartbeats of executors from the broker, verifies them, stores them in batches, and records them in the
//! registry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Announcement, Listener};
use cueline_model::{ExecutorId, Heartbeat, Timestamp};
use cueline_protocol::{HeartbeatMessage, Incarnation};
use cueline_runtime::{Backoff, Stop};
use cueline_store::{Store, StoreError};
use tokio::time::{Instant, sleep_until};

use super::heartbeat_reader::HeartbeatReader;
use super::incarnations::Incarnations;
use super::lease_times::LeaseTimesCheck;
use super::name_conflicts::NameConflicts;
use super::queue_provisioner::QueueProvisioner;
use super::registry::Registry;
use super::self_check::SelfCheck;
use crate::claims::NodeClaims;
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;

pub(crate) struct Heartbeats {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) queues: Arc<QueueProvisioner>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) name_conflicts: Arc<NameConflicts>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) reader: HeartbeatReader,
    pub(crate) incarnations: Incarnations,
    pub(crate) lease_times: LeaseTimesCheck,
    /// The last heartbeat of each executor that was received and is not stored yet.
    pub(crate) unstored: BTreeMap<ExecutorId, UnstoredHeartbeat>,
}

/// A heartbeat that was received and is not stored yet.
#[derive(Debug, Clone)]
pub(crate) struct UnstoredHeartbeat {
    received_at: Timestamp,
    heartbeat: Heartbeat,
}

/// What came of heartbeats that were received together.
#[derive(Debug, Default)]
struct Judged {
    lost: u64,
    /// Whether one changes how runs are routed.
    changes_routing: bool,
}

/// The most heartbeats stored at once.
const BATCH: usize = 500;
/// Signatures verified without giving other tasks a turn. Each one takes up to a tenth of a millisecond.
const VERIFIED_AT_ONCE: usize = 32;
/// The most executors whose heartbeats wait for the store. Past it heartbeats are lost.
const MAX_UNSTORED: usize = 10_000;

impl Heartbeats {
    /// Runs until the stop.
    pub(crate) async fn run(mut self, mut inbox: Listener, stop: Stop) {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            tokio::select! {
                is_open = inbox.arrived() => {
                    if !is_open { return; }
                }
                () = tokio::time::sleep(self.self_check.intervals.every) => {}
                () = stop.soft() => return,
            }
            let received_at = self.linger(&mut inbox, &stop).await;
            match self.flush(received_at).await {
                Ok(()) => backoff.reset(),
                Err(e) => {
                    tracing::error!(error = %e, "failed to store heartbeats; executor timeouts are paused until they are stored");
                    tokio::select! {
                        () = tokio::time::sleep(backoff.next_wait()) => {}
                        () = stop.soft() => return,
                    }
                }
            }
            self.expire();
        }
    }

    /// Stores and registers all heartbeats that have arrived. Those of a failed call are stored by the next one.
    pub(crate) async fn store_waiting(&mut self, inbox: &mut Listener) -> Result<(), StoreError> {
        let received_at = self.clock.now();
        self.receive(inbox, received_at).await;
        self.flush(received_at).await
    }

    /// Receives heartbeats until one changes how runs are routed, or for a moment. Executors send them one at a time. A
    /// transaction for each would be too many in a large fleet. Returns the time up to which all were received.
    async fn linger(&mut self, inbox: &mut Listener, stop: &Stop) -> Timestamp {
        let until = Instant::now() + self.self_check.intervals.linger;
        // A failed call has left some.
        let mut is_due = !self.unstored.is_empty();
        loop {
            let received_at = self.clock.now();
            is_due |= self.receive(inbox, received_at).await;
            if is_due || self.unstored.is_empty() || self.unstored.len() >= BATCH {
                return received_at;
            }
            tokio::select! {
                is_open = inbox.arrived() => is_due = !is_open,
                () = sleep_until(until) => is_due = true,
                () = stop.soft() => is_due = true,
            }
        }
    }

    /// Keeps the heartbeats that have arrived. Returns whether one changes how runs are routed.
    async fn receive(&mut self, inbox: &mut Listener, received_at: Timestamp) -> bool {
        let mut received = Vec::new();
        inbox.try_recv_many(&mut received, usize::MAX);
        let (mut lost, mut changes_routing) = (inbox.take_lost(), false);
        for part in received.chunks(VERIFIED_AT_ONCE) {
            let judged = self.judge_all(part, received_at);
            lost += judged.lost;
            changes_routing |= judged.changes_routing;
            tokio::task::yield_now().await;
        }
        if lost > 0 {
            tracing::warn!(
                lost,
                "lost heartbeats, because they arrive faster than the store writes them; executor timeouts start again"
            );
            self.self_check.restart_counting(received_at);
        }
        changes_routing
    }

    /// Stores and registers what was received until then.
    async fn flush(&mut self, received_at: Timestamp) -> Result<(), StoreError> {
        self.store_unstored().await?;
        // Heartbeats may have arrived since. This flush says nothing about them.
        if self.self_check.record_flush(received_at) {
            tracing::info!("heartbeat writes caught up; executor timeouts resume");
        }
        Ok(())
    }

    /// Keeps the heartbeats that count, until they are stored.
    fn judge_all(&mut self, received: &[Announcement], received_at: Timestamp) -> Judged {
        let mut judged = Judged::default();
        for announcement in received {
            let message = self.reader.read(announcement, received_at);
            let Some(heartbeat) = message.and_then(|m| self.judge(m, received_at)) else {
                continue;
            };
            judged.changes_routing |= self.registry.changes_routing(&heartbeat, received_at);
            // The last heartbeat of an executor replaces the earlier ones.
            let executor = heartbeat.executor.clone();
            if self.unstored.len() < MAX_UNSTORED || self.unstored.contains_key(&executor) {
                let unstored = UnstoredHeartbeat {
                    received_at,
                    heartbeat,
                };
                self.unstored.insert(executor, unstored);
            } else {
                judged.lost += 1;
            }
        }
        judged
    }

    /// The heartbeat as it counts. `None` if its process was refused, because another one has its name.
    fn judge(&mut self, message: HeartbeatMessage, now: Timestamp) -> Option<Heartbeat> {
        let HeartbeatMessage {
            mut heartbeat,
            sender,
            lease,
            ..
        } = message;
        let executor = &heartbeat.executor;
        if let Some(sender) = sender {
            let incarnation = Incarnation {
                incarnation: heartbeat.incarnation.clone(),
                process: sender.process,
            };
            let judgement = self
                .incarnations
                .judge(executor, incarnation, sender.sent_at, now);
            for conflict in judgement.conflicts {
                self.name_conflicts.add(conflict);
            }
            if judgement.is_ignored {
                return None;
            }
        }
        heartbeat.refusal = self.lease_times.refusal(executor, lease, now);
        Some(heartbeat)
    }

    async fn store_unstored(&mut self) -> Result<(), StoreError> {
        // The store would take an old heartbeat for a new one. Its executor may have died since.
        let now = self.clock.now();
        self.unstored
            .retain(|_, unstored| !self.registry.is_expired(unstored.received_at, now));
        while !self.unstored.is_empty() {
            let batch: Vec<UnstoredHeartbeat> =
                self.unstored.values().take(BATCH).cloned().collect();
            self.record(&batch).await?;
            for unstored in &batch {
                self.unstored.remove(&unstored.heartbeat.executor);
            }
        }
        Ok(())
    }

    async fn record(&self, batch: &[UnstoredHeartbeat]) -> Result<(), StoreError> {
        let heartbeats: Vec<Heartbeat> = batch.iter().map(|u| u.heartbeat.clone()).collect();
        // The store comes first, because a broadcast is planned from the executors in the store.
        self.store.record_heartbeats(&heartbeats).await?;
        add(&self.counters.stored_heartbeats, heartbeats.len());
        let now = self.clock.now();
        let mut has_changed = false;
        for unstored in batch {
            let heartbeat = &unstored.heartbeat;
            let is_news = self.registry.record(heartbeat, unstored.received_at);
            // A draining executor may be waiting for its queue, because its own rights do not let it declare one.
            if (is_news || heartbeat.draining) && !heartbeat.gone {
                self.queues
                    .request(heartbeat.executor.clone(), is_news, now);
            }
            has_changed |= is_news;
        }
        if has_changed {
            self.claims.retry_unroutable();
        }
        self.claims.wake_room();
        Ok(())
    }

    /// Registers the executors whose last heartbeat, at any node, is recent. A starting node can then route at once.
    pub(crate) async fn restore(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        for known in self.store.executors().await? {
            let at = known.last_heartbeat_at.min(now);
            if !self.registry.is_expired(at, now) {
                self.registry.record(&known.heartbeat, at);
                self.reader.add_known(&known.heartbeat);
            }
        }
        Ok(())
    }

    /// Removes silent executors from the candidates.
    pub(crate) fn expire(&self) {
        if self.registry.expire(self.clock.now()) {
            self.claims.retry_unroutable();
        }
    }
}
