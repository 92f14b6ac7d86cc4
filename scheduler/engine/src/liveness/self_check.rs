//! Decides whether this node may judge the silence of executors.
//!
//! Silence proves nothing unless this node would have received and stored a heartbeat. Two recent pieces of evidence
//! are required. The first is a loopback heartbeat, which this node sends to itself over the broker, and which a
//! majority of the broker's servers has stored. The second is a flush: at that time every heartbeat received so far was
//! in the store. A gap in either restarts the count of every executor's silence. So a broker restart, a slow store, or
//! a suspended or disconnected node causes no failover, and neither does a partition of the broker.

use std::sync::Mutex;
use std::time::Duration;

use cueline_model::Timestamp;

use crate::lock::lock;

/// Intervals of the self check, derived from `failover_after`, the silence after which an executor has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intervals {
    /// The time between two loopback heartbeats, and with `linger` at most between two flushes; 1 s.
    pub(crate) every: Duration,
    /// Heartbeats that do not change how runs are routed wait for further ones for this time; 200 ms.
    pub(crate) linger: Duration,
    /// Evidence older than this counts as a gap; 4 s. Together with a heartbeat interval and a reconnect it is much
    /// shorter than `failover_after`.
    pub(crate) max_gap_ms: i64,
    /// A loopback heartbeat that the broker has not stored within this time proves nothing; 3 s. This wait and an
    /// interval together are no gap.
    pub(crate) store_within: Duration,
    /// After this long without a loopback heartbeat, the node subscribes again; 15 s. A broker can lose a subscription
    /// without an error.
    pub(crate) resubscribe_after: Duration,
    /// After this long without a gap, this node has a heartbeat of each live executor: a heartbeat interval and a
    /// margin; 6 s. Workers send a heartbeat every sixth of `failover_after`, at most every 5 s.
    pub(crate) all_heartbeats_after_ms: u64,
}

impl Intervals {
    /// The values in the field docs hold for a `failover_after` of 30 s or more. A shorter one gives shorter intervals.
    fn of(failover_after_ms: u64) -> Self {
        let fraction = |divisor: u64, min_ms: u64, max_ms: u64| {
            (failover_after_ms / divisor).clamp(min_ms, max_ms)
        };
        let gap_ms = fraction(1, 7_500, 30_000) * 4 / 30;
        let every_ms = fraction(30, 200, 1_000);
        Self {
            every: Duration::from_millis(every_ms),
            linger: Duration::from_millis(every_ms / 5),
            max_gap_ms: i64::try_from(gap_ms).unwrap_or(i64::MAX),
            store_within: Duration::from_millis(gap_ms.saturating_sub(every_ms)),
            resubscribe_after: Duration::from_millis(fraction(2, 2_000, 15_000)),
            all_heartbeats_after_ms: fraction(6, 500, 5_000) + every_ms,
        }
    }
}

/// Collects the evidence and judges executors by it.
#[derive(Debug)]
pub(crate) struct SelfCheck {
    failover_after_ms: i64,
    pub(crate) intervals: Intervals,
    times: Mutex<Times>,
    /// Why the last loopback heartbeat was not sent or not stored.
    loopback_failure: Mutex<Option<String>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Times {
    /// This node has received heartbeats without a gap since then.
    listening_since: Option<Timestamp>,
    /// This node has stored heartbeats without a gap since then.
    counting_since: Option<Timestamp>,
    loopback_heartbeat_at: Option<Timestamp>,
    heartbeats_flushed_at: Option<Timestamp>,
}

impl SelfCheck {
    pub(crate) fn new(failover_after_ms: u64) -> Self {
        Self {
            failover_after_ms: i64::try_from(failover_after_ms).unwrap_or(i64::MAX),
            intervals: Intervals::of(failover_after_ms),
            times: Mutex::default(),
            loopback_failure: Mutex::default(),
        }
    }

    /// Call this when the node was registered or its lease expired. Executors that it does not know may be alive.
    pub(crate) fn restart_listening(&self, now: Timestamp) {
        lock(&self.times).listening_since = Some(now);
    }

    /// Call this when a loopback heartbeat was received. Returns whether it ended a gap.
    pub(crate) fn record_loopback(&self, now: Timestamp) -> bool {
        let mut times = lock(&self.times);
        let previous = times.loopback_heartbeat_at.replace(now);
        let is_gap = self.is_gap(previous, now);
        if is_gap {
            times.listening_since = Some(now);
        }
        is_gap
    }

    /// Call this when a loopback heartbeat was sent: `None` if the broker has stored it, or else why not.
    pub(crate) fn set_loopback_failure(&self, failure: Option<String>) {
        *lock(&self.loopback_failure) = failure;
    }

    /// Why the last loopback heartbeat was not sent or not stored, if it was not.
    pub(crate) fn loopback_failure(&self) -> Option<String> {
        lock(&self.loopback_failure).clone()
    }

