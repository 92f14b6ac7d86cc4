//! Stores and reads the logs of runs.

use std::collections::HashSet;

use cueline_model::RunId;
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::log_lines::{NewLines, stored_line};
use cueline_store::{StoreError, StoredLogLine};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::column;
use crate::error::Result;

/// Returns the lines that were new.
pub(crate) const INSERT: &str = "
    INSERT INTO run_log (run_id, cursor, at, stream, text)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])
    ON CONFLICT DO NOTHING RETURNING run_id, cursor";

const EXISTS: &str = "SELECT EXISTS (SELECT FROM run WHERE id = $1)";

pub(crate) const READ: &str = "
    SELECT cursor, at, stream, text FROM run_log WHERE run_id = $1 AND cursor > $2 ORDER BY cursor LIMIT $3";

/// Stores the new lines. Returns the number of reports without a new line.
pub(crate) async fn insert(conn: &mut PgConnection, lines: &NewLines<'_>) -> Result<usize> {
    let list = lines.lines();
    if list.is_empty() {
        return Ok(lines.ignored_reports(|_| false));
    }
    let new: Vec<(i64, i64)> = sqlx::query_as(INSERT)
        .bind(column(list, |l| l.run))
        .bind(column(list, |l| l.cursor))
        .bind(column(list, |l| l.at.as_millis()))
        .bind(column(list, |l| l.stream))
        .bind(column(list, |l| l.text.as_ref()))
        .fetch_all(conn)
        .await?;
    let new: HashSet<(i64, i64)> = new.into_iter().collect();
    Ok(lines.ignored_reports(|l| new.contains(&(l.run, l.cursor))))
}

impl PgStore {
    pub(crate) async fn log_lines(
        &self,
        run: RunId,
        after: i64,
        limit: usize,
    ) -> Result<Vec<StoredLogLine>> {
        let mut tx = self.db.snapshot().await?;
        let exists: bool = sqlx::query_scalar(EXISTS)
            .bind(run.0)
            .fetch_one(&mut *tx)
            .await?;
        if !exists {
            return Err(StoreError::no_run(run).into());
        }
        let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(READ)
            .bind(run.0)
            .bind(after)
            .bind(to_i64(limit))
            .fetch_all(&mut *tx)
            .await?;
        rows.into_iter().map(|row| Ok(stored_line(row)?)).collect()
    }
}
