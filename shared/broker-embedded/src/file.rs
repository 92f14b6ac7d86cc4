//! The file: opening, its schema, every SQL statement, and what its errors mean. Knows nothing of leases or callers.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, ErrorKind, QueueId};
use futures_util::TryStreamExt;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};
use tokio::time::{Instant, sleep};

use crate::memory::{Message, id_range, later};
use crate::options::EmbeddedOptions;
use crate::queue::{LOAD_MESSAGES, Load};

/// Marks the file as ours: `CueB` in ASCII.
const APPLICATION_ID: i32 = 0x4375_6542;

/// Step n brings a file of version n to version n + 1 (`user_version`).
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/1_queues.sql")];

/// A WAL of 16 MiB is copied back; below that a page that is written and freed again is never copied at all.
const AUTOCHECKPOINT_PAGES: &str = "4096";
/// What a large transaction made the WAL grow to is given back down to this.
const JOURNAL_SIZE_LIMIT: &str = "67108864";
/// `SQLite`'s default.
const PAGE_BYTES: u64 = 4_096;
/// 32 MiB of pages, in KiB (negative by `SQLite`'s convention).
const CACHE_SIZE: &str = "-32768";

/// A queue as the file has it at open.
#[derive(Debug)]
pub(crate) struct FoundQueue {
    pub(crate) id: QueueId,
    pub(crate) key: i64,
    pub(crate) messages: u64,
    pub(crate) last: i64,
}

/// An opened file.
pub(crate) struct Opened {
    pub(crate) writer: SqliteConnection,
    pub(crate) writer_options: SqliteConnectOptions,
    pub(crate) readers: SqlitePool,
    pub(crate) queues: Vec<FoundQueue>,
    /// How many times the file was opened, this one included.
    pub(crate) openings: i64,
    /// Keeps other processes out until it is dropped.
    pub(crate) lock: File,
}

/// A failure that several callers may be told of.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// The connection's thread is gone.
    pub(crate) connection_lost: bool,
    /// The disk, or the file at its limit, has no room.
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

/// Result codes after which the same call may succeed later, see <https://sqlite.org/rescode.html>: `BUSY`, `LOCKED`,
/// `NOMEM`, `INTERRUPT`, `IOERR`, `FULL`, `CANTOPEN`, `PROTOCOL`.
const TRANSIENT_CODES: [i32; 8] = [5, 6, 7, 9, 10, 13, 14, 15];

const FULL: i32 = 13;
const CANNOT_OPEN: i32 = 14;

fn result_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?.parse::<i32>().ok()?;
    // The low byte is the result code, the rest says more about it.
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

/// Opens the file, or creates it, and brings it to the present version.
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
                // Here it means a wrong path or no permission, not a passing shortage.
                Some(CANNOT_OPEN) => ErrorKind::Permanent,
                _ => kind_of(&e),
            };
            BrokerError::new(kind, format!("failed to open {path}: {e}")).caused_by(e)
        }
        Unusable::Foreign => BrokerError::new(
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
    Foreign,
    Newer(i64),
    Damaged(String),
}

