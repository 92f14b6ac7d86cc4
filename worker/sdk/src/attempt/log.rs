//! The log of one attempt, bounded.
//!
//! The first half of the bound is reported as it comes. After that a ring keeps the newest half until the end; what
//! falls out of it is counted, and a line says so in its place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_model::{AttemptEvent, JobName, LogLine, LogStream, Timestamp};
use cueline_runtime::Clock;

use crate::context::Sink;
use crate::outbox::{Outbox, Report};
use crate::stores::AttemptKey;

/// The longest line, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;
/// Lines that are reported at once at the most.
pub(crate) const MAX_BATCH_LINES: usize = 200;
/// Bytes of lines that are reported at once, roughly.
const MAX_BATCH_BYTES: usize = 128 * 1024;
/// What a line counts beside its text.
const LINE_OVERHEAD: usize = 32;
/// Looks of the watch after which a line is reported, however few there are: 200 to 300 ms.
const FLUSH_LOOKS: u32 = 2;
/// Looks after which an attempt is reported as started: 500 ms at least.
const STARTED_LOOKS: u32 = 5;
/// Looks between two reports of progress: two in a second.
const PROGRESS_LOOKS: u32 = 5;

#[derive(Debug, Default)]
struct Lines {
    next_seq: u64,
    /// Of the first half, not reported yet.
    head: Vec<LogLine>,
    head_bytes: usize,
    /// Bytes of the first half so far, reported or not.
    first_half: usize,
    tail: VecDeque<LogLine>,
    tail_bytes: usize,
    dropped: u64,
    first_dropped: Option<(u64, Timestamp)>,
    progress: Option<f64>,
    /// Looks of the watch: in all, since the oldest line of `head`, since the last progress.
    looks: u32,
    looks_of_head: u32,
    looks_since_progress: u32,
    closed: bool,
}

/// Collects what a handler writes.
#[derive(Debug)]
pub(crate) struct AttemptLog {
    id: AttemptKey,
    job: JobName,
    started_at: Timestamp,
    limit_bytes: usize,
    clock: Arc<dyn Clock>,
    outbox: Arc<Outbox>,
    lines: Mutex<Lines>,
}

