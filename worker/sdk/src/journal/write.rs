//! Writes entries.

use std::sync::Arc;

use cueline_model::JobName;
use sqlx::{AssertSqlSafe, Sqlite};

use super::entry::{Entry, EntryState, LeaseRecord};
use super::error::JournalError;
use super::file::{Journal, MAX_ROWS, execute};

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
        self.check_thread("write")?;
        for entry in entries {
            self.stores.key_or_add(entry.key.run);
        }
        let is_one_statement =
            entries.len() <= MAX_ROWS && self.lease.is_none() && self.stores.unwritten().is_empty();
        let written = if is_one_statement {
            // A single statement is a transaction of its own.
            self.write_chunk(entries).await
        } else {
            self.write_in_transaction(entries).await
        };
        self.has_ended = matches!(written, Err(sqlx::Error::WorkerCrashed));
        written.map_err(JournalError::database("write"))?;
        self.lease = None;
        self.stores.mark_written();
        let is_reported = |entry: &&Entry| entry.state == EntryState::Reported;
        self.reported += entries.iter().filter(is_reported).count() as u64;
        Ok(())
    }

    /// Begins and ends the transaction by statements. On a full disk `SQLite` rolls back by itself. sqlx would still
    /// count its transaction as open, and no later one could begin.
    async fn write_in_transaction(&mut self, entries: &[Entry]) -> Result<(), sqlx::Error> {
        let begin = sqlx::query::<Sqlite>("BEGIN IMMEDIATE");
        execute(&mut self.connection, begin).await?;
        let written = self.write_all(entries).await;
        // A statement for a thread that is about to end may wait for ever.
        let is_alive = !matches!(written, Err(sqlx::Error::WorkerCrashed));
        if written.is_err() && is_alive {
            // Fails if SQLite has already rolled back.
            let _ = sqlx::query("ROLLBACK").execute(&mut self.connection).await;
        }
        written
    }

    async fn write_all(&mut self, entries: &[Entry]) -> Result<(), sqlx::Error> {
        for (number, id) in self.stores.unwritten() {
            let insert = sqlx::query::<Sqlite>("INSERT INTO store (number, id) VALUES (?1, ?2)")
                .bind(number)
                .bind(id.0.to_be_bytes().to_vec());
            execute(&mut self.connection, insert).await?;
        }
        for chunk in entries.chunks(MAX_ROWS) {
            self.write_chunk(chunk).await?;
        }
        if let Some(lease) = &self.lease {
            let upsert = sqlx::query::<Sqlite>(
                "INSERT INTO lease (id, wall, up, boot, session) VALUES (1, ?1, ?2, ?3, ?4)
                 ON CONFLICT (id) DO UPDATE SET wall = excluded.wall, up = excluded.up, boot = excluded.boot,
                     session = excluded.session",
            )
            .bind(lease.wall_ms)
            .bind(lease.boot_ms)
            .bind(&lease.boot_id)
            .bind(lease.session.0);
            execute(&mut self.connection, upsert).await?;
        }
        let commit = sqlx::query::<Sqlite>("COMMIT");
        execute(&mut self.connection, commit).await.map(drop)
    }

    async fn write_chunk(&mut self, entries: &[Entry]) -> Result<(), sqlx::Error> {
        let Some(last) = entries.last() else {
            return Ok(());
        };
        let rows = entries.len().next_power_of_two();
        let mut query = sqlx::query::<Sqlite>(AssertSqlSafe(self.statement(rows)));
        // The rest is filled with the last entry, because writing it again changes nothing.
        let filling = std::iter::repeat_n(last, rows - entries.len());
        for entry in entries.iter().chain(filling) {
            query = query
                .bind(self.stores.key(entry.key.run))
                .bind(i64::from(entry.key.attempt))
                .bind(i64::from(entry.state as u8))
                .bind(entry.seq)
                .bind(entry.at_ms)
                .bind(entry.job.as_ref().map(JobName::as_str))
                .bind(entry.fire)
                .bind(entry.trigger.as_deref())
                .bind(entry.outcome.as_deref());
        }
        execute(&mut self.connection, query).await.map(drop)
    }

    fn statement(&mut self, rows: usize) -> Arc<str> {
        let statement = &mut self.statements[rows.ilog2() as usize];
        let make = || {
            let values = vec![VALUES; rows].join(",");
            let insert =
                "INSERT INTO entry (key, attempt, state, seq, at, job, fire, trigger, outcome)";
            format!("{insert} VALUES {values} {UPSERT}").into()
        };
        statement.get_or_insert_with(make).clone()
    }
}
