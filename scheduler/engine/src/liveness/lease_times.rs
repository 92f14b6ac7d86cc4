//! Compares the lease times of workers with this node's own (G10).
//!
//! A fenced worker has ended its attempts shortly before its own `failover_after`. Were that later than the schedulers'
//! one, an attempt could run at two workers at once.

use std::collections::HashMap;

use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::LeaseTimes;

/// The most executors whose last warning is remembered. At the limit all are forgotten, and warnings may be repeated.
const MAX_EXECUTORS: usize = 10_000;
/// An executor whose times change, because two workers share its name, is warned about once in this time.
const WARN_EVERY_MS: i64 = 60_000;

/// Checks announced lease times, and logs what is wrong with them.
#[derive(Debug)]
pub(crate) struct LeaseTimesCheck {
    failover_after_ms: u64,
    warned: HashMap<ExecutorId, (LeaseTimes, Timestamp)>,
}

impl LeaseTimesCheck {
    pub(crate) fn new(failover_after_ms: u64) -> Self {
        Self {
            failover_after_ms,
            warned: HashMap::new(),
        }
    }

    /// Why the executor may get no triggers; `None` if its times are safe. Workers without a lease have no times.
    pub(crate) fn refusal(
        &mut self,
        executor: &ExecutorId,
        times: Option<LeaseTimes>,
        now: Timestamp,
    ) -> Option<String> {
        let times = times?;
        let refusal = why_unsafe(times, self.failover_after_ms);
        if refusal.is_none() && times.failover_after_ms == self.failover_after_ms {
            self.warned.remove(executor);
            return None;
        }
        if self.should_warn(executor, times, now) {
            self.warn(executor, times, refusal.as_deref());
        }
        refusal
    }

    /// Whether these times were not warned about yet.
    fn should_warn(&mut self, executor: &ExecutorId, times: LeaseTimes, now: Timestamp) -> bool {
        if let Some((warned, at)) = self.warned.get(executor)
            && (*warned == times || now.since_ms(*at) < WARN_EVERY_MS)
        {
            return false;
        }
        if self.warned.len() >= MAX_EXECUTORS {
            self.warned.clear();
        }
        self.warned.insert(executor.clone(), (times, now));
        true
    }

    fn warn(&self, executor: &ExecutorId, times: LeaseTimes, refusal: Option<&str>) {
        let LeaseTimes {
            fence_after_ms,
            failover_after_ms,
        } = times;
        if let Some(refusal) = refusal {
            tracing::warn!(
                group = %executor.group,
                executor = %executor.name,
                reason = refusal,
                "executor gets no triggers, because its lease times are unsafe; start it with the schedulers' --failover-after"
            );
        } else {
            tracing::warn!(
                group = %executor.group,
                executor = %executor.name,
                fence_after_ms,
                failover_after_ms,
                scheduler_failover_after_ms = self.failover_after_ms,
                "executor and scheduler have different failover times; give both the same --failover-after"
            );
        }
    }
}

/// Why a worker with these times may run an attempt that schedulers have given to another one.
fn why_unsafe(times: LeaseTimes, failover_after_ms: u64) -> Option<String> {
    // Fenced attempts need the last sixth to end.
    let latest_fence_ms = failover_after_ms / 6 * 5 + failover_after_ms % 6 * 5 / 6;
    if times.fence_after_ms > latest_fence_ms {
        return Some(format!(
            "its fence_after of {} ms is more than five sixths of the schedulers' failover_after of {failover_after_ms} ms",
            times.fence_after_ms
        ));
    }
    // The worker derives from its own time when fenced attempts must have ended.
    if times.failover_after_ms > failover_after_ms {
        return Some(format!(
            "its failover_after of {} ms is more than the schedulers' {failover_after_ms} ms",
            times.failover_after_ms
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(fence_after_ms: u64, failover_after_ms: u64) -> LeaseTimes {
        LeaseTimes {
            fence_after_ms,
            failover_after_ms,
        }
    }

    #[test]
    fn a_worker_must_have_stopped_before_the_failover() {
        let is_safe = |fence, failover, own| why_unsafe(times(fence, failover), own).is_none();
        assert!(is_safe(20_000, 30_000, 30_000));
        assert!(is_safe(25_000, 30_000, 30_000));
        assert!(!is_safe(25_001, 30_000, 30_000));
        assert!(!is_safe(20_000, 30_000, 10_000));
        assert!(is_safe(6_667, 10_000, 30_000), "it stops early");
        assert!(!is_safe(20_000, 30_001, 30_000), "it stops late");
        assert!(is_safe(0, u64::MAX, u64::MAX));
        assert!(!is_safe(u64::MAX, u64::MAX, u64::MAX));
    }

    #[test]
    fn each_executor_is_warned_about_once_until_its_times_change() {
        let executor = ExecutorId {
            group: "g".parse().expect("valid"),
            name: "e".parse().expect("valid"),
        };
        let at = Timestamp::from_millis;
        let mut check = LeaseTimesCheck::new(30_000);
        assert!(check.refusal(&executor, None, at(0)).is_none());
        let different = times(6_667, 10_000);
        assert!(check.refusal(&executor, Some(different), at(0)).is_none());
        assert!(!check.should_warn(&executor, different, at(90_000)), "once");
        let refused = times(40_000, 60_000);
        assert!(
            check
                .refusal(&executor, Some(refused), at(30_000))
                .is_some()
        );
        assert!(!check.should_warn(&executor, refused, at(59_999)), "rarely");
        assert!(check.should_warn(&executor, refused, at(60_000)));
        let same = times(20_000, 30_000);
        assert!(check.refusal(&executor, Some(same), at(60_000)).is_none());
        assert!(check.warned.is_empty());
    }
}
