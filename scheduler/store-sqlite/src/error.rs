//! What SQLite says, in the words of the port.

use cueline_store::{ErrorKind, StoreError};

pub(crate) use cueline_store::adapter::values::damaged;

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

/// Turns a failed statement into "failed to `what`: …".
pub(crate) fn failed(what: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| {
        let (kind, why) = judge(&error);
        let message = match why {
            Some(why) => format!("failed to {what}: {why}"),
            None => format!("failed to {what}: {error}"),
        };
        StoreError::new(kind, message).caused_by(error)
    }
}

/// There was no room on the disk.
pub(crate) fn is_full(error: &sqlx::Error) -> bool {
    primary_code(error) == Some(code::FULL)
}

fn judge(error: &sqlx::Error) -> (ErrorKind, Option<&'static str>) {
    use ErrorKind::{Broken, Transient};
    let Some(code) = primary_code(error) else {
        return match error {
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
    fn a_full_disk_is_named_and_transient() {
        let error = said("13");
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert_eq!(error.to_string(), "failed to write: the disk is full");
    }

    #[test]
    fn extended_codes_count_as_their_primary_code() {
        // SQLITE_IOERR_FSYNC, SQLITE_BUSY_SNAPSHOT, SQLITE_CORRUPT_INDEX
        assert_eq!(said("1034").kind(), ErrorKind::Transient);
        assert_eq!(said("517").kind(), ErrorKind::Transient);
        assert_eq!(said("779").kind(), ErrorKind::Broken);
        assert_eq!(said("26").kind(), ErrorKind::Broken);
    }
}
