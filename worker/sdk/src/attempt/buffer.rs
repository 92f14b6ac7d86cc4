//! The bounded log of one attempt.
//!
//! Lines up to half of the limit are reported as they come. After that a ring keeps the newest lines, up to the other
//! half. A note replaces the lines that were dropped in between.

use std::collections::VecDeque;

use cueline_model::{LogLine, LogStream, Timestamp};

/// The longest line, in bytes.
pub(super) const MAX_LINE_BYTES: usize = 64 * 1024;
/// The most lines of one report, and their size in bytes.
const MAX_REPORT_LINES: usize = 200;
const MAX_REPORT_BYTES: usize = 128 * 1024;
/// The assumed size of a line without its text.
const LINE_OVERHEAD: usize = 32;

/// The lines of one attempt's log.
#[derive(Debug, Default)]
pub(super) struct LogBuffer {
    limit_bytes: usize,
    next_seq: u64,
    /// Lines of the first half that are not reported yet.
    head: Vec<LogLine>,
    head_bytes: usize,
    /// Size of the first half so far, reported or not.
    first_half_bytes: usize,
    tail: VecDeque<LogLine>,
    tail_bytes: usize,
    dropped: u64,
    /// Number and time of the first dropped line.
    first_dropped: Option<(u64, Timestamp)>,
}

impl LogBuffer {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, at: Timestamp, stream: LogStream, text: String) {
        let line = LogLine {
            seq: self.next_seq,
            at,
            stream,
            text: cut(text, MAX_LINE_BYTES),
        };
        self.next_seq += 1;
        let bytes = bytes_of(&line);
        let half = self.limit_bytes / 2;
        let is_first_half = self.tail.is_empty() && self.dropped == 0;
        if is_first_half && self.first_half_bytes + bytes <= half {
            self.first_half_bytes += bytes;
            self.head_bytes += bytes;
            self.head.push(line);
        } else {
            self.push_to_ring(line, bytes, half);
        }
    }

    fn push_to_ring(&mut self, line: LogLine, bytes: usize, limit: usize) {
        self.tail_bytes += bytes;
        self.tail.push_back(line);
        while self.tail_bytes > limit
            && self.tail.len() > 1
            && let Some(oldest) = self.tail.pop_front()
        {
            self.tail_bytes -= bytes_of(&oldest);
            self.dropped += 1;
            self.first_dropped.get_or_insert((oldest.seq, oldest.at));
        }
    }

    /// Whether no line waits for the next report.
    pub(super) fn is_head_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// Whether the waiting lines fill a report.
    pub(super) fn is_head_full(&self) -> bool {
        self.head.len() >= MAX_REPORT_LINES || self.head_bytes >= MAX_REPORT_BYTES
    }

    /// Takes the waiting lines, as one list for each report.
    pub(super) fn take_head(&mut self) -> Vec<Vec<LogLine>> {
        self.head_bytes = 0;
        split(std::mem::take(&mut self.head))
    }

    /// Takes all lines that are not reported yet, as one list for each report.
    pub(super) fn take_all(&mut self) -> Vec<Vec<LogLine>> {
        let mut lines = std::mem::take(&mut self.head);
        if let (dropped @ 1.., Some((seq, at))) = (self.dropped, self.first_dropped.take()) {
            lines.push(LogLine {
                seq,
                at,
                stream: LogStream::Log,
                text: format!(
                    "[{dropped} lines dropped here: the log of an attempt keeps {} bytes, the first and the last half]",
                    self.limit_bytes
                ),
            });
        }
        lines.extend(std::mem::take(&mut self.tail));
        split(lines)
    }
}

fn bytes_of(line: &LogLine) -> usize {
    line.text.len() + LINE_OVERHEAD
}

fn split(lines: Vec<LogLine>) -> Vec<Vec<LogLine>> {
    let mut reports: Vec<Vec<LogLine>> = Vec::new();
    let mut bytes = 0;
    for line in lines {
        bytes += bytes_of(&line);
        match reports.last_mut() {
            Some(last) if last.len() < MAX_REPORT_LINES && bytes <= MAX_REPORT_BYTES => {
                last.push(line);
            }
            _ => {
                bytes = bytes_of(&line);
                reports.push(vec![line]);
            }
        }
    }
    reports
}

/// Cuts `text` to `limit` bytes, including a note of its whole length.
pub(super) fn cut(mut text: String, limit: usize) -> String {
    let whole = text.len();
    if whole <= limit {
        return text;
    }
    let note = format!("… [cut, {whole} bytes in all]");
    text.truncate(text.floor_char_boundary(limit.saturating_sub(note.len())));
    text.push_str(&note);
    text
}
