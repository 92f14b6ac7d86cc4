//! The file: its opening, its lock, its schema, and the meaning of its errors. It knows nothing of leases or callers.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind, QueueId};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};
use tokio::time::{Instant, sleep};

use crate::memory::{id_range, later};
use crate::options::EmbeddedOptions;
use crate::statements::queue_of;

/// Identifies our files: `CueB` in ASCII.
const APPLICATION_ID: i32 = 0x4375_6542;

/// Step n migrates a file from version n to version n + 1 (`user_version`).
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/1_queues.sql")];

/// The WAL is copied back once it has 16 MiB. A page that is written and freed before that is never copied.
const AUTOCHECKPOINT_PAGES: &str = "4096";
/// After a large transaction the WAL is truncated to this size.
const JOURNAL_SIZE_LIMIT: &str = "67108864";
/// The default of `SQLite`.
const PAGE_BYTES: u64 = 4_096;
/// 8 MiB of pages, in KiB (`SQLite` takes a negative number as KiB). A commit that has moved entries between pages goes through
/// the whole cache, so a larger one costs more than it saves.
const CACHE_SIZE: &str = "-8192";

/// A queue as the file has it when it is opened.
#[derive(Debug)]
pub(crate) struct FoundQueue {
    pub(crate) id: QueueId,
    pub(crate) key: i64,
    pub(crate) messages: u64,
    pub(crate) last: i64,
}

/// The opened file.
pub(crate) struct Opened {
    pub(crate) writer: SqliteConnection,
    pub(crate) writer_options: SqliteConnectOptions,
    pub(crate) readers: SqlitePool,
    pub(crate) queues: Vec<FoundQueue>,
    /// How many times the file was opened, including this time.
    pub(crate) openings: i64,
    /// Keeps other processes out until it is dropped.
    pub(crate) lock: File,
}

/// A failure that may go to several callers.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// The connection's thread has ended.
    pub(crate) connection_lost: bool,
    /// The disk is full, or the file has reached its limit.
    pub(crate) no_room: bool,
}

impl Failure {
    pub(crate) fn new(doing: &str, error: &sqlx::Error) -> Self {
        Self {
            kind: kind_of(error),
            message: format!("failed to {doing} the broker's file: {error}"),
            connection_lost: matches!(error, sqlx::Error::WorkerCrashed),
            no_room: result_code(error) == Some(FULL),
        }
    }
}

impl From<Failure> for BrokerError {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind, failure.message)
    }
}

/// Result codes of errors that may pass: `BUSY`, `LOCKED`, `NOMEM`, `INTERRUPT`, `IOERR`, `FULL`, `CANTOPEN`,
/// `PROTOCOL`. See <https://sqlite.org/rescode.html>.
const TRANSIENT_CODES: [i32; 8] = [5, 6, 7, 9, 10, 13, 14, 15];

const FULL: i32 = 13;
const CANNOT_OPEN: i32 = 14;

fn result_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?.parse::<i32>().ok()?;
    // The low byte is the result code; the rest gives details.
    Some(code & 0xff)
}

fn kind_of(error: &sqlx::Error) -> ErrorKind {
    match error {
        sqlx::Error::Database(_) => match result_code(error) {
            Some(code) if TRANSIENT_CODES.contains(&code) => ErrorKind::Transient,
            _ => ErrorKind::Permanent,
        },
        sqlx::Error::PoolClosed => ErrorKind::Closed,
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => {
            ErrorKind::Transient
        }
        _ => ErrorKind::Permanent,
    }
}

/// Opens or creates the file, and migrates it to the present version.
pub(crate) async fn open(path: &Path, options: &EmbeddedOptions) -> Result<Opened, BrokerError> {
    let lock = lock(path, options.lock_wait).await?;
    let most_pages = options.file_bytes / PAGE_BYTES;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .foreign_keys(false)
        .synchronous(SqliteSynchronous::Full)
        .pragma("wal_autocheckpoint", AUTOCHECKPOINT_PAGES)
        .pragma("journal_size_limit", JOURNAL_SIZE_LIMIT)
        .pragma("cache_size", CACHE_SIZE)
        .pragma("max_page_count", most_pages.to_string())
        .row_buffer_size(512)
        .disable_statement_logging();
    let (writer, queues, openings) = open_checked(&options)
        .await
        .map_err(|e| unopened(path, e))?;
    let readers = SqlitePoolOptions::new()
        .max_connections(2)
        .test_before_acquire(false)
        .connect_lazy_with(options.clone().create_if_missing(false).read_only(true));
    Ok(Opened {
        writer,
        writer_options: options.create_if_missing(false),
        readers,
        queues,
        openings,
        lock,
    })
}