impl AttemptLog {
    pub(crate) fn new(
        id: AttemptKey,
        job: JobName,
        limit_bytes: usize,
        clock: Arc<dyn Clock>,
        outbox: Arc<Outbox>,
    ) -> Self {
        let started_at = Timestamp::from_millis(clock.now_ms());
        Self {
            id,
            job,
            started_at,
            limit_bytes,
            clock,
            outbox,
            lines: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> AttemptKey {
        self.id
    }

    pub(crate) fn started_at(&self) -> Timestamp {
        self.started_at
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.now_ms())
    }

    pub(crate) fn write(&self, stream: LogStream, text: String) {
        let at = self.now();
        let mut lines = self.lock();
        if lines.closed {
            return;
        }
        let line = LogLine {
            seq: lines.next_seq,
            at,
            stream,
            text: cut(text, MAX_LINE_BYTES),
        };
        lines.next_seq += 1;
        let bytes = bytes_of(&line);
        let half = self.limit_bytes / 2;
        if lines.tail.is_empty() && lines.dropped == 0 && lines.first_half + bytes <= half {
            if lines.head.is_empty() {
                lines.looks_of_head = 0;
            }
            lines.first_half += bytes;
            lines.head_bytes += bytes;
            lines.head.push(line);
            if lines.head.len() >= MAX_BATCH_LINES || lines.head_bytes >= MAX_BATCH_BYTES {
                self.flush(&mut lines);
            }
        } else {
            lines.keep_newest(line, bytes, half);
        }
    }

    pub(crate) fn progress(&self, fraction: f64) {
        self.lock().progress = Some(fraction);
    }

    /// Reports what is due. Called about ten times a second for each attempt that did not end at once; false when
    /// it has ended.
    pub(crate) fn look(&self) -> bool {
        let mut lines = self.lock();
        if lines.closed {
            return false;
        }
        lines.looks = lines.looks.saturating_add(1);
        lines.looks_of_head = lines.looks_of_head.saturating_add(1);
        lines.looks_since_progress = lines.looks_since_progress.saturating_add(1);
        if lines.looks == STARTED_LOOKS {
            let at = self.started_at;
            if !self.report(AttemptEvent::Started { at }) {
                lines.looks -= 1;
            }
        }
        if lines.looks_since_progress >= PROGRESS_LOOKS
            && let Some(fraction) = lines.progress
            && self.report(AttemptEvent::Progress { fraction })
        {
            lines.progress = None;
            lines.looks_since_progress = 0;
        }
        if !lines.head.is_empty() && lines.looks_of_head >= FLUSH_LOOKS {
            self.flush(&mut lines);
        }
        true
    }

    /// Takes no more, and returns what is still to be reported before the outcome.
    pub(crate) fn close(&self) -> Vec<Report> {
        let mut lines = self.lock();
        lines.closed = true;
        if lines.next_seq == 0 {
            return Vec::new();
        }
        let mut rest = std::mem::take(&mut lines.head);
        if let (dropped @ 1.., Some((seq, at))) = (lines.dropped, lines.first_dropped) {
            rest.push(LogLine {
                seq,
                at,
                stream: LogStream::Log,
                text: format!(
                    "[{dropped} lines dropped here: the log of an attempt keeps {} bytes, the first and the last half]",
                    self.limit_bytes
                ),
            });
        }
        rest.extend(std::mem::take(&mut lines.tail));
        drop(lines);
        batches(rest)
            .into_iter()
            .map(|lines| self.report_of(AttemptEvent::Log { lines }))
            .collect()
    }

    /// Reports the lines of the first half, unless the outbox is full: then they stay for now.
    fn flush(&self, lines: &mut Lines) {
        if self.outbox.is_full() {
            return;
        }
        lines.head_bytes = 0;
        let batches = batches(std::mem::take(&mut lines.head));
        self.outbox.push(
            batches
                .into_iter()
                .map(|lines| self.report_of(AttemptEvent::Log { lines })),
        );
    }

    fn report(&self, body: AttemptEvent) -> bool {
        self.outbox.try_push(|| self.report_of(body))
    }

    pub(crate) fn report_of(&self, body: AttemptEvent) -> Report {
        Report {
            id: self.id,
            job: self.job.clone(),
            body,
            again: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn keep_newest(&mut self, line: LogLine, bytes: usize, half: usize) {
        self.tail_bytes += bytes;
        self.tail.push_back(line);
        while self.tail_bytes > half
            && self.tail.len() > 1
            && let Some(oldest) = self.tail.pop_front()
        {
            self.tail_bytes -= bytes_of(&oldest);
            self.dropped += 1;
            self.first_dropped.get_or_insert((oldest.seq, oldest.at));
        }
    }
}

/// What a handler's context writes to.
pub(crate) struct LogSink(pub(crate) Arc<AttemptLog>);

impl Sink for LogSink {
    fn line(&self, stream: LogStream, text: String) {
        self.0.write(stream, text);
    }

    fn progress(&self, fraction: f64) {
        self.0.progress(fraction);
    }
}

fn bytes_of(line: &LogLine) -> usize {
    line.text.len() + LINE_OVERHEAD
}

fn batches(lines: Vec<LogLine>) -> Vec<Vec<LogLine>> {
    let mut batches: Vec<Vec<LogLine>> = Vec::new();
    let mut bytes = 0;
    for line in lines {
        bytes += bytes_of(&line);
        match batches.last_mut() {
            Some(last) if last.len() < MAX_BATCH_LINES && bytes <= MAX_BATCH_BYTES => {
                last.push(line);
            }
            _ => {
                bytes = bytes_of(&line);
                batches.push(vec![line]);
            }
        }
    }
    batches
}

/// `text`, cut to about `most` bytes with a note of how long it was.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    let whole = text.len();
    if whole <= most {
        return text;
    }
    let note = format!("… [cut, {whole} bytes in all]");
    let mut end = most.saturating_sub(note.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(&note);
    text
}
