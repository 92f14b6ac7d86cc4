//! What is to be reported, and has not been confirmed yet.
//!
//! Nobody ever waits here. Outcomes are always taken: the worker core stops to start and to fetch once the outbox is
//! [full](Outbox::is_full), so what can still come is bounded by what it holds. Everything else is refused when it is
//! full: log lines then stay in their attempt's own bounded buffer.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cueline_model::{AttemptEvent, JobName};
use tokio::sync::Notify;

use crate::stores::AttemptKey;

/// From so many bytes on it is full.
const FULL_BYTES: usize = 64 * 1024 * 1024;
/// What a report counts beside its text.
const OVERHEAD_BYTES: usize = 128;

/// Something to report.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) id: AttemptKey,
    pub(crate) job: JobName,
    pub(crate) body: AttemptEvent,
    /// An answer to a redelivered trigger: it must not be taken for a duplicate of the first report.
    pub(crate) again: bool,
}

impl Report {
    fn bytes(&self) -> usize {
        let text = match &self.body {
            AttemptEvent::Started { .. } | AttemptEvent::Progress { .. } => 0,
            AttemptEvent::Log { lines } => lines.iter().map(|l| l.text.len() + 48).sum(),
            AttemptEvent::Ended { outcome } => {
                outcome.message.as_ref().map_or(0, String::len)
                    + outcome.output.as_ref().map_or(0, String::len)
            }
        };
        OVERHEAD_BYTES + text
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Report>,
    /// Bytes of all that is not confirmed.
    bytes: usize,
    unconfirmed: usize,
    /// Outcomes that the broker has, and of which the journal does not know that yet.
    confirmed: Vec<AttemptKey>,
}

/// The reports of a worker, in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    filled: Notify,
    emptied: Notify,
}

impl Outbox {
    /// Takes these reports, whatever there is already.
    pub(crate) fn push(&self, reports: impl IntoIterator<Item = Report>) {
        let mut queue = self.lock();
        for report in reports {
            queue.bytes += report.bytes();
            queue.unconfirmed += 1;
            queue.waiting.push_back(report);
        }
        drop(queue);
        self.filled.notify_one();
    }

    /// Takes this report unless the outbox is full.
    pub(crate) fn try_push(&self, make: impl FnOnce() -> Report) -> bool {
        if self.is_full() {
            return false;
        }
        self.push([make()]);
        true
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().bytes >= FULL_BYTES
    }

    /// Up to `most` reports and roughly `most_bytes`; waits for the first.
    pub(crate) async fn take(&self, most: usize, most_bytes: usize) -> Vec<Report> {
        loop {
            let filled = self.filled.notified();
            let batch = self.take_now(most, most_bytes);
            if !batch.is_empty() {
                return batch;
            }
            filled.await;
        }
    }

    fn take_now(&self, most: usize, most_bytes: usize) -> Vec<Report> {
        let mut queue = self.lock();
        let mut bytes = 0;
        let mut count = 0;
        for report in queue.waiting.iter().take(most) {
            bytes += report.bytes();
            if count > 0 && bytes > most_bytes {
                break;
            }
            count += 1;
        }
        queue.waiting.drain(..count).collect()
    }

    /// The broker has these, or will never take them.
    pub(crate) fn confirm(&self, reports: &[Report]) {
        let mut queue = self.lock();
        for report in reports {
            queue.bytes = queue.bytes.saturating_sub(report.bytes());
            queue.unconfirmed = queue.unconfirmed.saturating_sub(1);
            if matches!(report.body, AttemptEvent::Ended { .. }) && !report.again {
                queue.confirmed.push(report.id);
            }
        }
        let empty = queue.unconfirmed == 0;
        drop(queue);
        if empty {
            self.emptied.notify_waiters();
        }
    }

    /// A report has become shorter since it was taken.
    pub(crate) fn shortened(&self, by: usize) {
        let mut queue = self.lock();
        queue.bytes = queue.bytes.saturating_sub(by);
    }

    /// The outcomes confirmed since the last call.
    pub(crate) fn take_confirmed(&self) -> Vec<AttemptKey> {
        std::mem::take(&mut self.lock().confirmed)
    }

    /// How many outcomes [`take_confirmed`](Self::take_confirmed) would return.
    pub(crate) fn confirmed(&self) -> usize {
        self.lock().confirmed.len()
    }

    /// Returns when everything has been confirmed.
    pub(crate) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if self.lock().unconfirmed == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes that `report` counts.
pub(crate) fn bytes_of(report: &Report) -> usize {
    report.bytes()
}
