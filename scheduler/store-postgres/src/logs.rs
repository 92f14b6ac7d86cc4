//! Lines of runs' logs, in and out.

use std::collections::HashSet;

use cueline_model::RunId;
use cueline_store::adapter::log;
use cueline_store::adapter::report::Batch;
use cueline_store::{AttemptReport, StoreError, StoredLogLine};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::error::failed;
use crate::rows::int;

/// Tells the lines that are new.
pub(crate) const INSERT: &str = "
    INSERT INTO run_log (run_id, cursor, at, stream, text)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])
    ON CONFLICT DO NOTHING RETURNING run_id, cursor";

const EXISTS: &str = "SELECT count(*) FROM run WHERE id = $1";

pub(crate) const READ: &str = "
    SELECT cursor, at, stream, text FROM run_log WHERE run_id = $1 AND cursor > $2 ORDER BY cursor LIMIT $3";

/// Writes the lines that are new; how many reports brought none.
pub(crate) async fn write(
    conn: &mut PgConnection,
    reports: &[AttemptReport],
    batch: &Batch,
) -> Result<usize, StoreError> {
    let with_lines = log::with_lines(reports);
    let mut lines = log::lines(reports, batch);
    if lines.is_empty() {
        return Ok(with_lines);
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
    Ok(with_lines - useful.len())
}

impl PgStore {
    pub(crate) async fn log_lines(
        &self,
        run: RunId,
        after: i64,
        limit: usize,
    ) -> Result<Vec<StoredLogLine>, StoreError> {
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
        rows.into_iter()
            .map(|(cursor, at, stream, text)| log::row(cursor, at, &stream, text))
            .collect()
    }
}
