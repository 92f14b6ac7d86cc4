//! Writes entries.

use cueline_model::JobName;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite};

use super::entry::{Entry, EntryState, LeaseRecord};
use super::error::JournalError;
use super::file::{Journal, execute};
use super::keys::{StoreNumbers, json_array};
use super::statements::{DELETE_TRIGGERS, FEW_ROWS, FewRowsTransactions, MAX_ROWS};
use super::waiting::{NewTrigger, WaitingChanges};

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
            let key = self.stores.key_or_add(entry.key.run);
            self.recent.add(key);
        }
        let changes = self.waiting.changes(entries, &self.stores);
        let is_one_statement = entries.len() <= MAX_ROWS
            && changes.is_empty()
            && self.lease.is_none()
            && self.stores.unwritten().is_empty();
        let written = if is_one_statement {
            // A single statement is a transaction of its own.
            self.write_chunk(entries).await
        } else {
            self.write_in_transaction(entries, &changes).await
        };
        self.has_ended = matches!(written, Err(sqlx::Error::WorkerCrashed));
        written.map_err(JournalError::database("write"))?;
        self.lease = None;
        self.stores.mark_written();
        self.waiting.apply(&changes);
        let is_reported = |entry: &&Entry| entry.state == EntryState::Reported;
        self.reported += entries.iter().filter(is_reported).count() as u64;
        Ok(())
    }

    /// Begins and ends the transaction by statements. On a full disk `SQLite` rolls back by itself. sqlx would still
    /// count its transaction as open, and no later one could begin.
    async fn write_in_transaction(
        &mut self,
        entries: &[Entry],
        changes: &WaitingChanges<'_>,
    ) -> Result<(), sqlx::Error> {
        let are_few = entries.len() <= FEW_ROWS
            && changes.removed.len() <= FEW_ROWS
            && self.lease.is_none()
            && self.stores.unwritten().is_empty();
        let written = if are_few && !entries.is_empty() {
            self.write_few(entries, changes).await
        } else {
            self.write_all(entries, changes).await
        };
        // A statement for a thread that is about to end may wait for ever.
        let is_alive = !matches!(written, Err(sqlx::Error::WorkerCrashed));
        if written.is_err() && is_alive {
            // Fails if SQLite has already rolled back.
            let _ = sqlx::query("ROLLBACK").execute(&mut self.connection).await;
        }
        written
    }

    /// All statements of the transaction by one call.
    async fn write_few(
        &mut self,
        entries: &[Entry],
        changes: &WaitingChanges<'_>,
    ) -> Result<(), sqlx::Error> {
        let rows = FewRowsTransactions::rows(entries.len());
        let text = self
            .few_rows
            .text(rows, &mut self.insert_triggers, &mut self.insert_entries);
        let query = sqlx::query::<Sqlite>(AssertSqlSafe(text))
            .bind(json_array(changes.removed.iter().copied()));
        let query = bind_triggers(query, &changes.added, rows);
        let query = bind_entries(query, entries, rows, &self.stores);
        execute(&mut self.connection, query).await.map(drop)
    }

    async fn write_all(
        &mut self,
        entries: &[Entry],
        changes: &WaitingChanges<'_>,
    ) -> Result<(), sqlx::Error> {
        let begin = sqlx::query::<Sqlite>("BEGIN IMMEDIATE");
        execute(&mut self.connection, begin).await?;
        for (number, id) in self.stores.unwritten() {
            let insert = sqlx::query::<Sqlite>("INSERT INTO store (number, id) VALUES (?1, ?2)")
                .bind(number)
                .bind(id.0.to_be_bytes().to_vec());
            execute(&mut self.connection, insert).await?;
        }
        // New triggers take the pages of those that are removed.
        for keys in changes.removed.chunks(MAX_ROWS) {
            let keys = json_array(keys.iter().copied());
            let delete = sqlx::query::<Sqlite>(DELETE_TRIGGERS).bind(keys);
            execute(&mut self.connection, delete).await?;
        }
        // Before the entries, which show the triggers that are new.
        for triggers in changes.added.chunks(MAX_ROWS) {
            self.write_triggers(triggers).await?;
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

    async fn write_triggers(&mut self, triggers: &[NewTrigger<'_>]) -> Result<(), sqlx::Error> {
        let rows = triggers.len().next_power_of_two();
        let text = self.insert_triggers.text(rows);
        let query = bind_triggers(sqlx::query(AssertSqlSafe(text)), triggers, rows);
        execute(&mut self.connection, query).await.map(drop)
    }

    async fn write_chunk(&mut self, entries: &[Entry]) -> Result<(), sqlx::Error> {
        let rows = entries.len().next_power_of_two();
        let text = self.insert_entries.text(rows);
        let query = sqlx::query(AssertSqlSafe(text));
        let query = bind_entries(query, entries, rows, &self.stores);
        execute(&mut self.connection, query).await.map(drop)
    }
}

type SqliteQuery<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Binds the rows of [`RowsStatement::triggers`](super::statements::RowsStatement::triggers).
fn bind_triggers<'q>(
    mut query: SqliteQuery<'q>,
    triggers: &[NewTrigger<'q>],
    rows: usize,
) -> SqliteQuery<'q> {
    // Rows without a key are left out.
    let filling = std::iter::repeat_n(None, rows - triggers.len());
    for new in triggers.iter().map(Some).chain(filling) {
        query = query
            .bind(new.map(|new| new.key))
            .bind(new.map(|new| i64::from(new.attempt)))
            .bind(new.map(|new| new.trigger));
    }
    query
}

/// Binds the rows of [`RowsStatement::entries`](super::statements::RowsStatement::entries).
fn bind_entries<'q>(
    mut query: SqliteQuery<'q>,
    entries: &'q [Entry],
    rows: usize,
    stores: &StoreNumbers,
) -> SqliteQuery<'q> {
    let Some(last) = entries.last() else {
        return query;
    };
    // The rest is filled with the last entry, because writing it again changes nothing.
    let filling = std::iter::repeat_n(last, rows - entries.len());
    for entry in entries.iter().chain(filling) {
        query = query
            .bind(stores.key(entry.key.run))
            .bind(i64::from(entry.key.attempt))
            .bind(i64::from(entry.state as u8))
            .bind(entry.seq)
            .bind(entry.at_ms)
            .bind(entry.job.as_ref().map(JobName::as_str))
            .bind(entry.fire)
            .bind(entry.outcome.as_deref());
    }
    query
}
