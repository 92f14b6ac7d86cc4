//! Records the starts of attempts in the executor's start log, before their handlers run.
//!
//! When this worker dies, the failover reads the log. An attempt that is not in it has not started. Its trigger may be
//! in the queue, on the way, or in the journal of the dead worker.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cueline_model::{AttemptId, Session, Timestamp};
use cueline_protocol::{StartRecord, VERSION, encode};
use cueline_runtime::{Backoff, Linger};
use tokio::sync::{Notify, mpsc};

use crate::identity::AttemptKey;
use crate::lease::{BrokerLease, LeaseTimings};
use crate::settings::Settings;
use crate::status::WorkerStatus;

/// The most attempts in one record, which then has at most 12 KiB.
const MAX_ATTEMPTS: usize = 256;
/// Records during a large burst of triggers. RabbitMQ delivers few triggers at once, and would get many small records.
const IN_LARGE_BURST: Linger = Linger::new(MAX_ATTEMPTS, Duration::from_millis(10));
/// Nothing more starts while this many attempts wait for their record.
const MAX_WAITING: usize = 10_000;

/// After this time without a record, or half of `failover_after` if that is less, heartbeats say that the worker
/// accepts no triggers.
const UNRECORDED_AFTER: Duration = Duration::from_secs(2);

/// How long no start could be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Delay {
    /// Not at all, or shortly.
    Short,
    /// So long that the schedulers should choose other executors, and declare the log.
    Lasting,
    /// For `failover_after`. The worker returns what has not started.
    TooLong,
}

/// Attempts whose start is not recorded yet.
#[derive(Debug, Default)]
pub(crate) struct StartQueue {
    waiting: Mutex<VecDeque<AttemptKey>>,
    filled: Notify,
    /// When the recorder first tried to write its present record, on the boot clock. `None` if it has written all.
    tried_since_ms: Mutex<Option<i64>>,
}

impl StartQueue {
    /// How long no start could be recorded, at `now_ms` on the boot clock.
    pub(crate) fn delay(&self, timings: &LeaseTimings, now_ms: i64) -> Delay {
        let since_ms = *lock(&self.tried_since_ms);
        let waited_ms = since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        let waited = Duration::from_millis(u64::try_from(waited_ms).unwrap_or(0));
        if waited >= timings.failover_after {
            Delay::TooLong
        } else if waited >= UNRECORDED_AFTER.min(timings.failover_after / 2) {
            Delay::Lasting
        } else {
            Delay::Short
        }
    }

    /// Drops the attempts that are in no record yet, because they have ended.
    pub(crate) fn clear(&self) {
        lock(&self.waiting).clear();
    }

    fn set_tried_since(&self, ms: Option<i64>) {
        *lock(&self.tried_since_ms) = ms;
    }

    pub(crate) fn push(&self, keys: Vec<AttemptKey>) {
        lock(&self.waiting).extend(keys);
        self.filled.notify_one();
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.waiting).len() >= MAX_WAITING
    }

    /// Takes attempts of one store, in order. Waits for the first.
    async fn take(&self) -> Vec<AttemptKey> {
        loop {
            let filled = self.filled.notified();
            let keys = self.take_now();
            if !keys.is_empty() {
                return keys;
            }
            filled.await;
        }
    }

    fn take_now(&self) -> Vec<AttemptKey> {
        let mut waiting = lock(&self.waiting);
        let store = waiting.front().map(|key| key.run.store);
        let of_store = waiting.iter().take(MAX_ATTEMPTS);
        let count = of_store
            .take_while(|key| Some(key.run.store) == store)
            .count();
        waiting.drain(..count).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the records.
pub(crate) struct StartRecorder {
    pub(crate) settings: Arc<Settings>,
    pub(crate) lease: Arc<BrokerLease>,
    pub(crate) queue: Arc<StartQueue>,
    pub(crate) status: Arc<WorkerStatus>,
    /// Attempts whose record the broker has confirmed.
    pub(crate) recorded: mpsc::Sender<Vec<AttemptKey>>,
}

impl StartRecorder {
    /// Records starts as they come. Ends with the event loop.
    pub(crate) async fn run(self) {
        let (mut session, mut number) = (self.lease.session(), 0);
        loop {
            let keys = self.queue.take().await;
            if session != self.lease.session() {
                (session, number) = (self.lease.session(), 0);
            }
            self.record(session, number, &keys).await;
            number += 1;
            let count = keys.len();
            if self.recorded.send(keys).await.is_err() {
                return std::future::pending().await;
            }
            if self.status.burst_gate.is_closed_by_large_burst() {
                IN_LARGE_BURST.pause_after(count).await;
            }
        }
    }

    /// Writes one record, and tries again until the broker has confirmed it. Without a confirmation the log may have
    /// the record, so no other one may take its number.
    ///
    /// Meanwhile the event loop may give its attempts back. It then ignores the confirmation. The record does no harm
    /// once the returns are reported: the runs have newer attempts. Before that, a failover ends the attempts `lost`.
    async fn record(&self, session: Session, number: u64, keys: &[AttemptKey]) {
        let Some(first) = keys.first() else { return };
        let record = StartRecord::Starts {
            v: VERSION,
            incarnation: self.settings.incarnation.clone(),
            session,
            number,
            at: Timestamp::from_millis(self.settings.clock.now_ms()),
            store: first.run.store,
            attempts: keys.iter().map(|key| key.id()).collect::<Vec<AttemptId>>(),
        };
        let (log, record) = (self.settings.start_log(), Bytes::from(encode(&record)));
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let queue = &self.queue;
        queue.set_tried_since(Some(self.settings.boot_clock.up_ms()));
        while let Err(error) = self.settings.broker.append(&log, record.clone()).await {
            tracing::warn!(%error, attempts = keys.len(), "failed to record the starts of attempts; trying again. Check the start log and the worker's right to append to it");
            tokio::time::sleep(backoff.next_wait()).await;
        }
        queue.set_tried_since(None);
    }
}
