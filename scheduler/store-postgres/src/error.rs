//! Errors of PostgreSQL, as errors of the port.

use cueline_store::{ErrorKind, StoreError};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

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
    /// No id was allocated, because the history of the database is not the recorded one. Nothing was changed.
    UnknownHistory,
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

/// Conditions with their own handling, <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
mod state {
    pub(super) const UNIQUE_VIOLATION: &str = "23505";
    pub(super) const CHECK_VIOLATION: &str = "23514";
    pub(super) const SERIALIZATION_FAILURE: &str = "40001";
    pub(super) const DEADLOCK_DETECTED: &str = "40P01";
    pub(super) const READ_ONLY_TRANSACTION: &str = "25006";
    pub(super) const IDLE_IN_TRANSACTION: &str = "25P03";
    pub(super) const INSUFFICIENT_PRIVILEGE: &str = "42501";
    pub(super) const DISK_FULL: &str = "53100";
    pub(super) const TOO_MANY_CONNECTIONS: &str = "53300";
    pub(super) const LOCK_NOT_AVAILABLE: &str = "55P03";
    pub(super) const QUERY_CANCELED: &str = "57014";
    pub(super) const CANNOT_CONNECT_NOW: &str = "57P03";
    pub(super) const NO_DATABASE: &str = "3D000";
}

impl Error {
    /// A statement failed that was a transaction of its own. Only an error that the server has reported, and after which the
    /// connection goes on, proves that nothing was changed.
    pub(crate) fn autocommit(error: sqlx::Error) -> Self {
        let reported = error.as_database_error();
        let reported = reported.and_then(|e| e.try_downcast_ref::<PgDatabaseError>());
        match reported.map(PgDatabaseError::severity) {
            Some(PgSeverity::Error) => Self::Statement(error),
            _ => Self::Commit(error),
        }
    }

    /// The error of the port: "failed to `what`: …".
    pub(crate) fn failed_to(self, what: &str) -> StoreError {
        let failed = |error: sqlx::Error| {
            let (kind, reason) = classify(&error);
            StoreError::new(kind, format!("failed to {what}: {reason}")).caused_by(error)
        };
        match self {
            Self::Store(error) => error,
            Self::Statement(error) => failed(error),
            Self::Commit(error) => failed(error).with_unknown_outcome(),
            Self::UnknownHistory => StoreError::new(
                ErrorKind::Transient,
                format!("failed to {what}: the database is being promoted or restored"),
            ),
        }
    }

    /// The kind of the error of the port.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Statement(error) | Self::Commit(error) => classify(error).0,
            Self::UnknownHistory => ErrorKind::Transient,
        }
    }

    /// Whether the server rolled the transaction back because of another one. The same call may be repeated at once.
    pub(crate) fn is_conflict(&self) -> bool {
        self.has_state(&[state::DEADLOCK_DETECTED, state::SERIALIZATION_FAILURE])
    }

    /// Whether a statement, or its wait for a lock, exceeded its limit.
    pub(crate) fn is_timeout(&self) -> bool {
        self.has_state(&[state::LOCK_NOT_AVAILABLE, state::QUERY_CANCELED])
    }

    /// Whether another row has the same key.
    pub(crate) fn is_unique_violation(&self) -> bool {
        self.has_state(&[state::UNIQUE_VIOLATION])
    }

    /// Whether the day of a run has no partition.
    pub(crate) fn is_missing_partition(&self) -> bool {
        self.has_state(&[state::CHECK_VIOLATION])
    }

    /// Whether no id was allocated, because the history of the database is not the recorded one.
    pub(crate) const fn is_unknown_history(&self) -> bool {
        matches!(self, Self::UnknownHistory)
    }

    /// Whether the user lacks the right for a statement.
    pub(crate) fn is_not_permitted(&self) -> bool {
        self.has_state(&[state::INSUFFICIENT_PRIVILEGE])
    }

    fn has_state(&self, states: &[&str]) -> bool {
        let (Self::Statement(error) | Self::Commit(error)) = self else {
            return false;
        };
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        code.is_some_and(|code| states.contains(&code.as_ref()))
    }
}

