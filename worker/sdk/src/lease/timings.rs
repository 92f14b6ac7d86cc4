//! The times of a broker lease.

use std::time::Duration;

/// The longest time between two heartbeats.
const MAX_HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// The longest margin before the failover.
pub(super) const MAX_MARGIN: Duration = Duration::from_secs(2);

/// The settings of a lease, and the times that follow from them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTimings {
    /// The lease ends this long after its last proof.
    pub(crate) fence_after: Duration,
    /// The schedulers may give the worker's attempts to others this long after its last heartbeat.
    pub(crate) failover_after: Duration,
    /// The time between two heartbeats.
    pub(crate) heartbeat_every: Duration,
}

impl LeaseTimings {
    /// By default, `fence_after` is two thirds of `failover_after`. Heartbeats are then so frequent that the lease
    /// survives the loss of several.
    pub(crate) fn new(
        failover_after: Duration,
        fence_after: Option<Duration>,
        heartbeat_every: Option<Duration>,
    ) -> Self {
        let fence_after = fence_after.unwrap_or(failover_after * 2 / 3);
        let every = MAX_HEARTBEAT_EVERY.min(fence_after / 4);
        Self {
            fence_after,
            failover_after,
            heartbeat_every: heartbeat_every.unwrap_or(every),
        }
    }

    /// The lease is overdue this long after its last proof: half of `fence_after`, or more if heartbeats are so rare that
    /// a slow broker would often exceed that.
    pub(crate) fn overdue_after(&self) -> Duration {
        let slow = self.heartbeat_every + self.store_timeout();
        slow.max(self.fence_after / 2)
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