impl From<sqlx::Error> for Unusable {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// One process owns the file: what is handed out is known to that process alone.
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
        // Before anything is written: another program's file is left as it is.
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
        return Err(Unusable::Foreign);
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
        // Reads every page of the queue, so that damage to the tree shows now.
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

fn queue_of(kind: &str, group: String, executor: String) -> Option<QueueId> {
    Some(match kind {
        "executor" => QueueId::Executor { group, executor },
        "shared" => QueueId::Shared { group },
        "results" => QueueId::Results,
        "requests" => QueueId::Requests,
        "dead" => QueueId::Dead,
        _ => return None,
    })
}

fn columns_of(queue: &QueueId) -> (&'static str, &str, &str) {
    match queue {
        QueueId::Executor { group, executor } => ("executor", group, executor),
        QueueId::Shared { group } => ("shared", group, ""),
        QueueId::Results => ("results", "", ""),
        QueueId::Requests => ("requests", "", ""),
        QueueId::Dead => ("dead", "", ""),
    }
}

pub(crate) async fn begin(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    sqlx::query("BEGIN IMMEDIATE").execute(conn).await?;
    Ok(())
}

pub(crate) async fn commit(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    sqlx::query("COMMIT").execute(conn).await?;
    Ok(())
}

/// Ends a transaction that failed. `SQLite` has ended it already after some errors; that this one then fails is fine.
pub(crate) async fn roll_back(conn: &mut SqliteConnection) {
    let _ = sqlx::query("ROLLBACK").execute(conn).await;
}

/// Copies the WAL back and empties it. When a disk is full, that is where room may be: acks need some, too.
pub(crate) async fn make_room(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
        .execute(conn)
        .await
        .map(drop)
}

pub(crate) async fn insert_queue(
    conn: &mut SqliteConnection,
    queue: &QueueId,
) -> sqlx::Result<i64> {
    let (kind, group, executor) = columns_of(queue);
    sqlx::query_scalar("INSERT INTO queue (kind, grp, executor) VALUES (?, ?, ?) RETURNING key")
        .bind(kind)
        .bind(group)
        .bind(executor)
        .fetch_one(conn)
        .await
}

pub(crate) async fn delete_queue(conn: &mut SqliteConnection, key: i64) -> sqlx::Result<()> {
    let (after, to) = id_range(key);
    sqlx::query("DELETE FROM message WHERE id > ? AND id <= ?")
        .bind(after)
        .bind(to)
        .execute(&mut *conn)
        .await?;
    sqlx::query("DELETE FROM queue WHERE key = ?")
        .bind(key)
        .execute(conn)
        .await?;
    Ok(())
}

/// Rows per statement, largest first. Few sizes, so that few statements are prepared; with 3 values a row the largest
/// stays far below `SQLite`'s 32,766 parameters.
const INSERT_SIZES: [usize; 4] = [256, 32, 4, 1];

static INSERTS: LazyLock<[Arc<str>; INSERT_SIZES.len()]> = LazyLock::new(|| {
    INSERT_SIZES.map(|rows| {
        let values = vec!["(?,?,?)"; rows].join(",");
        format!("INSERT INTO message (id, topic, payload) VALUES {values}").into()
    })
});

pub(crate) async fn insert_messages(
    conn: &mut SqliteConnection,
    messages: &[&Message],
) -> sqlx::Result<()> {
    let mut rest = messages;
    for (size, statement) in INSERT_SIZES.iter().zip(INSERTS.iter()) {
        while rest.len() >= *size {
            let (now, later) = rest.split_at(*size);
            let mut insert = sqlx::query(AssertSqlSafe(Arc::clone(statement)));
            for message in now {
                insert = insert
                    .bind(message.id)
                    .bind(message.topic.as_str())
                    .bind(message.payload.as_ref());
            }
            insert.execute(&mut *conn).await?;
            rest = later;
        }
    }
    Ok(())
}

/// From this many ids side by side on, one range is deleted rather than each id.
const RANGE: usize = 16;

/// Deletes messages; ids that are not there are ignored.
pub(crate) async fn delete_messages(
    conn: &mut SqliteConnection,
    mut ids: Vec<i64>,
) -> sqlx::Result<()> {
    ids.sort_unstable();
    ids.dedup();
    let mut single = String::new();
    for run in ids.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [first, .., last] if run.len() >= RANGE => {
                sqlx::query("DELETE FROM message WHERE id BETWEEN ? AND ?")
                    .bind(*first)
                    .bind(*last)
                    .execute(&mut *conn)
                    .await?;
            }
            _ => {
                for id in run {
                    single.push(if single.is_empty() { '[' } else { ',' });
                    single.push_str(&id.to_string());
                }
            }
        }
    }
    if !single.is_empty() {
        single.push(']');
        sqlx::query("DELETE FROM message WHERE id IN (SELECT value FROM json_each(?))")
            .bind(single)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// One message with the time by the file's clock, to be made a dead letter.
pub(crate) async fn message_and_time(
    conn: &mut SqliteConnection,
    id: i64,
) -> sqlx::Result<Option<(Message, i64)>> {
    let row = sqlx::query(
        "SELECT topic, payload, CAST(unixepoch('subsec') * 1000 AS INTEGER) FROM message WHERE id = ?",
    )
    .bind(id)
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let message = Message {
            id,
            topic: row.try_get(0)?,
            payload: Bytes::from(row.try_get::<Vec<u8>, _>(1)?),
        };
        Ok((message, row.try_get(2)?))
    })
    .transpose()
}

/// What was read, up to about `most_bytes`, and whether the file has no more of it.
pub(crate) async fn load(
    readers: &SqlitePool,
    load: &Load,
    most_bytes: usize,
) -> sqlx::Result<(Vec<Message>, bool)> {
    let query = match load {
        Load::Fresh { after, to } => sqlx::query(
            "SELECT id, topic, payload FROM message WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
        )
        .bind(*after)
        .bind(*to)
        .bind(i64::try_from(LOAD_MESSAGES).unwrap_or(i64::MAX)),
        Load::Again(ids) => {
            let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
            sqlx::query(
                "SELECT id, topic, payload FROM message WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id",
            )
            .bind(format!("[{}]", ids.join(",")))
        }
    };
    let mut rows = query.fetch(readers);
    let (mut messages, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.try_next().await? {
        let message = Message {
            id: row.try_get(0)?,
            topic: row.try_get(1)?,
            payload: Bytes::from(row.try_get::<Vec<u8>, _>(2)?),
        };
        bytes += message.bytes();
        messages.push(message);
        if bytes >= most_bytes {
            return Ok((messages, false));
        }
    }
    let complete = matches!(load, Load::Again(_)) || messages.len() < LOAD_MESSAGES;
    Ok((messages, complete))
}
