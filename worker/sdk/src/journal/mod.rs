//! The worker's journal: what it has accepted, started, ended and reported, on disk.
//!
//! One `SQLite` file, one connection, one writer. Everything that one turn of the worker decides goes into one
//! statement, so each turn costs one sync of the disk however many attempts it concerns. An entry only ever moves
//! on: to a newer attempt, or within an attempt from accepted to started to ended to reported. Writing the same
//! again, or something older, changes nothing. The journal knows nothing of lanes and brokers.

mod open;
mod read;
mod write;

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use cueline_model::StoreId;
use sqlx::ConnectOptions;
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};

use crate::stores::{AttemptKey, RunKey, StoreNumber};

pub use open::UnusableJournal;
pub(crate) use read::{Known, Open};

/// The most reported entries that are kept to answer redelivered triggers.
const MAX_REPORTED: u64 = 1_000_000;
/// How long a reported entry is kept at least, unless there are more than [`MAX_REPORTED`]: longer than triggers are good for (60 min), also where
/// this machine's clock is some minutes off.
const KEEP_REPORTED_MS: i64 = 70 * 60 * 1_000;
/// Entries that one pruning deletes at the most.
const PRUNE_BATCH: u64 = 8_192;

/// What went wrong with the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The state directory, or a file in it, could not be made or opened.
    #[error("failed to open {path}: {source}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is there and is no journal that this program can use.
    #[error("failed to open {path}: {why}")]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why, and what to do.
        why: UnusableJournal,
    },
    /// Another worker uses the state directory.
    #[error("failed to lock {0}: another worker uses this state directory")]
    Locked(PathBuf),
    /// The database said no.
    #[error("failed to {what} the journal: {source}")]
    Database {
        /// read, write, prune
        what: &'static str,
        /// Why.
        source: sqlx::Error,
    },
    /// What was read makes no sense.
    #[error("failed to read the journal: {0}")]
    Corrupt(String),
}

impl JournalError {
    fn database(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { what, source }
    }
}

/// How far an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum State {
    /// It waits in its lane.
    Accepted = 0,
    /// Its handler was started.
    Started = 1,
    /// It has an outcome.
    Ended = 2,
    /// The broker has confirmed the outcome.
    Reported = 3,
}

/// What is to be written of one attempt.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: AttemptKey,
    pub(crate) state: State,
    /// Order of acceptance.
    pub(crate) seq: i64,
    pub(crate) at_ms: i64,
    /// The job's name: reports are published under it.
    pub(crate) job: Option<String>,
    /// The trigger as it came; kept only while the attempt waits.
    pub(crate) trigger: Option<Bytes>,
    /// JSON.
    pub(crate) outcome: Option<String>,
}

/// When the worker was in contact with the broker for the last time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastContact {
    /// By the wall clock.
    pub(crate) at_ms: i64,
    /// By the time since the machine's start,
    pub(crate) up_ms: i64,
    /// which was this one.
    pub(crate) boot_id: String,
}

/// An open journal. The directory stays locked until it is dropped.
#[derive(Debug)]
pub(crate) struct Journal {
    connection: SqliteConnection,
    statements: write::Statements,
    reported: u64,
    /// Goes with the next write.
    contact: Option<LastContact>,
    /// So do these.
    stores: Vec<(StoreNumber, StoreId)>,
    _lock: File,
}

impl Journal {
    /// Opens, or makes, the journal in `directory`.
    pub(crate) async fn open(directory: &Path) -> Result<Self, JournalError> {
        let lock = lock(directory)?;
        let path = directory.join("journal.db");
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5))
            .pragma("temp_store", "memory")
            .disable_statement_logging();
        let mut connection = open::connect(&options)
            .await
            .map_err(|why| JournalError::Unusable { path, why })?;
        let reported: i64 = sqlx::query_scalar("SELECT count(*) FROM entry WHERE state = 3")
            .fetch_one(&mut connection)
            .await
            .map_err(JournalError::database("read"))?;
        Ok(Self {
            connection,
            statements: write::Statements::default(),
            reported: reported.unsigned_abs(),
            contact: None,
            stores: Vec::new(),
            _lock: lock,
        })
    }

    /// Deletes some of the reported entries that are no longer needed at `now_ms`.
    pub(crate) async fn prune(&mut self, now_ms: i64) -> Result<u64, JournalError> {
        let surplus = self.reported.saturating_sub(MAX_REPORTED).min(PRUNE_BATCH);
        let (before_ms, most) = if surplus > 0 {
            (i64::MAX, surplus)
        } else {
            (now_ms.saturating_sub(KEEP_REPORTED_MS), PRUNE_BATCH)
        };
        let done = sqlx::query(
            "DELETE FROM entry WHERE run IN
                 (SELECT run FROM entry WHERE state = 3 AND at < ?1 ORDER BY at LIMIT ?2)",
        )
        .bind(before_ms)
        .bind(i64::try_from(most).unwrap_or(i64::MAX))
        .execute(&mut self.connection)
        .await
        .map_err(JournalError::database("prune"))?;
        self.reported = self.reported.saturating_sub(done.rows_affected());
        Ok(done.rows_affected())
    }

    /// Whether there is more than the limit to prune.
    pub(crate) fn is_over_full(&self) -> bool {
        self.reported > MAX_REPORTED
    }

    /// Closes the file in order.
    pub(crate) async fn close(self) {
        use sqlx::Connection;
        if let Err(error) = self.connection.close().await {
            tracing::warn!(%error, "the journal was not closed in order; nothing is lost");
        }
    }
}

fn lock(directory: &Path) -> Result<File, JournalError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| JournalError::Open { path, source }
    };
    std::fs::create_dir_all(directory).map_err(at(directory))?;
    let path = directory.join("worker.lock");
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .open(&path)
        .map_err(at(&path))?;
    // A worker that was killed in the middle of starting a process leaves the lock to that one until it has become the program that it is to
    // be: a few milliseconds, in which a supervisor may have started the next worker.
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(source)) => return Err(JournalError::Open { path, source }),
        }
    }
    Err(JournalError::Locked(path))
}

const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

/// The runs' keys, as a JSON array.
fn json_of(runs: impl Iterator<Item = RunKey>) -> String {
    use std::fmt::Write;
    let mut text = String::from("[");
    for (i, run) in runs.enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{}", run.number());
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests;
