//! What an adapter tells about its load, for metrics.

use cueline_model::{ExecutorId, Timestamp};

/// The longest wait of an executor's attempts in `queued`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldestQueued {
    /// The executor that the attempts were published to.
    pub executor: ExecutorId,
    /// How long the oldest of them has been `queued`, in milliseconds, by the database's clock.
    pub age_ms: u64,
}

impl OldestQueued {
    /// The oldest attempt of an executor has been `queued` since `queued_at`. A time in the future, from before the
    /// clock was set back, gives an age of 0.
    pub fn since(executor: ExecutorId, queued_at: Timestamp, now: Timestamp) -> Self {
        let age_ms = u64::try_from(now.since_ms(queued_at)).unwrap_or(0);
        Self { executor, age_ms }
    }
}

/// The connections of one pool of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// The name of the pool within the adapter.
    pub pool: &'static str,
    /// Open connections, idle ones included.
    pub open: u32,
    /// Open connections that no call uses.
    pub idle: u32,
    /// The most connections that the pool opens.
    pub limit: u32,
    /// Calls since the start of the process that found all connections of the pool in use.
    pub waits: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_was_queued_in_the_future_has_no_age() {
        let executor = ExecutorId {
            group: "g".parse().expect("valid"),
            name: "e".parse().expect("valid"),
        };
        let at = Timestamp::from_millis;
        let age_ms = |queued_at| OldestQueued::since(executor.clone(), queued_at, at(1_000)).age_ms;
        assert_eq!((age_ms(at(400)), age_ms(at(1_001))), (600, 0));
    }
}
