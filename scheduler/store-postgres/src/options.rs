//! Options for connections to a database.

use std::time::Duration;

use cueline_store::{ClockOverride, ErrorKind, StoreError};

/// How to reach and use a database.
#[derive(Debug, Clone)]
pub struct PgOptions {
    /// The clock, for tests. By default it is the clock of the database server.
    pub clock: Option<ClockOverride>,
    /// How long after its last heartbeat an executor counts as live, in milliseconds; 15,000 by default.
    pub executor_dead_after_ms: u64,
    /// Connections for the scheduler's own calls; 8 by default. Up to six more serve its most frequent statements,
    /// and two find who sends a request.
    pub writers: u32,
    /// Connections for the queries of users; 4 by default.
    pub readers: u32,
    /// The name in `pg_stat_activity`; `cueline` by default.
    pub application_name: String,
    /// Whether to create the schema in an empty database, and to migrate an older one; `true` by default. If `false`,
    /// opening such a database fails.
    pub migrate: bool,
    /// The longest wait while other calls use all connections; 30 s by default.
    pub acquire_timeout: Duration,
    /// The longest wait for a lock, on the server; 10 s by default.
    pub lock_timeout: Duration,
    /// The longest execution of a statement, on the server; 30 s by default.
    pub statement_timeout: Duration,
    /// The longest silence within a transaction, on the server; 15 s by default. After it the server closes the
    /// connection, which releases the locks of a stalled node.
    pub idle_in_transaction_timeout: Duration,
    /// How soon the server notices that the other end of an idle connection is gone; 30 s by default.
    pub keepalive: Duration,
    /// The longest duration of a call; 60 s by default. It bounds every wait, because a connection may be half-open.
    pub call_timeout: Duration,
}

impl Default for PgOptions {
    fn default() -> Self {
        Self {
            clock: None,
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
    /// Returns an error for values out of range.
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
            // To PostgreSQL 0 means no limit.
            if time < Duration::from_millis(1) {
                return refuse(what, format!("{time:?}"), "at least 1 ms");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        assert!(PgOptions::default().validate().is_ok());
        let no_writers = PgOptions {
            writers: 0,
            ..PgOptions::default()
        };
        let error = no_writers.validate().expect_err("is refused").to_string();
        assert!(
            error.contains("writers is 0, it must be at least 1"),
            "{error}"
        );
        let no_limit = PgOptions {
            lock_timeout: Duration::ZERO,
            ..PgOptions::default()
        };
        let error = no_limit.validate().expect_err("is refused").to_string();
        assert!(error.contains("lock_timeout"), "{error}");
    }
}