    pub(crate) fn loopback_heartbeat_at(&self) -> Option<Timestamp> {
        lock(&self.times).loopback_heartbeat_at
    }

    /// Call this when all heartbeats received until `now` are in the store. Returns whether it ended a gap.
    pub(crate) fn record_flush(&self, now: Timestamp) -> bool {
        let mut times = lock(&self.times);
        let previous = times.heartbeats_flushed_at.replace(now);
        let is_gap = self.is_gap(previous, now);
        if is_gap {
            times.counting_since = Some(now);
        }
        is_gap
    }

    /// Heartbeats were lost on their way to the store.
    pub(crate) fn restart_counting(&self, now: Timestamp) {
        lock(&self.times).counting_since = Some(now);
    }

    pub(crate) fn listening_since(&self) -> Option<Timestamp> {
        lock(&self.times).listening_since
    }

    /// Whether both pieces of evidence are recent. The restart of the count alone is not enough, because it happens
    /// only at the end of a gap.
    pub(crate) fn can_judge_liveness(&self, now: Timestamp) -> bool {
        let times = *lock(&self.times);
        !self.is_gap(times.loopback_heartbeat_at, now)
            && !self.is_gap(times.heartbeats_flushed_at, now)
    }

    /// Why this node [can judge](Self::can_judge_liveness) no executor. `None` if it can.
    pub(crate) fn problem(&self, now: Timestamp) -> Option<String> {
        let times = *lock(&self.times);
        if self.is_gap(times.loopback_heartbeat_at, now) {
            let why = self.loopback_failure();
            let why = why.unwrap_or_else(|| "none has arrived".to_owned());
            return Some(format!(
                "no message of this scheduler to itself has passed through the broker: {why}"
            ));
        }
        let is_late = self.is_gap(times.heartbeats_flushed_at, now);
        is_late.then(|| "heartbeats are not written to the store in time".to_owned())
    }

    /// Whether the heartbeat of each live executor was received and stored since the last gap.
    pub(crate) fn has_all_heartbeats(&self, now: Timestamp) -> bool {
        let times = *lock(&self.times);
        let since = times.listening_since.max(times.counting_since);
        let observed_ms = since.map_or(0, |since| now.since_ms(since));
        let observed_ms = u64::try_from(observed_ms).unwrap_or(0);
        observed_ms >= self.intervals.all_heartbeats_after_ms && self.can_judge_liveness(now)
    }

    /// The start of the executor's silence, as far as this node has observed it without a gap.
    pub(crate) fn silence_counts_from(&self, last_heartbeat_at: Timestamp) -> Timestamp {
        let times = *lock(&self.times);
        [times.listening_since, times.counting_since]
            .into_iter()
            .flatten()
            .fold(last_heartbeat_at, Timestamp::max)
    }

    pub(crate) fn failover_after_ms(&self) -> i64 {
        self.failover_after_ms
    }

    /// How far the executor's silence exceeds `failover_after`, in ms; negative while it does not.
    pub(crate) fn silent_past_limit_ms(&self, last_heartbeat_at: Timestamp, now: Timestamp) -> i64 {
        now.since_ms(self.silence_counts_from(last_heartbeat_at)) - self.failover_after_ms
    }

    /// Whether an executor with this last heartbeat has failed.
    pub(crate) fn has_failed(&self, last_heartbeat_at: Timestamp, now: Timestamp) -> bool {
        self.silent_past_limit_ms(last_heartbeat_at, now) > 0 && self.can_judge_liveness(now)
    }

