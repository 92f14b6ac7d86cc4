//! What PostgreSQL says, in the words of the port.

use cueline_store::{ErrorKind, StoreError};

/// Conditions that are told apart here, <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
mod state {
    pub(super) const CHECK_VIOLATION: &str = "23514";
    pub(super) const SERIALIZATION_FAILURE: &str = "40001";
    pub(super) const DEADLOCK_DETECTED: &str = "40P01";
    pub(super) const READ_ONLY_TRANSACTION: &str = "25006";
    pub(super) const IDLE_IN_TRANSACTION: &str = "25P03";
    pub(super) const DISK_FULL: &str = "53100";
    pub(super) const TOO_MANY_CONNECTIONS: &str = "53300";
    pub(super) const LOCK_NOT_AVAILABLE: &str = "55P03";
    pub(super) const QUERY_CANCELED: &str = "57014";
    pub(super) const CANNOT_CONNECT_NOW: &str = "57P03";
    pub(super) const NO_DATABASE: &str = "3D000";
}

/// Turns a failed statement into "failed to `what`: …".
pub(crate) fn failed(what: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| {
        let (kind, why) = judge(&error);
        StoreError::new(kind, format!("failed to {what}: {why}")).caused_by(error)
    }
}

/// The server has undone the transaction because of others that ran beside it: the same call may be made again at once.
pub(crate) fn is_collision(error: &StoreError) -> bool {
    matches!(
        code_of(error).as_deref(),
        Some(state::DEADLOCK_DETECTED | state::SERIALIZATION_FAILURE)
    )
}

/// A lock was not to be had within the time set for it.
pub(crate) fn is_lock_timeout(error: &StoreError) -> bool {
    code_of(error).as_deref() == Some(state::LOCK_NOT_AVAILABLE)
}

/// A run's day has no partition (any more).
pub(crate) fn is_missing_day(error: &StoreError) -> bool {
    code_of(error).as_deref() == Some(state::CHECK_VIOLATION)
}

fn code_of(error: &StoreError) -> Option<String> {
    let source = std::error::Error::source(error)?;
    let error = source.downcast_ref::<sqlx::Error>()?;
    Some(error.as_database_error()?.code()?.into_owned())
}

fn judge(error: &sqlx::Error) -> (ErrorKind, String) {
    use ErrorKind::{Broken, Transient};
    if let Some(why) = untrusted(error) {
        return (Broken, why);
    }
    let Some(told) = error.as_database_error() else {
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
    let code = told.code().unwrap_or_default();
    let message = told.message();
    let (kind, why) = match code.as_ref() {
        state::DISK_FULL => (Transient, "the database server's disk is full"),
        state::TOO_MANY_CONNECTIONS => (Transient, "the database server has too many connections"),
        state::LOCK_NOT_AVAILABLE => (Transient, "a lock was not to be had in time"),
        state::QUERY_CANCELED => (Transient, "a statement took too long"),
        state::CANNOT_CONNECT_NOW => (Transient, "the database server is starting or stopping"),
        state::READ_ONLY_TRANSACTION => (Transient, "the database server is a read-only replica"),
        state::IDLE_IN_TRANSACTION => (Transient, "a transaction was idle for too long"),
        state::NO_DATABASE => (Broken, "the database does not exist"),
        code => (kind_of_class(code), ""),
    };
    match why {
        "" => (kind, message.to_owned()),
        why => (kind, format!("{why} ({message})")),
    }
}

/// The server's certificate was refused. To the library below that is one more failure to read.
fn untrusted(error: &sqlx::Error) -> Option<String> {
    let sqlx::Error::Io(error) = error else {
        return None;
    };
    let said = error.to_string();
    let refused = error.kind() == std::io::ErrorKind::InvalidData && said.contains("certificate");
    refused.then(|| {
        format!(
            "the database server's certificate is not accepted ({said}); sslrootcert in the address names the authorities that are trusted"
        )
    })
}

/// The first two characters are the class of a condition.
fn kind_of_class(code: &str) -> ErrorKind {
    match code.get(..2).unwrap_or_default() {
        // Connection; transaction rolled back; resources; the operator's doing (shutdown, crash); the system (I/O).
        "08" | "40" | "53" | "57" | "58" => ErrorKind::Transient,
        // A partition that is missing is made by the next call.
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
    struct Said(&'static str);

    impl std::fmt::Display for Said {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("said so")
        }
    }

    impl std::error::Error for Said {}

    impl sqlx::error::DatabaseError for Said {
        fn message(&self) -> &'static str {
            "said so"
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

    fn said(code: &'static str) -> StoreError {
        failed("write")(sqlx::Error::Database(Box::new(Said(code))))
    }

    #[test]
    fn what_passes_is_transient() {
        for code in [
            "08006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01",
            "57P02", "57P03", "58030", "25P03", "25006",
        ] {
            assert_eq!(said(code).kind(), ErrorKind::Transient, "{code}");
        }
    }

    #[test]
    fn what_needs_a_person_is_not() {
        for code in ["28P01", "3D000", "42P01", "42501", "XX001", "23505"] {
            assert_eq!(said(code).kind(), ErrorKind::Broken, "{code}");
        }
        assert_eq!(said("22003").kind(), ErrorKind::Invalid);
    }

    #[test]
    fn messages_say_what_failed_and_why() {
        assert_eq!(
            said("53100").to_string(),
            "failed to write: the database server's disk is full (said so)"
        );
        assert_eq!(said("28P01").to_string(), "failed to write: said so");
    }

    #[test]
    fn collisions_are_told_apart() {
        assert!(is_collision(&said("40P01")));
        assert!(!is_collision(&said("55P03")));
        assert!(is_missing_day(&said("23514")));
    }
}
