//! Holds broadcast fires while executors may be alive whose heartbeat this node has not received yet (G1). Pure.
//!
//! A broadcast fire gets a shard for each live executor. After an outage the store knows the executors, but their last
//! heartbeats are old. The first fire would leave out all those whose next heartbeat is still on its way.

use cueline_model::Timestamp;

/// No fire waits longer than this, with or without heartbeats. It is then planned with the executors that are live. A
/// node that never receives its own messages, for example for lack of a permission, waits once and not again.
pub(crate) const MAX_HOLD_MS: i64 = 5 * 60_000;

/// Remembers since when fires are held.
#[derive(Debug, Default)]
pub(crate) struct BroadcastHold {
    since: Option<Timestamp>,
}

/// How broadcast fires are planned now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BroadcastRule {
    /// Fires of jobs with silent executors stay due.
    pub(crate) holds: bool,
    /// Fires may be later by this much, in ms, before they count as missed: they waited for heartbeats.
    pub(crate) allowance_ms: u64,
}

impl BroadcastHold {
    /// `has_all_heartbeats` tells whether each live executor has had the time to send a heartbeat. `max_allowance_ms`
    /// is that time.
    pub(crate) fn rule(
        &mut self,
        has_all_heartbeats: bool,
        max_allowance_ms: u64,
        now: Timestamp,
    ) -> BroadcastRule {
        if !has_all_heartbeats {
            self.since.get_or_insert(now);
        }
        let waited_ms = self.since.map_or(0, |since| now.since_ms(since));
        BroadcastRule {
            holds: !has_all_heartbeats && waited_ms < MAX_HOLD_MS,
            allowance_ms: u64::try_from(waited_ms).unwrap_or(0).min(max_allowance_ms),
        }
    }

    /// Call this when all heartbeats are received and all held fires are planned.
    pub(crate) fn finish(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn rule(holds: bool, allowance_ms: u64) -> BroadcastRule {
        BroadcastRule {
            holds,
            allowance_ms,
        }
    }

    #[test]
    fn fires_are_held_until_all_heartbeats_are_received_and_are_then_not_late() {
        let mut hold = BroadcastHold::default();
        assert_eq!(hold.rule(true, 7_000, at(0)), rule(false, 0));
        assert_eq!(hold.rule(false, 7_000, at(1_000)), rule(true, 0));
        assert_eq!(hold.rule(false, 7_000, at(4_000)), rule(true, 3_000));
        assert_eq!(hold.rule(true, 7_000, at(6_000)), rule(false, 5_000));
        assert_eq!(hold.rule(true, 7_000, at(90_000)), rule(false, 7_000));
        hold.finish();
        assert_eq!(hold.rule(true, 7_000, at(91_000)), rule(false, 0));
    }

    #[test]
    fn the_hold_is_bounded_and_does_not_start_again_before_all_heartbeats_are_received() {
        let mut hold = BroadcastHold::default();
        assert!(hold.rule(false, 7_000, at(0)).holds);
        assert!(hold.rule(false, 7_000, at(MAX_HOLD_MS - 1)).holds);
        let is_held = |hold: &mut BroadcastHold, ms| hold.rule(false, 7_000, at(ms)).holds;
        assert!(!is_held(&mut hold, MAX_HOLD_MS));
        assert!(!is_held(&mut hold, 2 * MAX_HOLD_MS));
        hold.rule(true, 7_000, at(3 * MAX_HOLD_MS));
        hold.finish();
        assert!(hold.rule(false, 7_000, at(4 * MAX_HOLD_MS)).holds);
    }
}