fn unopened(path: &Path, problem: Unusable) -> BrokerError {
    let path = path.display();
    match problem {
        Unusable::Sql(e) => {
            let kind = match result_code(&e) {
                // On opening, this code means a wrong path or a missing permission, which do not pass.
                Some(CANNOT_OPEN) => ErrorKind::Permanent,
                _ => kind_of(&e),
            };
            BrokerError::new(kind, format!("failed to open {path}: {e}")).caused_by(e)
        }
        Unusable::OtherProgram => BrokerError::new(
            ErrorKind::Permanent,
            format!("failed to open {path}: it is a database of another program"),
        ),
        Unusable::Newer(version) => BrokerError::new(
            ErrorKind::Permanent,
            format!(
                "failed to open {path}: it has version {version}, this program knows versions up to {}; use a newer program",
                MIGRATIONS.len()
            ),
        ),
        Unusable::Damaged(what) => BrokerError::new(
            ErrorKind::Permanent,
            format!("failed to open {path}: it is damaged: {what}"),
        ),
    }
}

enum Unusable {
    Sql(sqlx::Error),
    OtherProgram,
    Newer(i64),
    Damaged(String),
}

impl From<sqlx::Error> for Unusable {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// Locks the file for this process. Only the process that delivered a message knows of the delivery, so it must be the
/// only one.
async fn lock(path: &Path, wait: Duration) -> Result<File, BrokerError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let failed = |kind, why: String| {
        BrokerError::new(kind, format!("failed to open {}: {why}", path.display()))
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&name)
        .map_err(|e| failed(ErrorKind::Permanent, e.to_string()).caused_by(e))?;
    let give_up = later(Instant::now(), wait);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < give_up => {
                sleep(Duration::from_millis(20)).await;
            }
            Err(TryLockError::WouldBlock) => {
                return Err(failed(
                    ErrorKind::Transient,
                    "another process has it open".to_owned(),
                ));
            }
            Err(TryLockError::Error(e)) => {
                return Err(failed(ErrorKind::Permanent, e.to_string()).caused_by(e));
            }
        }
    }
}

async fn open_checked(
    options: &SqliteConnectOptions,
) -> Result<(SqliteConnection, Vec<FoundQueue>, i64), Unusable> {
    let mut conn = options.connect().await?;
    let found = async {
        // Check before the first write, so that another program's file stays unchanged.
        check_ownership(&mut conn).await?;
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&mut conn)
            .await?;
        migrate(&mut conn).await?;
        let openings = sqlx::query_scalar("UPDATE opening SET times = times + 1 RETURNING times")
            .fetch_optional(&mut conn)
            .await?
            .ok_or_else(|| Unusable::Damaged("table opening is empty".to_owned()))?;
        Ok((read_queues(&mut conn).await?, openings))
    }
    .await;
    match found {
        Ok((queues, openings)) => Ok((conn, queues, openings)),
        Err(problem) => {
            let _ = conn.close().await;
            Err(problem)
        }
    }
}

async fn check_ownership(conn: &mut SqliteConnection) -> Result<(), Unusable> {
    let application: i32 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut *conn)
        .await?;
    let version: i64 = sqlx::query_scalar("PRAGMA user_version")
        .fetch_one(&mut *conn)
        .await?;
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema")
        .fetch_one(&mut *conn)
        .await?;
    let fresh = application == 0 && version == 0 && tables == 0;
    if application != APPLICATION_ID && !fresh {
        return Err(Unusable::OtherProgram);
    }
    if usize::try_from(version).map_or(true, |version| version > MIGRATIONS.len()) {
        return Err(Unusable::Newer(version));
    }
    Ok(())
}

async fn migrate(conn: &mut SqliteConnection) -> Result<(), Unusable> {
    let version: i64 = sqlx::query_scalar("PRAGMA user_version")
        .fetch_one(&mut *conn)
        .await?;
    let done = usize::try_from(version).unwrap_or(0);
    for (i, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        let step = format!(
            "BEGIN IMMEDIATE; {migration}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {}; COMMIT",
            i + 1
        );
        sqlx::raw_sql(AssertSqlSafe(step))
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

async fn read_queues(conn: &mut SqliteConnection) -> Result<Vec<FoundQueue>, Unusable> {
    let rows = sqlx::query("SELECT key, kind, grp, executor FROM queue ORDER BY key")
        .fetch_all(&mut *conn)
        .await?;
    let mut queues = Vec::with_capacity(rows.len());
    for row in rows {
        let key: i64 = row.try_get(0)?;
        let kind: String = row.try_get(1)?;
        let id = queue_of(&kind, row.try_get(2)?, row.try_get(3)?)
            .ok_or_else(|| Unusable::Damaged(format!("queue {key} is of kind {kind:?}")))?;
        let (after, to) = id_range(key);
        // Counting reads every page of the queue, so it also finds damage to the tree now.
        let counted = sqlx::query(
            "SELECT count(*), coalesce(max(id), 0) FROM message WHERE id > ? AND id <= ?",
        )
        .bind(after)
        .bind(to)
        .fetch_one(&mut *conn)
        .await?;
        queues.push(FoundQueue {
            id,
            key,
            messages: u64::try_from(counted.try_get::<i64, _>(0)?).unwrap_or(0),
            last: counted.try_get(1)?,
        });
    }
    Ok(queues)
}
