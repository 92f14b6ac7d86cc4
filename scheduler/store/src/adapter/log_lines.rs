//! Log lines: selects the lines of a batch to store, and reads stored ones.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cueline_model::{AttemptEvent, LogLine, LogStream, Timestamp};

use super::convert::{corrupt, to_u32, to_u64, without_nul};
use super::report_batch::ReportBatch;
use crate::{AttemptReport, StoreError, StoredLogLine};

/// A reported line.
#[derive(Debug)]
pub struct NewLine<'a> {
    /// The run that wrote it.
    pub run: i64,
    /// Position in the log of the run.
    pub cursor: i64,
    /// When it was written.
    pub at: Timestamp,
    /// The name of its [`LogStream`].
    pub stream: &'static str,
    /// The text.
    pub text: Cow<'a, str>,
    /// Index of its report in the batch.
    report: usize,
}

/// The lines of a batch that can be stored, sorted by run and cursor. Each position occurs once.
#[derive(Debug)]
pub struct NewLines<'a> {
    lines: Vec<NewLine<'a>>,
    reports: usize,
}

impl<'a> NewLines<'a> {
    /// Collects the lines. Lines of unknown runs, of attempts that have not begun, and of foreign reports are left out.
    /// The batch has applied the reports.
    pub fn of(reports: &'a [AttemptReport], batch: &ReportBatch) -> Self {
        let mut lines = BTreeMap::new();
        let mut log_reports = 0;
        for (index, report) in reports.iter().enumerate() {
            let AttemptEvent::Log { lines: reported } = &report.event else {
                continue;
            };
            if batch.is_foreign(index) {
                continue;
            }
            log_reports += 1;
            if !batch.stores_log_of(report.attempt) {
                continue;
            }
            for line in reported {
                let run = report.attempt.run.0;
                let Some(cursor) = cursor(report.attempt.attempt, line.seq) else {
                    continue;
                };
                lines.entry((run, cursor)).or_insert_with(|| NewLine {
                    run,
                    cursor,
                    at: line.at,
                    stream: line.stream.as_str(),
                    text: without_nul(&line.text),
                    report: index,
                });
            }
        }
        Self {
            lines: lines.into_values().collect(),
            reports: log_reports,
        }
    }

    /// The lines, by run and cursor.
    pub fn lines(&self) -> &[NewLine<'a>] {
        &self.lines
    }

    /// The number of log reports without a new line. `stored` tells whether a line was new.
    pub fn ignored_reports(&self, stored: impl Fn(&NewLine<'a>) -> bool) -> usize {
        let mut useful: Vec<usize> = self
            .lines
            .iter()
            .filter(|line| stored(line))
            .map(|line| line.report)
            .collect();
        useful.sort_unstable();
        useful.dedup();
        self.reports - useful.len()
    }
}

/// The position of a line in the log of its run. The upper 32 bits are the attempt, the lower 32 bits the number of the
/// line. `None` for a number out of range.
fn cursor(attempt: u32, seq: u64) -> Option<i64> {
    let seq = i64::from(u32::try_from(seq).ok()?);
    (i64::from(attempt) << 32).checked_add(seq)
}

/// Reads a stored line: cursor, time, stream, text.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for an unknown stream.
pub fn stored_line(
    (cursor, at, stream, text): (i64, i64, String, String),
) -> Result<StoredLogLine, StoreError> {
    let stream = stream
        .parse::<LogStream>()
        .map_err(|e| corrupt("failed to read a log line", e))?;
    Ok(StoredLogLine {
        cursor,
        attempt: to_u32(cursor >> 32),
        line: LogLine {
            seq: to_u64(cursor & 0xffff_ffff),
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
    fn a_cursor_holds_attempt_and_line_number() {
        let at = cursor(3, 7).expect("in range");
        let row = |stream: &str| stored_line((at, 5, stream.to_owned(), "a".to_owned()));
        let line = row("out").expect("readable");
        assert_eq!((line.attempt, line.line.seq), (3, 7));
        assert!(row("in").is_err());
        assert_eq!(cursor(1, u64::from(u32::MAX) + 1), None);
    }

    #[test]
    fn cursors_ascend_with_attempts() {
        assert!(cursor(1, u64::from(u32::MAX)) < cursor(2, 0));
    }
}