    /// Whether evidence from `then` is missing or too old. It also counts as missing if it comes from a time that this
    /// node's clock has left again: the count of the silence may have begun in the future.
    pub(crate) fn is_gap(&self, then: Option<Timestamp>, now: Timestamp) -> bool {
        then.is_none_or(|then| now.since_ms(then).saturating_abs() > self.intervals.max_gap_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_millis(secs * 1_000)
    }

    /// A self check with evidence for each second in `from..=to`.
    fn with_evidence(from: i64, to: i64) -> SelfCheck {
        let check = SelfCheck::new(30_000);
        check.restart_listening(at(from));
        for second in from..=to {
            check.record_loopback(at(second));
            check.record_flush(at(second));
        }
        check
    }

    #[test]
    fn a_tolerated_gap_is_much_shorter_than_the_silence_that_counts() {
        for failover_after_ms in [3_000, 5_000, 10_000, 30_000, 300_000] {
            let intervals = Intervals::of(failover_after_ms);
            let heartbeat_ms = i64::try_from(failover_after_ms / 6).expect("small");
            let silence_ms = intervals.max_gap_ms + heartbeat_ms;
            assert!(silence_ms * 2 <= i64::try_from(failover_after_ms).expect("small"));
            let every_ms = intervals.every.as_millis();
            let gap_ms = u128::from(intervals.max_gap_ms.unsigned_abs());
            assert!(every_ms * 4 <= gap_ms);
            assert!((every_ms + intervals.linger.as_millis()) * 3 <= gap_ms);
            assert!(intervals.store_within.as_millis() + every_ms <= gap_ms);
        }
        let usual = Intervals::of(30_000);
        assert_eq!(usual.every, Duration::from_secs(1));
        assert_eq!(usual.linger, Duration::from_millis(200));
        assert_eq!(usual.max_gap_ms, 4_000);
        assert_eq!(usual.store_within, Duration::from_secs(3));
        assert_eq!(usual.resubscribe_after, Duration::from_secs(15));
        assert_eq!(usual.all_heartbeats_after_ms, 6_000);
    }

    #[test]
    fn all_heartbeats_are_received_an_interval_after_a_gap() {
        let check = with_evidence(0, 5);
        assert!(!check.has_all_heartbeats(at(5)));
        check.record_loopback(at(6));
        check.record_flush(at(6));
        assert!(check.has_all_heartbeats(at(6)));
        assert!(!check.has_all_heartbeats(at(11)), "the evidence is old");
        check.record_loopback(at(12));
        check.record_flush(at(12));
        assert!(!check.has_all_heartbeats(at(12)), "a gap has just ended");
        check.restart_counting(at(13));
        assert!(!check.has_all_heartbeats(at(13)));
    }

    #[test]
    fn a_node_without_evidence_judges_no_executor() {
        let check = SelfCheck::new(30_000);
        assert!(!check.can_judge_liveness(at(100)));
        check.record_loopback(at(100));
        assert!(!check.can_judge_liveness(at(100)), "nothing was flushed");
        check.record_flush(at(100));
        assert!(check.can_judge_liveness(at(104)));
        assert!(!check.can_judge_liveness(at(105)), "the evidence is old");
    }

    #[test]
    fn a_node_that_judges_no_executor_says_why() {
        let check = SelfCheck::new(30_000);
        let problem = |second| check.problem(at(second)).unwrap_or_default();
        assert!(problem(0).contains("none has arrived"), "{}", problem(0));
        check.set_loopback_failure(Some("no right to it".to_owned()));
        assert!(problem(0).contains("no right to it"), "{}", problem(0));
        check.set_loopback_failure(None);
        check.record_loopback(at(1));
        assert!(problem(1).contains("the store"), "{}", problem(1));
        check.record_flush(at(1));
        assert_eq!(check.problem(at(5)), None);
        assert!(check.problem(at(6)).is_some(), "the evidence is old");
    }

    #[test]
    fn an_executor_has_failed_after_a_silence_that_was_observed_throughout() {
        let check = with_evidence(0, 40);
        assert_eq!(check.silence_counts_from(at(10)), at(10));
        assert!(!check.has_failed(at(10), at(40)));
        assert_eq!(check.silent_past_limit_ms(at(10), at(40)), 0);
        check.record_loopback(at(41));
        check.record_flush(at(41));
        assert!(check.has_failed(at(10), at(41)));
    }

    #[test]
    fn silence_counts_from_the_end_of_the_last_gap() {
        for (loopback, flush) in [(true, false), (false, true)] {
            let check = with_evidence(0, 20);
            for second in 21..=25 {
                assert!(!loopback || !check.record_loopback(at(second)));
                assert!(!flush || !check.record_flush(at(second)));
            }
            assert!(!check.can_judge_liveness(at(25)));
            assert_eq!(check.record_loopback(at(26)), !loopback);
            assert_eq!(check.record_flush(at(26)), !flush);
            assert_eq!(check.silence_counts_from(at(10)), at(26));
            let expected = if loopback { at(0) } else { at(26) };
            assert_eq!(check.listening_since(), Some(expected));
        }
    }

    /// The local clock jumps by an hour, and the next lease renewal measures the database's clock again.
    #[test]
    fn silence_counts_again_once_a_step_of_the_clock_was_measured() {
        for step in [3_600, -3_600] {
            let check = with_evidence(0, 20);
            for second in [21 + step, 22] {
                assert!(check.record_loopback(at(second)));
                assert!(check.record_flush(at(second)));
            }
            assert!(check.can_judge_liveness(at(22)));
            assert!(!check.can_judge_liveness(at(17)), "from the future");
            assert_eq!(check.listening_since(), Some(at(22)));
            assert_eq!(check.silence_counts_from(at(10)), at(22));
        }
    }

    #[test]
    fn silence_counts_from_a_rejoin() {
        let check = with_evidence(0, 20);
        check.restart_listening(at(21));
        assert_eq!(check.silence_counts_from(at(10)), at(21));
        assert_eq!(check.silence_counts_from(at(22)), at(22));
    }
}
