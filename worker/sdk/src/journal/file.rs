//! The open journal.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use cueline_model::StoreId;
use cueline_runtime::private_files;
use futures_util::TryStreamExt as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{
    ConnectOptions as _, Connection as _, Either, Execute, Executor as _, Sqlite, SqliteConnection,
};

use super::entry::LeaseRecord;
use super::error::JournalError;
use super::keys::{DELETE_UNUSED_STORES, StoreNumbers};
use super::recent_keys::RecentKeys;
use super::statements::{FewRowsTransactions, RowsStatement};
use super::waiting::{DELETE_UNUSED_TRIGGERS, Waiting};
use super::{lock, open};
use crate::identity::RunKey;

/// 8 MiB of pages, in KiB (`SQLite` takes a negative number as KiB). So the pages of the latest entries stay in memory
/// until later states are written. A commit that has moved entries between pages goes through the whole cache, so a larger
/// one costs more than it saves.
const CACHE_SIZE: &str = "-8192";
/// The write-ahead log is copied back once it has 16 MiB. Most pages of triggers are written and freed before that, and
/// pages of entries are written several times. Each is copied once.
const AUTOCHECKPOINT_PAGES: &str = "4000";
/// After a large transaction, such as that of a restart with many waiting attempts, the write-ahead log is truncated to
/// this size.
const JOURNAL_SIZE_LIMIT: &str = "67108864";

/// An open journal. The state directory stays locked until it is dropped and its last write has ended.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(super) connection: SqliteConnection,
    /// The thread of the connection has ended, or is about to. A further statement may wait for ever.
    pub(super) has_ended: bool,
    pub(super) insert_entries: RowsStatement,
    pub(super) insert_triggers: RowsStatement,
    pub(super) few_rows: FewRowsTransactions,
    /// The attempts whose triggers are in the file.
    pub(super) waiting: Waiting,
    /// The most reported entries that there may be. They are counted when the journal is opened. Each write adds those
    /// that it reports, although one may replace the reported entry of an earlier attempt.
    pub(super) reported: u64,
    pub(super) stores: StoreNumbers,
    pub(super) recent: RecentKeys,
    /// By the number of a store: its entries that were reported until then may be forgotten.
    pub(super) forgotten: HashMap<i64, i64>,
    /// Written together with the next entries.
    pub(super) lease: Option<LeaseRecord>,
}

impl Journal {
    /// Opens the journal in `directory`, or makes one there.
    pub(crate) async fn open(directory: &Path) -> Result<Self, JournalError> {
        let lock = lock::lock(directory)?;
        let path = directory.join("journal.db");
        // It has the triggers of jobs, with their scripts and parameters.
        private_files::open(&path).map_err(|source| JournalError::Open {
            path: path.clone(),
            source,
        })?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5))
            .pragma("temp_store", "memory")
            .pragma("cache_size", CACHE_SIZE)
            .pragma("wal_autocheckpoint", AUTOCHECKPOINT_PAGES)
            .pragma("journal_size_limit", JOURNAL_SIZE_LIMIT)
            .thread_name(|number| format!("journal-{number}"))
            .disable_statement_logging();
        let mut connection = open::connect(&options)
            .await
            .map_err(|why| JournalError::Unusable { path, why })?;
        keep_until_closed(&mut connection, lock).await?;
        let (stores, forgotten) = load_stores(&mut connection).await?;
        let waiting = load_waiting(&mut connection).await?;
        let highest: Option<i64> = sqlx::query_scalar("SELECT max(key) FROM entry")
            .fetch_one(&mut connection)
            .await
            .map_err(JournalError::database("read"))?;
        let mut journal = Self {
            connection,
            has_ended: false,
            stores,
            recent: RecentKeys::new(highest),
            forgotten,
            insert_entries: RowsStatement::entries(),
            insert_triggers: RowsStatement::triggers(),
            few_rows: FewRowsTransactions::default(),
            waiting,
            reported: 0,
            lease: None,
        };
        journal.reported = journal.count_reported().await?;
        Ok(journal)
    }

    /// Counts the reported entries.
    pub(super) async fn count_reported(&mut self) -> Result<u64, JournalError> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM entry WHERE state = 3")
            .fetch_one(&mut self.connection)
            .await
            .map_err(JournalError::database("read"))?;
        Ok(count.unsigned_abs())
    }

    /// Fails if an earlier call has found that the connection's thread ended.
    pub(super) const fn check_thread(&self, operation: &'static str) -> Result<(), JournalError> {
        if self.has_ended {
            Err(JournalError::ThreadEnded { operation })
        } else {
            Ok(())
        }
    }

    /// Why the journal cannot have an entry of this run.
    pub(crate) fn check(&self, run: RunKey) -> Result<(), String> {
        self.stores.check(run)
    }

    /// Closes the file. Without this, the next start has to recover the write-ahead log.
    pub(crate) async fn close(self) {
        if self.has_ended {
            return;
        }
        if let Err(error) = self.connection.close().await {
            tracing::warn!(%error, "failed to close the journal; no entry is lost");
        }
    }
}

