//! Writing.

use sqlx::AssertSqlSafe;

use cueline_model::StoreId;

use super::{Journal, JournalError, LastContact, Row, State};
use crate::stores::StoreNumber;

/// Rows that one statement takes at the most.
const MAX_ROWS: usize = 1_024;
const COLUMNS: &str = "(?,?,?,?,?,?,?,?)";

/// The statement for 1, 2, 4 … [`MAX_ROWS`] rows, so that `SQLite` sees few different ones.
#[derive(Debug, Default)]
pub(super) struct Statements([Option<std::sync::Arc<str>>; 11]);

impl Statements {
    fn for_rows(&mut self, rows: usize) -> std::sync::Arc<str> {
        let slot = &mut self.0[rows.ilog2() as usize];
        slot.get_or_insert_with(|| {
            let values = vec![COLUMNS; rows].join(",");
            // Nothing of `excluded` may undo what is there: that is what makes repeating a write harmless.
            format!(
                "INSERT INTO entry (run, attempt, state, seq, at, job, trigger, outcome) VALUES {values}
                 ON CONFLICT (run) DO UPDATE SET
                     seq     = iif(excluded.attempt > attempt, excluded.seq, seq),
                     job     = coalesce(excluded.job, job),
                     outcome = iif(excluded.attempt > attempt, excluded.outcome, coalesce(excluded.outcome, outcome)),
                     trigger = excluded.trigger,
                     at      = excluded.at,
                     state   = excluded.state,
                     attempt = excluded.attempt
                 WHERE excluded.attempt > attempt OR (excluded.attempt = attempt AND excluded.state > state)"
            )
            .into()
        })
        .clone()
    }
}

impl Journal {
    /// Writes this along with the next write, so that it costs no sync of the disk of its own.
    pub(crate) fn note_contact(&mut self, last: LastContact) {
        self.contact = Some(last);
    }

    /// Writes these along with the next write.
    pub(crate) fn note_stores(&mut self, stores: Vec<(StoreNumber, StoreId)>) {
        self.stores = stores;
    }

    fn has_notes(&self) -> bool {
        self.contact.is_some() || !self.stores.is_empty()
    }

    /// Writes all of `rows`, or none, and what was noted. A run has at most one row.
    pub(crate) async fn write(&mut self, rows: &[Row]) -> Result<(), JournalError> {
        let error = JournalError::database("write");
        if rows.is_empty() && !self.has_notes() {
            return Ok(());
        }
        if rows.len() <= MAX_ROWS && !self.has_notes() {
            // A single statement is a transaction of its own.
            write_chunk(&mut self.connection, &mut self.statements, rows)
                .await
                .map_err(error)?;
        } else {
            self.write_chunks(rows).await.map_err(error)?;
            self.contact = None;
            self.stores.clear();
        }
        let reported = rows.iter().filter(|r| r.state == State::Reported).count();
        self.reported += reported as u64;
        Ok(())
    }

    /// By statements of our own: on a full disk SQLite rolls back by itself, which sqlx's count of open transactions would miss, and nothing could
    /// begin ever after.
    async fn write_chunks(&mut self, rows: &[Row]) -> Result<(), sqlx::Error> {
        sqlx::query("BEGIN IMMEDIATE")
            .execute(&mut self.connection)
            .await?;
        let written = self.write_all(rows).await;
        if written.is_err() {
            // Fails where SQLite has done it already.
            let _ = sqlx::query("ROLLBACK").execute(&mut self.connection).await;
        }
        written
    }

    async fn write_all(&mut self, rows: &[Row]) -> Result<(), sqlx::Error> {
        for chunk in rows.chunks(MAX_ROWS) {
            write_chunk(&mut self.connection, &mut self.statements, chunk).await?;
        }
        for (number, id) in &self.stores {
            sqlx::query("INSERT INTO store (number, id) VALUES (?1, ?2) ON CONFLICT DO NOTHING")
                .bind(number.number())
                .bind(id.to_string())
                .execute(&mut self.connection)
                .await?;
        }
        if let Some(last) = &self.contact {
            sqlx::query(
                "INSERT INTO contact (id, at, up, boot) VALUES (1, ?1, ?2, ?3)
                 ON CONFLICT (id) DO UPDATE SET at = excluded.at, up = excluded.up, boot = excluded.boot",
            )
            .bind(last.at_ms)
            .bind(last.up_ms)
            .bind(&last.boot_id)
            .execute(&mut self.connection)
            .await?;
        }
        sqlx::query("COMMIT")
            .execute(&mut self.connection)
            .await
            .map(drop)
    }
}

async fn write_chunk(
    connection: &mut sqlx::SqliteConnection,
    statements: &mut Statements,
    rows: &[Row],
) -> Result<(), sqlx::Error> {
    let (Some(last), size) = (rows.last(), rows.len().next_power_of_two()) else {
        return Ok(());
    };
    let mut query = sqlx::query(AssertSqlSafe(statements.for_rows(size)));
    // Filled up with the last row: writing it again changes nothing.
    let filling = std::iter::repeat_n(last, size - rows.len());
    for row in rows.iter().chain(filling) {
        query = query
            .bind(row.id.run.number())
            .bind(i64::from(row.id.attempt))
            .bind(i64::from(row.state as u8))
            .bind(row.seq)
            .bind(row.at_ms)
            .bind(row.job.as_deref())
            .bind(row.trigger.as_deref())
            .bind(row.outcome.as_deref());
    }
    query.execute(connection).await.map(|_| ())
}
