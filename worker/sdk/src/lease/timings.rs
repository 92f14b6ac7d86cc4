//! The times of a broker lease.

use std::time::Duration;

/// The longest time between two heartbeats.
const MAX_HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// The longest margin before the failover.
pub(super) const MAX_MARGIN: Duration = Duration::from_secs(2);

/// The two settings of a lease, and the times that follow from them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTimings {
    /// The lease ends this long after its last proof.
    pub(crate) fence_after: Duration,
    /// The schedulers may give the worker's attempts to others this long after its last heartbeat.
    pub(crate) failover_after: Duration,
}

impl LeaseTimings {
    /// Two thirds of `failover_after`.
    pub(crate) fn default_fence_after(failover_after: Duration) -> Duration {
        failover_after * 2 / 3
    }

    /// The default time between two heartbeats. It is short enough for the lease to survive the loss of several.
    pub(crate) fn heartbeat_every(&self) -> Duration {
        MAX_HEARTBEAT_EVERY.min(self.fence_after / 4)
    }

    /// Fenced attempts have ended this long before the failover: 2 s, or a fifteenth of `failover_after` if that is
    /// less. A forced stop may take as long.
    pub(crate) fn margin(&self) -> Duration {
        MAX_MARGIN.min(self.failover_after / 15)
    }

    /// Waiting attempts are returned this long after the last proof: halfway between the fence and the end of fenced
    /// attempts. In the other half a scheduler can ingest the heartbeat that renewed the lease. It must do so before it
    /// takes over attempts that were started since.
    pub(crate) fn return_waiting_after(&self) -> Duration {
        let end = self.failover_after.saturating_sub(self.margin());
        (self.fence_after + end.max(self.fence_after)) / 2
    }

    /// The longest time between two heartbeats while no echo returns: 1 s, or a twentieth of `fence_after` if that is
    /// less.
    pub(crate) fn retry_every(&self) -> Duration {
        Duration::from_secs(1).min(self.fence_after / 20)
    }

    /// The longest time that sending one heartbeat may take. The next one follows.
    pub(crate) fn send_timeout(&self) -> Duration {
        Duration::from_secs(2).min(self.fence_after / 5)
    }

    /// The longest time until a majority of the broker's servers has stored a heartbeat: 5 s, or a quarter of
    /// `fence_after` if that is less. Several tries fit into a lease.
    pub(crate) fn store_timeout(&self) -> Duration {
        MAX_HEARTBEAT_EVERY.min(self.fence_after / 4)
    }

    /// A fenced worker that has received nothing for this long subscribes again, because the subscription itself may
    /// be broken.
    pub(crate) fn resubscribe_after(&self) -> Duration {
        Duration::from_secs(10).min(self.fence_after / 2)
    }

    /// When fenced attempts must have ended, for a lease that was proven at `proven_ms`, on the same clock.
    pub(super) fn must_end_by_ms(&self, proven_ms: i64) -> i64 {
        let until = self.failover_after.saturating_sub(self.margin());
        proven_ms.saturating_add(millis(until))
    }
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
