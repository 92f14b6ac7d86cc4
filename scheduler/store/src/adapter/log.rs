//! Lines of runs' logs, in and out.

use std::borrow::Cow;
use std::collections::HashSet;

use cueline_model::{AttemptEvent, LogLine, LogStream, Timestamp};

use super::report::Batch;
use super::values::{clean, damaged, small, unsigned};
use crate::{AttemptReport, StoreError, StoredLogLine};

/// A line to write down, if it is new.
#[derive(Debug)]
pub struct Line<'a> {
    /// The run that wrote it.
    pub run: i64,
    /// Its place in the run's log, by attempt and number.
    pub cursor: i64,
    /// When it was written.
    pub at: Timestamp,
    /// `out` or `err`.
    pub stream: &'static str,
    /// What it says, fit for databases.
    pub text: Cow<'a, str>,
    /// Place of its report in the batch.
    pub report: usize,
}

/// The place of a line in its run's log; `None` past the range of cursors.
fn cursor(attempt: u32, seq: u64) -> Option<i64> {
    let seq = i64::from(u32::try_from(seq).ok()?);
    (i64::from(attempt) << 32).checked_add(seq)
}

/// How many reports of a batch bring lines.
pub fn with_lines(reports: &[AttemptReport]) -> usize {
    reports
        .iter()
        .filter(|report| matches!(report.event, AttemptEvent::Log { .. }))
        .count()
}

/// The lines of a batch that can be kept, each once.
pub fn lines<'a>(reports: &'a [AttemptReport], batch: &Batch) -> Vec<Line<'a>> {
    let mut lines = Vec::new();
    let mut seen = HashSet::new();
    for (index, report) in reports.iter().enumerate() {
        let AttemptEvent::Log { lines: of_report } = &report.event else {
            continue;
        };
        if !batch.keeps_log_of(report.attempt) {
            continue;
        }
        for line in of_report {
            let run = report.attempt.run.0;
            let Some(cursor) = cursor(report.attempt.attempt, line.seq) else {
                continue;
            };
            if seen.insert((run, cursor)) {
                lines.push(Line {
                    run,
                    cursor,
                    at: line.at,
                    stream: line.stream.as_str(),
                    text: clean(&line.text),
                    report: index,
                });
            }
        }
    }
    lines
}

/// A stored line.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind) if the stream is none that an executor reports.
pub fn row(cursor: i64, at: i64, stream: &str, text: String) -> Result<StoredLogLine, StoreError> {
    let stream = stream
        .parse::<LogStream>()
        .map_err(|e| damaged("failed to read a log line", e))?;
    Ok(StoredLogLine {
        cursor,
        attempt: small(cursor >> 32),
        line: LogLine {
            seq: unsigned(cursor & 0xffff_ffff),
            at: Timestamp::from_millis(at),
            stream,
            text,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_holds_attempt_and_number() {
        let at = cursor(3, 7).expect("in range");
        let row = super::row(at, 5, "out", "a".to_owned()).expect("readable");
        assert!(super::row(at, 5, "in", String::new()).is_err());
        assert_eq!((row.attempt, row.line.seq), (3, 7));
        assert_eq!(cursor(1, u64::from(u32::MAX) + 1), None);
    }

    #[test]
    fn cursors_ascend_with_attempts() {
        assert!(cursor(1, u64::from(u32::MAX)) < cursor(2, 0));
    }
}
