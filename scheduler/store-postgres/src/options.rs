//! How to reach and use a database.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::Timestamp;
use cueline_store::{ErrorKind, StoreError};

/// Tells the time in place of the database's clock.
pub type NowFn = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How to reach and use a database.
#[derive(Clone)]
pub struct PgOptions {
    /// The clock; the database server's by default. For tests.
    pub now: Option<NowFn>,
    /// An executor counts as live while its last sign of life is younger than this; 15,000 by default.
    pub executor_dead_after_ms: u64,
    /// Connections for the scheduler's own calls, which write; 8 by default. Beside them there are up to four for its most frequent statements.
    pub writers: u32,
    /// Connections for lists and single runs that people ask for; 4 by default.
    pub readers: u32,
    /// What `pg_stat_activity` shows; `cueline` by default.
    pub application_name: String,
    /// Creates the schema in an empty database and brings an older one up to date; `true` by default. Otherwise both are refused.
    pub migrate: bool,
    /// A call waits at most this long for a connection, behind other calls; 30 s by default.
    pub acquire_timeout: Duration,
    /// The server gives up waiting for a lock after this; 10 s by default.
    pub lock_timeout: Duration,
    /// The server gives up a statement after this; 30 s by default.
    pub statement_timeout: Duration,
    /// The server ends a connection that is silent within a transaction for this long, and with it the locks of a node that
    /// vanished; 15 s by default.
    pub idle_in_transaction_timeout: Duration,
    /// The server notices within about this time that the other end of an idle connection is gone; 30 s by default.
    pub keepalive: Duration,
    /// A call is given up when it has had no answer for this long, whatever it waits for: the connection may be half-open; 60 s by
    /// default.
    pub call_timeout: Duration,
}

impl Default for PgOptions {
    fn default() -> Self {
        Self {
            now: None,
            executor_dead_after_ms: 15_000,
            writers: 8,
            readers: 4,
            application_name: "cueline".to_owned(),
            migrate: true,
            acquire_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            idle_in_transaction_timeout: Duration::from_secs(15),
            keepalive: Duration::from_secs(30),
            call_timeout: Duration::from_mins(1),
        }
    }
}

impl PgOptions {
    /// Refuses what cannot work.
    pub(crate) fn validate(&self) -> Result<(), StoreError> {
        let refuse = |what: &str, given: String, accepted: &str| {
            Err(StoreError::new(
                ErrorKind::Invalid,
                format!("failed to open the store: {what} is {given}, it must be {accepted}"),
            ))
        };
        for (what, connections) in [("writers", self.writers), ("readers", self.readers)] {
            if connections == 0 {
                return refuse(what, connections.to_string(), "at least 1");
            }
        }
        for (what, time) in [
            ("acquire_timeout", self.acquire_timeout),
            ("lock_timeout", self.lock_timeout),
            ("statement_timeout", self.statement_timeout),
            (
                "idle_in_transaction_timeout",
                self.idle_in_transaction_timeout,
            ),
            ("keepalive", self.keepalive),
            ("call_timeout", self.call_timeout),
        ] {
            // PostgreSQL takes 0 as "never".
            if time < Duration::from_millis(1) {
                return refuse(what, format!("{time:?}"), "at least 1 ms");
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for PgOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgOptions")
            .field("now", &self.now.as_ref().map(|_| "injected"))
            .field("executor_dead_after_ms", &self.executor_dead_after_ms)
            .field("writers", &self.writers)
            .field("readers", &self.readers)
            .field("application_name", &self.application_name)
            .field("migrate", &self.migrate)
            .field("acquire_timeout", &self.acquire_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field(
                "idle_in_transaction_timeout",
                &self.idle_in_transaction_timeout,
            )
            .field("keepalive", &self.keepalive)
            .field("call_timeout", &self.call_timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_named() {
        assert!(PgOptions::default().validate().is_ok());
        let none = PgOptions {
            writers: 0,
            ..PgOptions::default()
        };
        let error = none.validate().expect_err("is refused").to_string();
        assert!(
            error.contains("writers is 0, it must be at least 1"),
            "{error}"
        );
        let never = PgOptions {
            lock_timeout: Duration::ZERO,
            ..PgOptions::default()
        };
        let error = never.validate().expect_err("is refused").to_string();
        assert!(error.contains("lock_timeout"), "{error}");
    }
}
