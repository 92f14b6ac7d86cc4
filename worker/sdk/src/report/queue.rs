//! Reports that the broker has not confirmed yet.
//!
//! No caller ever waits here. Outcomes are always accepted. The worker fetches and starts nothing while the queue is
//! [full](ReportQueue::is_full), so the number of running attempts limits the outcomes that can still come. A full
//! queue refuses other reports, and log lines then stay in the bounded buffer of their attempt.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cueline_model::{AttemptEvent, JobName};
use tokio::sync::Notify;

use crate::identity::AttemptKey;

/// The queue is full from this size on.
const FULL_BYTES: usize = 64 * 1024 * 1024;
/// The assumed size of a report, and of a log line, without its text.
const REPORT_BYTES: usize = 128;
const LINE_BYTES: usize = 48;

/// What is reported about an attempt.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) key: AttemptKey,
    /// Reports are published under the job's name.
    pub(crate) job: JobName,
    pub(crate) event: AttemptEvent,
    /// An outcome that was reported before. It gets a new message id, so that the broker does not drop it as a
    /// duplicate.
    pub(crate) resend: bool,
}

impl Report {
    /// Whether this is an outcome that was not reported before.
    fn is_first_outcome(&self) -> bool {
        matches!(self.event, AttemptEvent::Ended { .. }) && !self.resend
    }

    pub(super) fn bytes(&self) -> usize {
        let text = match &self.event {
            AttemptEvent::Started { .. } | AttemptEvent::Progress { .. } => 0,
            AttemptEvent::Log { lines } => lines.iter().map(|l| l.text.len() + LINE_BYTES).sum(),
            AttemptEvent::Ended { outcome } => {
                outcome.message.as_ref().map_or(0, String::len)
                    + outcome.output.as_ref().map_or(0, String::len)
            }
        };
        REPORT_BYTES + text
    }
}

#[derive(Debug, Default)]
struct Unconfirmed {
    /// Not taken for publishing yet.
    waiting: VecDeque<Report>,
    /// Number and size of all unconfirmed reports.
    count: usize,
    bytes: usize,
    /// How many of them are outcomes that were never confirmed.
    outcomes: usize,
    /// Confirmed outcomes that the journal has not marked yet.
    confirmed: Vec<AttemptKey>,
}

/// The reports of a worker, in order.
#[derive(Debug, Default)]
pub(crate) struct ReportQueue {
    reports: Mutex<Unconfirmed>,
    filled: Notify,
    emptied: Notify,
}

impl ReportQueue {
    /// Accepts these reports, however full the queue is.
    pub(crate) fn push(&self, new: impl IntoIterator<Item = Report>) {
        let mut reports = self.lock();
        for report in new {
            reports.bytes += report.bytes();
            reports.count += 1;
            reports.outcomes += usize::from(report.is_first_outcome());
            reports.waiting.push_back(report);
        }
        drop(reports);
        self.filled.notify_one();
    }

    /// Accepts this report unless the queue is full.
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

    /// Takes up to `max_items` reports of about `max_bytes`, for publishing. Waits for the first.
    pub(crate) async fn take(&self, max_items: usize, max_bytes: usize) -> Vec<Report> {
        loop {
            let filled = self.filled.notified();
            let batch = self.take_now(max_items, max_bytes);
            if !batch.is_empty() {
                return batch;
            }
            filled.await;
        }
    }

    fn take_now(&self, max_items: usize, max_bytes: usize) -> Vec<Report> {
        let mut reports = self.lock();
        let (mut count, mut bytes) = (0, 0);
        for report in reports.waiting.iter().take(max_items) {
            bytes += report.bytes();
            if count > 0 && bytes > max_bytes {
                break;
            }
            count += 1;
        }
        reports.waiting.drain(..count).collect()
    }

    /// Removes reports that the broker has, or will never accept.
    pub(super) fn confirm(&self, published: &[Report]) {
        let mut reports = self.lock();
        for report in published {
            reports.bytes = reports.bytes.saturating_sub(report.bytes());
            reports.count = reports.count.saturating_sub(1);
            if report.is_first_outcome() {
                reports.outcomes = reports.outcomes.saturating_sub(1);
                reports.confirmed.push(report.key);
            }
        }
        let empty = reports.count == 0;
        drop(reports);
        if empty {
            self.emptied.notify_waiters();
        }
    }

    /// Corrects the size after a report that was taken has lost this many bytes.
    pub(super) fn shortened(&self, bytes: usize) {
        let mut reports = self.lock();
        reports.bytes = reports.bytes.saturating_sub(bytes);
    }

    /// The outcomes that were confirmed since the last call.
    pub(crate) fn take_confirmed(&self) -> Vec<AttemptKey> {
        std::mem::take(&mut self.lock().confirmed)
    }

    /// The number of outcomes that [`take_confirmed`](Self::take_confirmed) would return.
    pub(crate) fn confirmed(&self) -> usize {
        self.lock().confirmed.len()
    }

    /// The number of outcomes that only the journal has.
    pub(crate) fn unconfirmed_outcomes(&self) -> usize {
        self.lock().outcomes
    }

    /// Returns when all reports are confirmed.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if self.lock().count == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Unconfirmed> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