/// The kind of an error, and its reason for an operator.
fn classify(error: &sqlx::Error) -> (ErrorKind, String) {
    use ErrorKind::{Broken, Transient};
    if let Some(reason) = refused_certificate(error) {
        return (Broken, reason);
    }
    let Some(error) = error.as_database_error() else {
        let kind = match error {
            sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Io(_)
            | sqlx::Error::Protocol(_) => Transient,
            _ => Broken,
        };
        return (kind, error.to_string());
    };
    let code = error.code().unwrap_or_default();
    let message = error.message();
    let (kind, reason) = match code.as_ref() {
        state::DISK_FULL => (Transient, "the database server's disk is full"),
        state::TOO_MANY_CONNECTIONS => (Transient, "the database server has too many connections"),
        state::LOCK_NOT_AVAILABLE => (Transient, "another transaction held a lock for too long"),
        state::QUERY_CANCELED => (Transient, "a statement took too long"),
        state::CANNOT_CONNECT_NOW => (Transient, "the database server is starting or stopping"),
        state::READ_ONLY_TRANSACTION => (Transient, "the database server is a read-only replica"),
        state::IDLE_IN_TRANSACTION => (Transient, "a transaction was idle for too long"),
        state::NO_DATABASE => (Broken, "the database does not exist"),
        code => return (kind_of_class(code), message.to_owned()),
    };
    (kind, format!("{reason} ({message})"))
}

/// The reason if the server's certificate was refused. sqlx reports that as an I/O error.
fn refused_certificate(error: &sqlx::Error) -> Option<String> {
    let sqlx::Error::Io(error) = error else {
        return None;
    };
    let message = error.to_string();
    let refused =
        error.kind() == std::io::ErrorKind::InvalidData && message.contains("certificate");
    refused.then(|| {
        format!(
            "the database server's certificate is not accepted ({message}); sslrootcert in the address names the authorities that are trusted"
        )
    })
}

/// The first two characters of a code are its class.
fn kind_of_class(code: &str) -> ErrorKind {
    match code.get(..2).unwrap_or_default() {
        // Connection, rollback, resources, operator intervention (shutdown, crash), system (I/O).
        "08" | "40" | "53" | "57" | "58" => ErrorKind::Transient,
        // The next call creates a missing partition.
        _ if code == state::CHECK_VIOLATION => ErrorKind::Transient,
        // Data that PostgreSQL cannot keep: out of range, not in its encoding.
        "22" => ErrorKind::Invalid,
        _ => ErrorKind::Broken,
    }
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

    fn error_with(code: &'static str) -> Error {
        Error::Statement(sqlx::Error::Database(Box::new(FakeError(code))))
    }

    #[test]
    fn conditions_that_pass_are_transient() {
        for code in [
            "08006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01",
            "57P02", "57P03", "58030", "25P03", "25006",
        ] {
            assert_eq!(error_with(code).kind(), ErrorKind::Transient, "{code}");
        }
    }

    #[test]
    fn conditions_that_need_an_operator_are_not() {
        for code in ["28P01", "3D000", "42P01", "42501", "XX001", "23505"] {
            assert_eq!(error_with(code).kind(), ErrorKind::Broken, "{code}");
        }
        assert_eq!(error_with("22003").kind(), ErrorKind::Invalid);
    }

    #[test]
    fn messages_name_the_call_and_the_reason() {
        let message = |code| error_with(code).failed_to("write").to_string();
        assert_eq!(
            message("53100"),
            "failed to write: the database server's disk is full (details)"
        );
        assert_eq!(message("28P01"), "failed to write: details");
    }

    #[test]
    fn only_a_failed_commit_has_an_unknown_outcome() {
        let failed = || sqlx::Error::PoolTimedOut;
        let commit = Error::Commit(failed()).failed_to("write");
        let statement = Error::Statement(failed()).failed_to("write");
        assert!(commit.is_outcome_unknown() && !statement.is_outcome_unknown());
    }

    #[test]
    fn conflicts_timeouts_and_missing_partitions_are_recognised() {
        assert!(error_with("40P01").is_conflict());
        assert!(!error_with("55P03").is_conflict());
        assert!(error_with("23505").is_unique_violation());
        assert!(error_with("23514").is_missing_partition());
        assert!(error_with("55P03").is_timeout() && error_with("57014").is_timeout());
        assert!(!error_with("40P01").is_timeout());
        assert!(error_with("42501").is_not_permitted());
        assert_eq!(Error::UnknownHistory.kind(), ErrorKind::Transient);
    }
}
