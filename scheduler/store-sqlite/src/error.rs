//! Errors of SQLite, as errors of the port.

use cueline_store::adapter::convert::corrupt;
use cueline_store::{ErrorKind, StoreError};

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why a method of the port failed. [`failed_to`](Self::failed_to) adds the name of the method.
#[derive(Debug)]
pub(crate) enum Error {
    /// A statement failed. Nothing was changed.
    Statement(sqlx::Error),
    /// The commit failed. It may have been carried out.
    Commit(sqlx::Error),
    /// The request was refused, or stored data is unreadable. The message is complete.
    Store(StoreError),
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::Statement(error)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Store(corrupt("failed to write a list as JSON", error))
    }
}

impl Error {
    /// The error of the port: "failed to `what`: …".
    pub(crate) fn failed_to(self, what: &str) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Statement(error) => failed_to(what, error),
            Self::Commit(error) => failed_to(what, error).with_unknown_outcome(),
        }
    }
}

pub(crate) fn failed_to(what: &str, error: sqlx::Error) -> StoreError {
    let (kind, reason) = classify(&error);
    let message = match reason {
        Some(reason) => format!("failed to {what}: {reason}"),
        None => format!("failed to {what}: {error}"),
    };
    StoreError::new(kind, message).caused_by(error)
}

/// Primary result codes, <https://www.sqlite.org/rescode.html>.
mod code {
    pub(super) const BUSY: u32 = 5;
    pub(super) const LOCKED: u32 = 6;
    pub(super) const NOMEM: u32 = 7;
    pub(super) const READONLY: u32 = 8;
    pub(super) const IOERR: u32 = 10;
    pub(super) const CORRUPT: u32 = 11;
    pub(super) const FULL: u32 = 13;
    pub(super) const CANTOPEN: u32 = 14;
    pub(super) const NOTADB: u32 = 26;
}

/// Whether the disk was full.
pub(crate) fn is_full(error: &sqlx::Error) -> bool {
    primary_code(error) == Some(code::FULL)
}

/// The kind of an error, and a reason if SQLite's own message would not help an operator.
fn classify(error: &sqlx::Error) -> (ErrorKind, Option<&'static str>) {
    use ErrorKind::{Broken, Transient};
    let Some(code) = primary_code(error) else {
        return match error {
            // The pool replaces a connection whose thread has ended.
            sqlx::Error::WorkerCrashed => (
                Transient,
                Some(
                    "the thread of a connection ended unexpectedly; the next call opens another one",
                ),
            ),
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Io(_) => {
                (Transient, None)
            }
            _ => (Broken, None),
        };
    };
    match code {
        code::BUSY | code::LOCKED => (Transient, Some("another process is writing to the store")),
        code::NOMEM => (Transient, Some("out of memory")),
        code::READONLY => (
            Transient,
            Some("the store's file or its directory is read-only"),
        ),
        code::IOERR => (Transient, Some("the disk reports an error")),
        code::FULL => (Transient, Some("the disk is full")),
        code::CANTOPEN => (Transient, Some("the store's file cannot be opened")),
        code::CORRUPT => (Broken, Some("the store's file is damaged")),
        code::NOTADB => (Broken, Some("the file is not a Cueline store")),
        _ => (Broken, None),
    }
}

fn primary_code(error: &sqlx::Error) -> Option<u32> {
    let code = error.as_database_error()?.code()?;
    code.parse::<u32>().ok().map(|extended| extended & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct FakeError(&'static str);

    impl std::fmt::Display for FakeError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("details")
        }
    }

    impl std::error::Error for FakeError {}

    impl sqlx::error::DatabaseError for FakeError {
        fn message(&self) -> &'static str {
            "details"
        }
        fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some(self.0.into())
        }
        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }
        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }
        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }
        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    fn error_with(code: &'static str) -> StoreError {
        failed_to("write", sqlx::Error::Database(Box::new(FakeError(code))))
    }

    #[test]
    fn a_full_disk_is_named_and_transient() {
        let error = error_with("13");
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert_eq!(error.to_string(), "failed to write: the disk is full");
    }

    #[test]
    fn extended_codes_count_as_their_primary_code() {
        // SQLITE_IOERR_FSYNC, SQLITE_BUSY_SNAPSHOT, SQLITE_CORRUPT_INDEX
        assert_eq!(error_with("1034").kind(), ErrorKind::Transient);
        assert_eq!(error_with("517").kind(), ErrorKind::Transient);
        assert_eq!(error_with("779").kind(), ErrorKind::Broken);
        assert_eq!(error_with("26").kind(), ErrorKind::Broken);
    }

    /// The next call gets another connection.
    #[test]
    fn an_ended_thread_of_a_connection_is_transient() {
        let error = failed_to("write", sqlx::Error::WorkerCrashed);
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    }

    #[test]
    fn only_a_failed_commit_has_an_unknown_outcome() {
        let failed = || sqlx::Error::PoolTimedOut;
        let commit = Error::Commit(failed()).failed_to("write");
        let statement = Error::Statement(failed()).failed_to("write");
        assert!(commit.is_outcome_unknown() && !statement.is_outcome_unknown());
    }
}
