//! Counts messages whose origin is not known, and warns of them.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use cueline_model::Timestamp;

use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::lock::lock;

/// Of each kind, one message is warned about in this time. Senders decide how many there are.
const WARN_EVERY_MS: u64 = 10_000;

/// What was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ForgedKind {
    Heartbeat,
    Reports,
    Answer,
    DeadLetter,
    /// A dead letter that the broker has moved, or that cannot be read. It may be genuine, so these are not counted.
    UnverifiedLetter,
    /// A report about an attempt that was given to another executor.
    ForeignReport,
    /// A claim of a key. The worker is told, so these are not counted.
    Enrolment,
}

impl ForgedKind {
    fn counter(self, counters: &Counters) -> Option<&AtomicU64> {
        let counter = match self {
            Self::Heartbeat => &counters.forged_heartbeats,
            Self::Reports => &counters.forged_reports,
            Self::Answer => &counters.forged_answers,
            Self::DeadLetter => &counters.forged_letters,
            Self::ForeignReport => &counters.foreign_reports,
            Self::UnverifiedLetter | Self::Enrolment => return None,
        };
        Some(counter)
    }
}

/// Where refused messages are noted.
#[derive(Debug)]
pub(crate) struct ForgedMessages {
    clock: Arc<DatabaseClock>,
    counters: Arc<Counters>,
    warned: Mutex<HashMap<ForgedKind, Warned>>,
}

#[derive(Debug)]
struct Warned {
    at: Timestamp,
    /// Messages since then.
    more: u64,
}

impl ForgedMessages {
    pub(crate) fn new(clock: Arc<DatabaseClock>, counters: Arc<Counters>) -> Self {
        Self {
            clock,
            counters,
            warned: Mutex::default(),
        }
    }

    /// Counts a refused message, and warns unless another one of its kind was warned about a moment ago.
    pub(crate) fn note(&self, kind: ForgedKind, why: &dyn Display) {
        if let Some(counter) = kind.counter(&self.counters) {
            add(counter, 1);
        }
        let Some(more) = self.due_warning(kind) else {
            return;
        };
        match kind {
            ForgedKind::Heartbeat => tracing::warn!(
                reason = %why, more,
                "ignored a heartbeat whose origin is not known; `cueline worker-key list` shows the enrolled keys. Check the worker, and who has rights on the broker"
            ),
            ForgedKind::Reports => tracing::warn!(
                reason = %why, more,
                "results of unknown origin became a dead letter; `cueline worker-key list` shows the enrolled keys. Check the worker, and who has rights on the broker"
            ),
            ForgedKind::Answer => tracing::warn!(
                reason = %why, more,
                "ignored a holdings reply whose origin is not known. Check the worker, and who has rights on the broker"
            ),
            ForgedKind::DeadLetter => tracing::warn!(
                reason = %why, more,
                "stored a dead letter of unknown origin, which cannot be replayed. Check who has rights on the broker"
            ),
            ForgedKind::UnverifiedLetter => tracing::warn!(
                reason = %why, more,
                "stored a dead letter that no executor has refused, and whose sender is not known; `cueline dlq` lists dead letters. Check the limits of the broker's queues, and who has rights on it"
            ),
            ForgedKind::ForeignReport => tracing::warn!(
                reason = %why, more,
                "a report about an attempt of another executor became a dead letter. Check the worker that sealed it"
            ),
            ForgedKind::Enrolment => tracing::warn!(
                reason = %why, more,
                "refused to enrol the key of a worker, which gets no triggers. Give it a valid token, or see `cueline worker-key list`"
            ),
        }
    }

    /// The number of messages since the last warning, if it is time for another one.
    fn due_warning(&self, kind: ForgedKind) -> Option<u64> {
        let now = self.clock.now();
        let mut warned = lock(&self.warned);
        if let Some(last) = warned.get_mut(&kind)
            && now.since_ms(last.at).unsigned_abs() < WARN_EVERY_MS
        {
            last.more += 1;
            return None;
        }
        let last = warned.insert(kind, Warned { at: now, more: 0 });
        Some(last.map_or(0, |last| last.more))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use cueline_runtime::ManualClock;

    use super::*;

    #[test]
    fn each_message_counts_and_few_are_warned_about() {
        let clock = ManualClock::at(0);
        let counters = Arc::new(Counters::default());
        let database = Arc::new(DatabaseClock::new(Arc::new(clock.clone())));
        let forged = ForgedMessages::new(database, counters.clone());
        assert_eq!(forged.due_warning(ForgedKind::Reports), Some(0));
        assert_eq!(forged.due_warning(ForgedKind::Reports), None);
        assert_eq!(forged.due_warning(ForgedKind::Heartbeat), Some(0));
        clock.advance(9_999);
        assert_eq!(forged.due_warning(ForgedKind::Reports), None);
        clock.advance(1);
        assert_eq!(forged.due_warning(ForgedKind::Reports), Some(2));
        for _ in 0..3 {
            forged.note(ForgedKind::Answer, &"a reason");
            forged.note(ForgedKind::Enrolment, &"a reason");
            forged.note(ForgedKind::UnverifiedLetter, &"a reason");
        }
        assert_eq!(forged.due_warning(ForgedKind::UnverifiedLetter), None);
        assert_eq!(forged.due_warning(ForgedKind::Enrolment), None);
        assert_eq!(counters.forged_heartbeats.load(Ordering::Relaxed), 0);
        assert_eq!(counters.forged_answers.load(Ordering::Relaxed), 3);
        assert_eq!(counters.forged_reports.load(Ordering::Relaxed), 0);
    }
}
