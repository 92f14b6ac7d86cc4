//! Lines of runs' logs, in and out.

use std::collections::HashSet;

use cueline_model::{RunId, Timestamp};
use cueline_store::{LogRow, Report, ReportBody, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::error::failed;
use crate::report::Batch;
use crate::rows::{clean, int, small, unsigned};

/// Tells the lines that are new.
pub(crate) const INSERT: &str = "
    INSERT INTO run_log (run_id, cursor, at, stream, text)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])
    ON CONFLICT DO NOTHING RETURNING run_id, cursor";

const EXISTS: &str = "SELECT count(*) FROM run WHERE id = $1";

pub(crate) const READ: &str = "
    SELECT cursor, at, stream, text FROM run_log WHERE run_id = $1 AND cursor > $2 ORDER BY cursor LIMIT $3";

struct Line<'a> {
    run: i64,
    cursor: i64,
    at: Timestamp,
    stream: &'static str,
    text: std::borrow::Cow<'a, str>,
    /// Place of its report in the batch.
    report: usize,
}

/// The place of a line in its run's log; `None` past the range of cursors.
fn cursor(attempt: u32, seq: u64) -> Option<i64> {
    let seq = i64::from(u32::try_from(seq).ok()?);
    (i64::from(attempt) << 32).checked_add(seq)
}

/// Writes the lines that are new; how many reports brought none.
pub(crate) async fn write(
    conn: &mut PgConnection,
    reports: &[Report],
    batch: &Batch,
) -> Result<usize, StoreError> {
    let with_lines = |r: &&Report| matches!(r.body, ReportBody::Log(_));
    let reports_with_lines = reports.iter().filter(with_lines).count();
    let mut lines = lines(reports, batch);
    if lines.is_empty() {
        return Ok(reports_with_lines);
    }
    lines.sort_by_key(|line| (line.run, line.cursor));
    let new: Vec<(i64, i64)> = sqlx::query_as(INSERT)
        .bind(lines.iter().map(|l| l.run).collect::<Vec<_>>())
        .bind(lines.iter().map(|l| l.cursor).collect::<Vec<_>>())
        .bind(lines.iter().map(|l| l.at.as_millis()).collect::<Vec<_>>())
        .bind(lines.iter().map(|l| l.stream).collect::<Vec<_>>())
        .bind(lines.iter().map(|l| l.text.as_ref()).collect::<Vec<_>>())
        .fetch_all(conn)
        .await
        .map_err(failed("write log lines"))?;
    let new: HashSet<(i64, i64)> = new.into_iter().collect();
    let useful: HashSet<usize> = lines
        .iter()
        .filter(|line| new.contains(&(line.run, line.cursor)))
        .map(|line| line.report)
        .collect();
    Ok(reports_with_lines - useful.len())
}

/// The lines of a batch that can be kept, each once.
fn lines<'a>(reports: &'a [Report], batch: &Batch) -> Vec<Line<'a>> {
    let mut lines = Vec::new();
    let mut seen = HashSet::new();
    for (index, report) in reports.iter().enumerate() {
        let ReportBody::Log(of_report) = &report.body else {
            continue;
        };
        if !batch.keeps_log_of(report.id) {
            continue;
        }
        for (seq, at, stream, text) in of_report {
            let run = report.id.run.0;
            let Some(cursor) = cursor(report.id.attempt, *seq) else {
                continue;
            };
            if seen.insert((run, cursor)) {
                lines.push(Line {
                    run,
                    cursor,
                    at: *at,
                    stream,
                    text: clean(text),
                    report: index,
                });
            }
        }
    }
    lines
}

impl PgStore {
    pub(crate) async fn log_lines(
        &self,
        run: RunId,
        after: i64,
        limit: usize,
    ) -> Result<Vec<LogRow>, StoreError> {
        let fail = failed("read a run's log");
        let mut tx = self.db.snapshot().await?;
        let found: i64 = sqlx::query_scalar(EXISTS)
            .bind(run.0)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        if found == 0 {
            return Err(StoreError::no_run(run));
        }
        let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(READ)
            .bind(run.0)
            .bind(after)
            .bind(int(limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        Ok(rows
            .into_iter()
            .map(|(cursor, at, stream, text)| LogRow {
                cursor,
                attempt: small(cursor >> 32),
                seq: unsigned(cursor & 0xffff_ffff),
                at: Timestamp::from_millis(at),
                stream,
                text,
            })
            .collect())
    }
}
