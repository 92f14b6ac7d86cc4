//! Errors of the journal.

use std::path::PathBuf;

use super::schema::VERSION;

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The state directory, or a file in it, could not be made or opened.
    #[error("failed to open {path}: {source}")]
    Open {
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file exists and is no journal that this program can use.
    #[error("failed to open {path}: {why}")]
    Unusable {
        /// The journal's file.
        path: PathBuf,
        /// The reason, with advice.
        why: UnusableJournal,
    },
    /// Another worker uses the state directory.
    #[error("failed to lock {0}: another worker uses this state directory")]
    Locked(PathBuf),
    /// The database refused an operation.
    #[error("failed to {operation} the journal: {source}")]
    Database {
        /// `read`, `write` or `prune`.
        operation: &'static str,
        /// The database's error.
        source: sqlx::Error,
    },
    /// The thread of the database has ended. A write may or may not be on disk, and no later call succeeds.
    #[error(
        "failed to {operation} the journal: the thread of its database ended unexpectedly; the next start continues from the file"
    )]
    ThreadEnded {
        /// `read`, `write` or `prune`.
        operation: &'static str,
    },
    /// An entry has a value that no worker writes.
    #[error("failed to read the journal: {0}")]
    Corrupt(String),
}

impl JournalError {
    pub(super) fn database(operation: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| match source {
            // Each read of one row is of an aggregate, which has a row. If the thread ends during it, sqlx ends the rows
            // without an error.
            sqlx::Error::WorkerCrashed | sqlx::Error::RowNotFound => {
                Self::ThreadEnded { operation }
            }
            source => Self::Database { operation, source },
        }
    }

    /// Whether the open journal can never be used again.
    pub(crate) const fn is_final(&self) -> bool {
        matches!(self, Self::ThreadEnded { .. })
    }
}

/// Why a file cannot be the journal. The message has advice.
#[derive(Debug, thiserror::Error)]
pub enum UnusableJournal {
    /// The database could not open it.
    #[error(
        "{0}; if the disk is healthy and the file is not, move the file away: attempts that had started then end lost"
    )]
    Database(#[from] sqlx::Error),
    /// It belongs to another program.
    #[error(
        "it is a database of another program; use another state directory, or move the file away"
    )]
    OtherProgram,
    /// A newer program made it.
    #[error("it has version {0}, this program knows versions up to {VERSION}; use a newer program")]
    Newer(i64),
}
