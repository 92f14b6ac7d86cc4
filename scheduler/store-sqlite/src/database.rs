//! The connections to the file, and its clock.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cueline_model::Timestamp;
use cueline_store::StoreError;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, Sqlite, SqliteConnection, Transaction};

use crate::error::{failed, is_full};
use crate::{SqliteOptions, schema};

/// A transaction that writes; dropped without a commit, it has not happened.
#[derive(Debug)]
pub(crate) struct Write {
    tx: Transaction<'static, Sqlite>,
    no_room: Arc<AtomicBool>,
}

impl Deref for Write {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.tx
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.tx
    }
}

/// Connections for reading beside the writer.
const READERS: u32 = 3;

/// How long to wait for another process's write before giving up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call waits for a connection, behind other calls, before it gives up.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Database {
    writer: SqlitePool,
    readers: SqlitePool,
    options: SqliteOptions,
    /// The last commit found the disk full.
    no_room: Arc<AtomicBool>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Database {
    pub(crate) async fn open(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let base = SqliteConnectOptions::new()
            .filename(path)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(false)
            .statement_cache_capacity(200)
            .disable_statement_logging();
        // A larger log is copied into the file less often, and pages that many batches touch are copied once.
        let writing = base
            .clone()
            .create_if_missing(true)
            .pragma("wal_autocheckpoint", "4000")
            .pragma("journal_size_limit", "67108864")
            .pragma("cache_size", "-65536")
            .pragma("temp_store", "MEMORY");
        let fail = failed("open the store");
        let writer = pool(1).connect_with(writing).await.map_err(&fail)?;
        schema::prepare(&writer, options.migrate).await?;
        let reading = base
            .create_if_missing(false)
            .pragma("query_only", "1")
            .pragma("cache_size", "-16384");
        let readers = pool(READERS).connect_with(reading).await.map_err(&fail)?;
        Ok(Self {
            writer,
            readers,
            options,
            no_room: Arc::default(),
        })
    }

    pub(crate) async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    pub(crate) async fn limit_pages(&self, pages: u32) -> Result<(), StoreError> {
        sqlx::query(AssertSqlSafe(format!("PRAGMA max_page_count = {pages}")))
            .execute(&self.writer)
            .await
            .map(drop)
            .map_err(failed("limit the store's size"))
    }

    /// Begins the one writing transaction.
    pub(crate) async fn write(&self) -> Result<Write, StoreError> {
        if self.no_room.load(Ordering::Relaxed) {
            self.make_room().await?;
        }
        let tx = (self.writer.begin_with("BEGIN IMMEDIATE").await)
            .map_err(failed("begin a transaction"))?;
        let no_room = Arc::clone(&self.no_room);
        Ok(Write { tx, no_room })
    }

    /// Copies the log back into the file and empties it. Once a disk was full, nothing is written before that: it would take the room
    /// that the copying needs, and the log, which only grows, would fill the disk for good.
    async fn make_room(&self) -> Result<(), StoreError> {
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(&self.writer)
            .await
            .map_err(failed("make room for a transaction"))?;
        self.no_room.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// A connection for single reading statements.
    pub(crate) async fn read(&self) -> Result<PoolConnection<Sqlite>, StoreError> {
        self.readers
            .acquire()
            .await
            .map_err(failed("reach the store"))
    }

    /// A reading transaction: all its statements see the same state.
    pub(crate) async fn snapshot(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.readers.begin().await.map_err(failed("begin to read"))
    }

    /// The database's clock.
    pub(crate) fn now(&self) -> Timestamp {
        match &self.options.now {
            Some(now) => now(),
            None => machine_now(),
        }
    }

    pub(crate) fn executor_dead_after_ms(&self) -> u64 {
        self.options.executor_dead_after_ms
    }
}

/// Makes what `tx` did durable.
pub(crate) async fn commit(write: Write) -> Result<(), StoreError> {
    let Write { tx, no_room } = write;
    tx.commit().await.map_err(|error| {
        no_room.fetch_or(is_full(&error), Ordering::Relaxed);
        failed("commit a transaction")(error).with_unknown_outcome()
    })
}

fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .min_connections(1)
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        // On a full disk SQLite rolls back by itself; sqlx then still counts the transaction as open, and the connection could never begin
        // another one.
        .after_release(|conn, _| {
            Box::pin(async move {
                if conn.is_in_transaction() {
                    // Lets a roll-back that is on its way take effect.
                    conn.ping().await?;
                }
                Ok(!conn.is_in_transaction())
            })
        })
}

#[expect(
    clippy::disallowed_methods,
    reason = "SQLite has no clock but the machine's; asking it by a statement would read the same one"
)]
fn machine_now() -> Timestamp {
    let millis = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
    };
    Timestamp::from_millis(millis)
}
