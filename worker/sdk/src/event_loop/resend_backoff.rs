//! Spaces out repeated reports of outcomes that schedulers still ask for.

use std::collections::HashMap;

use crate::identity::AttemptKey;

/// After this time, a report that is still asked for counts as lost by the broker.
const FIRST_AFTER_MS: i64 = 30_000;
/// The most outcomes that wait for their next time. At the limit no other outcome is reported again.
const LIMIT: usize = 10_000;

/// Outcomes that were reported again, and when each may be reported once more.
#[derive(Debug, Default)]
pub(super) struct ResendBackoff(HashMap<AttemptKey, i64>);

impl ResendBackoff {
    /// Forgets the outcomes whose next time has come.
    pub(super) fn forget_due(&mut self, now_ms: i64) {
        self.0.retain(|_, next_ms| *next_ms > now_ms);
    }

    /// Whether to report an outcome again that was first reported at `reported_ms`. The wait doubles each time:
    /// schedulers that lag behind with their results ask too, and more results would make the lag worse.
    pub(super) fn is_due(&mut self, key: AttemptKey, reported_ms: i64, now_ms: i64) -> bool {
        let age_ms = now_ms.saturating_sub(reported_ms);
        let waits = self.0.get(&key).is_some_and(|next_ms| *next_ms > now_ms);
        let due = age_ms >= FIRST_AFTER_MS && !waits && self.0.len() < LIMIT;
        if due {
            self.0.insert(key, now_ms.saturating_add(age_ms));
        }
        due
    }
}
