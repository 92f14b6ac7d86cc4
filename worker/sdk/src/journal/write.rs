//! Writes entries.

use std::sync::Arc;

use cueline_model::JobName;
use sqlx::AssertSqlSafe;

use super::entry::{Entry, EntryState, LeaseRecord};
use super::error::JournalError;
use super::file::{Journal, MAX_ROWS};
use super::triggers::{TRIGGER_STATE, trigger_key};

const VALUES: &str = "(?,?,?,?,?,?,?,?,?)";

/// `excluded` is the new row. An entry only moves forward, so a repeated or older write changes nothing. A write
/// without a job, fire or outcome keeps the one that is there.
const UPSERT: &str = "
     ON CONFLICT (key) DO UPDATE SET
         seq     = iif(excluded.attempt > attempt, excluded.seq, seq),
         job     = coalesce(excluded.job, job),
         fire    = coalesce(excluded.fire, fire),
         outcome = iif(excluded.attempt > attempt, excluded.outcome, coalesce(excluded.outcome, outcome)),
         trigger = excluded.trigger,
         at      = excluded.at,
         state   = excluded.state,
         attempt = excluded.attempt
     WHERE excluded.attempt > attempt OR (excluded.attempt = attempt AND excluded.state > state)";

/// A row to write.
enum Row<'a> {
    Entry(&'a Entry),
    /// The trigger of this entry.
    Trigger(&'a Entry),
}

/// The rows of these entries. Those of triggers come last, so that neighbours are written one after the other.
fn rows_of(entries: &[Entry]) -> Vec<Row<'_>> {
    let with_trigger = entries.iter().filter(|entry| entry.trigger.is_some());
    let rows = entries.iter().map(Row::Entry);
    rows.chain(with_trigger.map(Row::Trigger)).collect()
}

/// The number of rows of the statement that writes `rows` rows.
fn statement_rows(rows: usize) -> usize {
    let power = rows.next_power_of_two();
    let between = power / 4 * 3;
    if rows <= between { between } else { power }
}

impl Journal {
    /// Writes the lease together with the next entries. So it costs no disk sync of its own.
    pub(crate) fn record_lease(&mut self, lease: LeaseRecord) {
        self.lease = Some(lease);
    }

    /// Writes all entries, or none. A run has at most one of them.
    pub(crate) async fn write(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        if entries.is_empty() && self.lease.is_none() {
            return Ok(());
        }
        for entry in entries {
            self.stores.key_or_add(entry.key.run);
        }
        let rows = rows_of(entries);
        let is_one_statement =
            rows.len() <= MAX_ROWS && self.lease.is_none() && self.stores.unwritten().is_empty();
        let written = if is_one_statement {
            // A single statement is a transaction of its own.
            self.write_chunk(&rows).await
        } else {
            self.write_in_transaction(&rows).await
        };
        written.map_err(JournalError::database("write"))?;
        self.lease = None;
        self.stores.mark_written();
        for entry in entries {
            if self.triggers.concerns(entry)
                && let Some(key) = self.stores.key(entry.key.run)
            {
                self.triggers.note(key, entry);
            }
        }
        let is_reported = |entry: &&Entry| entry.state == EntryState::Reported;
        self.reported += entries.iter().filter(is_reported).count() as u64;
        Ok(())
    }

    /// Begins and ends the transaction by statements. On a full disk `SQLite` rolls back by itself. sqlx would still
    /// count its transaction as open, and no later one could begin.
    async fn write_in_transaction(&mut self, rows: &[Row<'_>]) -> Result<(), sqlx::Error> {
        sqlx::query("BEGIN IMMEDIATE")
            .execute(&mut self.connection)
            .await?;
        let written = self.write_all(rows).await;
        if written.is_err() {
            // Fails if SQLite has already rolled back.
            let _ = sqlx::query("ROLLBACK").execute(&mut self.connection).await;
        }
        written
    }

    async fn write_all(&mut self, rows: &[Row<'_>]) -> Result<(), sqlx::Error> {
        for (number, id) in self.stores.unwritten() {
            sqlx::query("INSERT INTO store (number, id) VALUES (?1, ?2)")
                .bind(number)
                .bind(id.0.to_be_bytes().to_vec())
                .execute(&mut self.connection)
                .await?;
        }
        for chunk in rows.chunks(MAX_ROWS) {
            self.write_chunk(chunk).await?;
        }
        if let Some(lease) = &self.lease {
            sqlx::query(
                "INSERT INTO lease (id, wall, up, boot, session) VALUES (1, ?1, ?2, ?3, ?4)
                 ON CONFLICT (id) DO UPDATE SET wall = excluded.wall, up = excluded.up, boot = excluded.boot,
                     session = excluded.session",
            )
            .bind(lease.wall_ms)
            .bind(lease.boot_ms)
            .bind(&lease.boot_id)
            .bind(lease.session.0)
            .execute(&mut self.connection)
            .await?;
        }
        let commit = sqlx::query("COMMIT");
        commit.execute(&mut self.connection).await.map(drop)
    }

    async fn write_chunk(&mut self, rows: &[Row<'_>]) -> Result<(), sqlx::Error> {
        let Some(first) = rows.first() else {
            return Ok(());
        };
        let size = statement_rows(rows.len());
        let mut query = sqlx::query(AssertSqlSafe(self.statement(size)));
        // The rest is filled with the first row, because writing it again changes nothing.
        let filling = std::iter::repeat_n(first, size - rows.len());
        for row in rows.iter().chain(filling) {
            query = match row {
                Row::Entry(entry) => query
                    .bind(self.stores.key(entry.key.run))
                    .bind(i64::from(entry.key.attempt))
                    .bind(i64::from(entry.state as u8))
                    .bind(entry.seq)
                    .bind(entry.at_ms)
                    .bind(entry.job.as_ref().map(JobName::as_str))
                    .bind(entry.fire)
                    .bind(None::<&[u8]>)
                    .bind(entry.outcome.as_deref()),
                Row::Trigger(entry) => query
                    .bind(Some(trigger_key(entry.seq)))
                    .bind(i64::from(entry.key.attempt))
                    .bind(TRIGGER_STATE)
                    .bind(entry.seq)
                    .bind(entry.at_ms)
                    .bind(None::<&str>)
                    .bind(None::<i64>)
                    .bind(entry.trigger.as_deref())
                    .bind(None::<&str>),
            };
        }
        query.execute(&mut self.connection).await.map(drop)
    }

    fn statement(&mut self, rows: usize) -> Arc<str> {
        let make = || {
            let values = vec![VALUES; rows].join(",");
            let insert =
                "INSERT INTO entry (key, attempt, state, seq, at, job, fire, trigger, outcome)";
            format!("{insert} VALUES {values} {UPSERT}").into()
        };
        Arc::clone(self.statements.entry(rows).or_insert_with(make))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_at_most_half_as_many_rows_more_than_needed() {
        assert_eq!([1, 2, 3, 4, 5].map(statement_rows), [1, 2, 3, 4, 6]);
        assert_eq!([7, 9, 13, 700].map(statement_rows), [8, 12, 16, 768]);
        assert_eq!(statement_rows(MAX_ROWS), MAX_ROWS);
        for rows in 1..=MAX_ROWS {
            let size = statement_rows(rows);
            assert!(
                rows <= size && size <= (rows * 3 / 2).min(MAX_ROWS),
                "{rows}"
            );
        }
    }
}
