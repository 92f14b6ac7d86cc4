//! Collects what an attempt writes while it runs, and reports it in batches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_model::{AttemptEvent, JobName, LogLine, LogStream, Timestamp};
use cueline_runtime::Clock;

use super::buffer::LogBuffer;
use crate::context::AttemptSink;
use crate::identity::AttemptKey;
use crate::report::{Report, ReportQueue};

/// Ticks after which a waiting line is reported: 200 to 300 ms.
const FLUSH_TICKS: u32 = 2;
/// Ticks after which an attempt is reported as started: at least 500 ms.
const STARTED_TICKS: u32 = 5;
/// Ticks between two reports of progress: two in a second.
const PROGRESS_TICKS: u32 = 5;

/// What the handler wrote and what is not reported yet.
#[derive(Debug)]
struct Pending {
    lines: LogBuffer,
    progress: Option<f64>,
    /// Ticks since the start, since the oldest waiting line, and since the last progress.
    ticks: u32,
    ticks_since_line: u32,
    ticks_since_progress: u32,
    closed: bool,
}

/// Collects and reports what a handler writes.
#[derive(Debug)]
pub(crate) struct AttemptLog {
    key: AttemptKey,
    job: JobName,
    started_at: Timestamp,
    clock: Arc<dyn Clock>,
    reports: Arc<ReportQueue>,
    pending: Mutex<Pending>,
}

impl AttemptLog {
    pub(crate) fn new(
        key: AttemptKey,
        job: JobName,
        limit_bytes: usize,
        clock: Arc<dyn Clock>,
        reports: Arc<ReportQueue>,
    ) -> Self {
        Self {
            key,
            job,
            started_at: Timestamp::from_millis(clock.now_ms()),
            clock,
            reports,
            pending: Mutex::new(Pending {
                lines: LogBuffer::new(limit_bytes),
                progress: None,
                ticks: 0,
                ticks_since_line: 0,
                ticks_since_progress: 0,
                closed: false,
            }),
        }
    }

    pub(crate) fn key(&self) -> AttemptKey {
        self.key
    }

    pub(super) fn started_at(&self) -> Timestamp {
        self.started_at
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.now_ms())
    }

    pub(super) fn write(&self, stream: LogStream, text: String) {
        let at = self.now();
        let mut pending = self.lock();
        if pending.closed {
            return;
        }
        if pending.lines.is_head_empty() {
            pending.ticks_since_line = 0;
        }
        pending.lines.push(at, stream, text);
        if pending.lines.is_head_full() {
            self.flush(&mut pending);
        }
    }

    fn progress(&self, fraction: f64) {
        self.lock().progress = Some(fraction);
    }

    /// Sends the reports that are due. Called ten times a second for each attempt that did not end at once. False when
    /// the attempt has ended.
    pub(super) fn tick(&self) -> bool {
        let mut pending = self.lock();
        if pending.closed {
            return false;
        }
        pending.ticks = pending.ticks.saturating_add(1);
        pending.ticks_since_line = pending.ticks_since_line.saturating_add(1);
        pending.ticks_since_progress = pending.ticks_since_progress.saturating_add(1);
        if pending.ticks == STARTED_TICKS {
            let at = self.started_at;
            if !self.try_report(AttemptEvent::Started { at }) {
                // The queue is full. The next tick tries again.
                pending.ticks -= 1;
            }
        }
        if pending.ticks_since_progress >= PROGRESS_TICKS
            && let Some(fraction) = pending.progress
            && self.try_report(AttemptEvent::Progress { fraction })
        {
            pending.progress = None;
            pending.ticks_since_progress = 0;
        }
        if !pending.lines.is_head_empty() && pending.ticks_since_line >= FLUSH_TICKS {
            self.flush(&mut pending);
        }
        true
    }

    /// Accepts no more lines, and returns the reports that precede the outcome.
    pub(crate) fn close(&self) -> Vec<Report> {
        let mut pending = self.lock();
        pending.closed = true;
        let lines = pending.lines.take_all();
        drop(pending);
        lines.into_iter().map(|l| self.lines_report(l)).collect()
    }

    /// Reports the waiting lines. While the queue is full they stay in the buffer.
    fn flush(&self, pending: &mut Pending) {
        if self.reports.is_full() {
            return;
        }
        let lines = pending.lines.take_head().into_iter();
        self.reports.push(lines.map(|l| self.lines_report(l)));
    }

    fn try_report(&self, event: AttemptEvent) -> bool {
        self.reports.try_push(|| self.report(event))
    }

    fn lines_report(&self, lines: Vec<LogLine>) -> Report {
        self.report(AttemptEvent::Log { lines })
    }

    fn report(&self, event: AttemptEvent) -> Report {
        Report {
            key: self.key,
            job: self.job.clone(),
            event,
            resend: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects a context to the log.
pub(crate) struct LogSink(pub(crate) Arc<AttemptLog>);

impl AttemptSink for LogSink {
    fn line(&self, stream: LogStream, text: String) {
        self.0.write(stream, text);
    }

    fn progress(&self, fraction: f64) {
        self.0.progress(fraction);
    }
}
