//! The connections to the file, and its clock.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cueline_model::Timestamp;
use cueline_store::PoolUse;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, Sqlite, SqliteConnection, Transaction};

use crate::counted_pool::CountedPool;
use crate::error::{Error, Result, is_full};
use crate::{SqliteOptions, SqliteStore, schema};

/// Connections for reading.
pub(crate) const READERS: u32 = 3;

/// Connections that find sessions and API tokens. Each request needs one for a moment, and must not wait for the
/// queries of other users.
const AUTHENTICATION_CONNECTIONS: u32 = 2;

/// The longest wait while another process writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait while other calls use all connections.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Database {
    writer: CountedPool,
    readers: CountedPool,
    authentication: CountedPool,
    options: SqliteOptions,
    /// The last commit found the disk full.
    disk_full: Arc<AtomicBool>,
}

/// A writing transaction. It is rolled back if it is dropped without a commit.
#[derive(Debug)]
pub(crate) struct WriteTx {
    tx: Transaction<'static, Sqlite>,
    disk_full: Arc<AtomicBool>,
}

impl WriteTx {
    /// Makes the changes durable.
    pub(crate) async fn commit(self) -> Result<()> {
        let Self { tx, disk_full } = self;
        tx.commit().await.map_err(|error| {
            disk_full.fetch_or(is_full(&error), Ordering::Relaxed);
            Error::Commit(error)
        })
    }
}

impl Deref for WriteTx {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.tx
    }
}

impl DerefMut for WriteTx {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.tx
    }
}

impl Database {
    pub(crate) async fn open(path: &Path, options: SqliteOptions) -> Result<Self> {
        let base = SqliteConnectOptions::new()
            .filename(path)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(false)
            .statement_cache_capacity(200)
            .disable_statement_logging();
        // With a larger log, a page that many batches change is copied back into the file only once. A commit that has moved
        // entries between pages goes through the whole cache, so a larger one costs more than it saves.
        let writing = base
            .clone()
            .create_if_missing(true)
            .pragma("wal_autocheckpoint", "4000")
            .pragma("journal_size_limit", "67108864")
            .pragma("cache_size", "-16384")
            .pragma("temp_store", "MEMORY");
        // Retention gives back what is free. In an existing file the setting would have no effect, but write a page, also
        // where the store is refused after that. Connections that replace the first one would need room for that page on a
        // full disk.
        let is_new = std::fs::metadata(path).map_or(true, |file| file.len() == 0);
        let creating = if is_new {
            let creating = writing.clone();
            creating.auto_vacuum(SqliteAutoVacuum::Incremental)
        } else {
            writing.clone()
        };
        let writer = pool(1).connect_with(creating).await?;
        schema::prepare(&writer, options.migrate).await?;
        writer.set_connect_options(writing);
        let reading = base
            .create_if_missing(false)
            .pragma("query_only", "1")
            .pragma("cache_size", "-16384");
        let readers = pool(READERS).connect_with(reading.clone()).await?;
        // A connection like that of a reader was opened, so this one is opened without a wait for it.
        let authentication = pool(AUTHENTICATION_CONNECTIONS).connect_lazy_with(reading);
        Ok(Self {
            writer: CountedPool::new("writer", writer),
            readers: CountedPool::new("readers", readers),
            authentication: CountedPool::new("authentication", authentication),
            options,
            disk_full: Arc::default(),
        })
    }

    pub(crate) async fn close(&self) {
        self.authentication.close().await;
        self.readers.close().await;
        self.writer.close().await;
    }

    /// The use of the connections.
    pub(crate) fn pool_use(&self) -> Vec<PoolUse> {
        let pools = [&self.writer, &self.readers, &self.authentication];
        pools.map(CountedPool::usage).into()
    }

    pub(crate) async fn limit_pages(&self, pages: u32) -> std::result::Result<(), sqlx::Error> {
        sqlx::query(AssertSqlSafe(format!("PRAGMA max_page_count = {pages}")))
            .execute(self.writer.for_call())
            .await
            .map(drop)
    }

    /// Begins a writing transaction. Only one exists at a time.
    pub(crate) async fn write(&self) -> Result<WriteTx> {
        if self.disk_full.load(Ordering::Relaxed) {
            self.checkpoint().await?;
        }
        Ok(WriteTx {
            tx: self.writer.for_call().begin_with("BEGIN IMMEDIATE").await?,
            disk_full: Arc::clone(&self.disk_full),
        })
    }

    /// Copies the log back into the file and empties it.
    ///
    /// After a full disk, this comes before any transaction. The log entries of a transaction would take the room that
    /// copying needs. The log only grows, so the disk would stay full.
    async fn checkpoint(&self) -> Result<()> {
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(self.writer.for_call())
            .await?;
        self.disk_full.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// A connection for single reading statements.
    pub(crate) async fn read(&self) -> Result<PoolConnection<Sqlite>> {
        Ok(self.readers.for_call().acquire().await?)
    }

    /// A connection for the statement that finds who sends a request.
    pub(crate) async fn authenticate(&self) -> Result<PoolConnection<Sqlite>> {
        Ok(self.authentication.for_call().acquire().await?)
    }

    /// Begins a reading transaction. All its statements see the same state.
    pub(crate) async fn snapshot(&self) -> Result<Transaction<'static, Sqlite>> {
        Ok(self.readers.for_call().begin().await?)
    }

    /// The time of the database's clock.
    pub(crate) fn now(&self) -> Timestamp {
        match &self.options.clock {
            Some(clock) => clock.now(),
            None => machine_now(),
        }
    }

    pub(crate) fn executor_dead_after_ms(&self) -> u64 {
        self.options.executor_dead_after_ms
    }
}

impl SqliteStore {
    #[expect(clippy::unused_async, reason = "other stores ask their server")]
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        Ok(self.db.now())
    }
}

fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .min_connections(1)
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        // On a full disk SQLite rolls back on its own. sqlx still counts the transaction as open, so the connection
        // could begin no other one.
        .after_release(|conn, _| {
            Box::pin(async move {
                if conn.is_in_transaction() {
                    // The answer comes after a rollback in progress.
                    conn.ping().await?;
                }
                Ok(!conn.is_in_transaction())
            })
        })
}

#[expect(
    clippy::disallowed_methods,
    reason = "SQLite has no clock but the machine's; a statement would read the same one"
)]
fn machine_now() -> Timestamp {
    let millis = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
    };
    Timestamp::from_millis(millis)
}