/// Runs a statement that returns no rows. Returns the number of changed ones.
///
/// If the connection's thread ends during a statement, sqlx ends the results without an error, and its own `execute`
/// takes that for a statement that changed nothing. The worker would start and ack what is not on disk. A statement
/// that was carried out has a result.
pub(super) async fn execute<'q, E>(
    connection: &mut SqliteConnection,
    statement: E,
) -> Result<u64, sqlx::Error>
where
    E: Execute<'q, Sqlite> + 'q,
{
    let mut results = connection.fetch_many(statement);
    let mut changed = None;
    while let Some(result) = results.try_next().await? {
        if let Either::Left(done) = result {
            changed = Some(done.rows_affected());
        }
    }
    changed.ok_or(sqlx::Error::WorkerCrashed)
}

/// Keeps the lock until the thread of the connection has ended. A journal that is dropped during a write does not wait for
/// it. Without this, the next journal could read the file before that write reaches it.
async fn keep_until_closed(
    connection: &mut SqliteConnection,
    lock: File,
) -> Result<(), JournalError> {
    let mut handle = connection
        .lock_handle()
        .await
        .map_err(JournalError::database("lock"))?;
    // The thread drops its hooks when it ends. The hook itself does nothing.
    handle.set_rollback_hook(move || {
        let _: &File = &lock;
    });
    Ok(())
}

/// Reads the numbers of stores, and until when their entries may be forgotten. Deletes those without entries, so that
/// their number does not grow for ever.
async fn load_stores(
    connection: &mut SqliteConnection,
) -> Result<(StoreNumbers, HashMap<i64, i64>), JournalError> {
    sqlx::query(DELETE_UNUSED_STORES)
        .execute(&mut *connection)
        .await
        .map_err(JournalError::database("prune"))?;
    let rows: Vec<(i64, Vec<u8>, Option<i64>)> =
        sqlx::query_as("SELECT number, id, forgotten FROM store ORDER BY number")
            .fetch_all(&mut *connection)
            .await
            .map_err(JournalError::database("read"))?;
    let forgotten = rows
        .iter()
        .filter_map(|(number, _, until)| Some((*number, (*until)?)))
        .collect();
    let numbers = rows.into_iter().map(|(number, id, _)| {
        let id: [u8; 16] = id
            .try_into()
            .map_err(|_| JournalError::Corrupt(format!("id of store {number}")))?;
        Ok((number, StoreId(u128::from_be_bytes(id))))
    });
    let numbers = StoreNumbers::new(numbers.collect::<Result<_, _>>()?);
    Ok((numbers, forgotten))
}

/// Reads which attempts have a trigger in the file. Deletes triggers of others.
async fn load_waiting(connection: &mut SqliteConnection) -> Result<Waiting, JournalError> {
    sqlx::query(DELETE_UNUSED_TRIGGERS)
        .execute(&mut *connection)
        .await
        .map_err(JournalError::database("prune"))?;
    // The order of the join: there may be many more entries.
    let rows: Vec<(i64, u32)> =
        sqlx::query_as("SELECT key, attempt FROM waiting CROSS JOIN entry USING (key)")
            .fetch_all(&mut *connection)
            .await
            .map_err(JournalError::database("read"))?;
    Ok(Waiting::new(rows))
}
