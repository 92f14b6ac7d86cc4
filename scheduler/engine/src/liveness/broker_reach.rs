//! Decides whether this node leaves claims to others, because they reach the broker and it does not.
//!
//! Each node writes into its lease when it last reached the broker: the time of its last loopback heartbeat. A node whose
//! time is well behind that of another live node claims nothing. The times are compared with each other, so an outage of
//! the whole broker, which stops all of them together, changes nothing. The node with the latest time always claims.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cueline_model::Timestamp;
use cueline_store::RenewedLease;

use super::self_check::SelfCheck;
use crate::lock::lock;

/// Compares when this node and the others reached the broker.
#[derive(Debug)]
pub(crate) struct BrokerReach {
    self_check: Arc<SelfCheck>,
    lease_ms: u64,
    /// What the last renewal of this node's lease said.
    last_renewal: Mutex<RenewedLease>,
}

impl BrokerReach {
    pub(crate) fn new(self_check: Arc<SelfCheck>, lease_ms: u64) -> Self {
        Self {
            self_check,
            lease_ms,
            // Until the first renewal, others may be alive.
            last_renewal: Mutex::new(RenewedLease {
                has_others: true,
                other_reached_broker_at: None,
            }),
        }
    }

    /// Keeps the time of another node that has none for a moment, because it rejoins. Of a node that is lost, the old time soon
    /// counts no more.
    pub(crate) fn record(&self, renewed: RenewedLease) {
        let mut last = lock(&self.last_renewal);
        let earlier = last.other_reached_broker_at;
        *last = renewed;
        if renewed.has_others {
            last.other_reached_broker_at = renewed.other_reached_broker_at.or(earlier);
        }
    }

    /// When this node last reached the broker.
    pub(crate) fn own(&self) -> Option<Timestamp> {
        self.self_check.loopback_heartbeat_at()
    }

    /// Whether another live node reaches the broker and this one does not.
    ///
    /// An old time of the other node proves nothing. It may have lost the broker too, or be about to lose its lease. Nor does
    /// one from the future: the clock of the database has stepped back since.
    pub(crate) fn is_cut_off(&self, now: Timestamp) -> bool {
        let Some(other) = lock(&self.last_renewal).other_reached_broker_at else {
            return false;
        };
        let other_ms = now.since_ms(other);
        let max_gap_ms = self.self_check.intervals.max_gap_ms;
        (-max_gap_ms..=(self.lease_ms / 2).cast_signed()).contains(&other_ms)
            && self.silent_ms(now).saturating_sub(other_ms) > max_gap_ms
    }

    /// Why this node claims nothing now. `None` if it does.
    pub(crate) fn problem(&self, now: Timestamp) -> Option<String> {
        self.is_cut_off(now).then(|| {
            let why = self.self_check.loopback_failure();
            let why =
                why.unwrap_or_else(|| "none of its messages to itself has arrived".to_owned());
            format!("this scheduler does not reach the broker, and another one does: {why}")
        })
    }

    /// The time until the next renewal of the lease. A node with others renews more often, because they rely on what it
    /// says. One that may be cut off asks for the others soon.
    pub(crate) fn renew_after(&self, now: Timestamp) -> Duration {
        if !lock(&self.last_renewal).has_others {
            return Duration::from_millis(self.lease_ms / 3);
        }
        let often = Duration::from_millis(self.lease_ms / 10);
        let every = self.self_check.intervals.every;
        let expected_ms = i64::try_from(2 * every.as_millis()).unwrap_or(i64::MAX);
        if self.silent_ms(now) > expected_ms {
            often.min(every / 2)
        } else {
            often
        }
    }

    /// How long ago this node reached the broker. A time from the future was set by a clock that has stepped since.
    fn silent_ms(&self, now: Timestamp) -> i64 {
        self.own()
            .map_or(i64::MAX, |own| now.since_ms(own).saturating_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// A node with a lease of 15 s that last reached the broker at `own`, and another one at `other`.
    fn reach(own: Option<i64>, other: Option<i64>) -> BrokerReach {
        let self_check = Arc::new(SelfCheck::new(30_000));
        if let Some(own) = own {
            self_check.record_loopback(at(own));
        }
        let reach = BrokerReach::new(self_check, 15_000);
        reach.record(RenewedLease {
            has_others: other.is_some(),
            other_reached_broker_at: other.map(at),
        });
        reach
    }

    #[test]
    fn a_node_is_cut_off_if_another_one_reached_the_broker_more_than_4_s_later() {
        for (own, other, is_cut_off) in [
            (Some(10_000), None, false),
            (None, None, false),
            (Some(10_000), Some(14_000), false),
            (Some(10_000), Some(14_001), true),
            (Some(14_001), Some(10_000), false),
            (None, Some(14_001), true),
        ] {
            let reach = reach(own, other);
            assert_eq!(
                reach.is_cut_off(at(15_000)),
                is_cut_off,
                "{own:?} {other:?}"
            );
            assert_eq!(reach.problem(at(15_000)).is_some(), is_cut_off);
        }
    }

    #[test]
    fn in_an_outage_of_the_whole_broker_no_node_is_cut_off() {
        for now in (14_000..100_000).step_by(500) {
            assert!(!reach(Some(10_000), Some(11_900)).is_cut_off(at(now)));
            assert!(!reach(Some(11_900), Some(10_000)).is_cut_off(at(now)));
        }
    }

    /// The other node has lost the broker too, or is dead.
    #[test]
    fn a_node_is_not_cut_off_for_longer_than_the_other_one_reaches_the_broker() {
        let reach = reach(Some(10_000), Some(20_000));
        assert!(reach.is_cut_off(at(27_500)));
        assert!(!reach.is_cut_off(at(27_501)));
    }

    /// It rejoins, for example after a call of its store that failed.
    #[test]
    fn another_node_without_a_time_for_a_moment_changes_nothing() {
        let reach = reach(Some(10_000), Some(20_000));
        reach.record(RenewedLease {
            has_others: true,
            other_reached_broker_at: None,
        });
        assert!(reach.is_cut_off(at(21_000)));
        reach.record(RenewedLease::default());
        assert!(!reach.is_cut_off(at(21_000)), "there is no other");
    }

    /// Otherwise all nodes would wait for each other until the clock has caught up.
    #[test]
    fn a_clock_that_steps_back_leaves_no_node_cut_off() {
        let renewed = |ms| RenewedLease {
            has_others: true,
            other_reached_broker_at: Some(at(ms)),
        };
        let reach = reach(Some(3_600_000), Some(3_600_000));
        reach.self_check.record_loopback(at(10_000));
        assert!(!reach.is_cut_off(at(10_000)), "before the other renews");
        reach.record(renewed(10_500));
        reach.self_check.record_loopback(at(11_000));
        assert!(!reach.is_cut_off(at(11_000)));
        reach.record(renewed(19_000));
        assert!(reach.is_cut_off(at(19_000)), "the new time counts");
    }

    #[test]
    fn a_time_from_the_future_does_not_hide_that_this_node_is_cut_off() {
        assert!(reach(Some(3_600_000), Some(20_000)).is_cut_off(at(20_000)));
    }

    #[test]
    fn a_node_with_others_renews_its_lease_more_often() {
        let ms = Duration::from_millis;
        assert_eq!(reach(Some(10_000), None).renew_after(at(60_000)), ms(5_000));
        let with_others = reach(Some(10_000), Some(10_000));
        assert_eq!(with_others.renew_after(at(12_000)), ms(1_500));
        assert_eq!(with_others.renew_after(at(12_001)), ms(500));
    }
}
