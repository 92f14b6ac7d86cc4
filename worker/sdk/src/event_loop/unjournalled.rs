//! When the journal gets the triggers that came into their lanes.
//!
//! The record of a start usually comes within milliseconds. So the journal gets the start at once, and neither the trigger
//! nor its acceptance before. Until then the broker keeps the trigger unacked, and delivers it again after a crash.

use std::collections::HashSet;
use std::time::Duration;

use super::decisions::Decisions;
use super::state::EventLoop;
use crate::identity::AttemptKey;
use crate::lanes::{LaneKey, LaneRequest};

/// How long a record may take before the triggers that wait for it are journalled as accepted. It is far below the 30 s
/// after which NATS delivers an unacked trigger again.
const MAX_UNJOURNALLED: Duration = Duration::from_millis(250);

impl EventLoop {
    /// Journals what waits in a lane, and what has waited for its record for long. What starts in a lane is journalled
    /// before what waits there: after a crash, the journal must not have a later trigger of a lane without the earlier one.
    /// An answer about what the worker holds needs all.
    pub(super) fn journal_unstarted(
        &mut self,
        is_tick: bool,
        is_asked: bool,
        decisions: &mut Decisions,
    ) {
        let mut waited_for: HashSet<LaneKey> = HashSet::new();
        for key in std::mem::take(&mut decisions.accepted) {
            if let Some(attempt) = self.waiting.get_mut(&key) {
                waited_for.insert(LaneRequest::of(&attempt.trigger).lane);
                attempt.journal(decisions);
            }
        }
        if waited_for.is_empty() && !is_asked && !is_tick {
            return;
        }
        for attempt in self.starting.values_mut() {
            let is_waited_for = waited_for.contains(&LaneRequest::of(&attempt.trigger).lane);
            if is_asked || is_waited_for || attempt.fetched_at.elapsed() >= MAX_UNJOURNALLED {
                attempt.journal(decisions);
            }
        }
    }

    /// Journals the trigger of an attempt that has not started, if the journal does not have it.
    pub(super) fn journal_held(&mut self, key: AttemptKey, decisions: &mut Decisions) {
        let starting = self.starting.get_mut(&key);
        if let Some(attempt) = starting.or_else(|| self.waiting.get_mut(&key)) {
            attempt.journal(decisions);
        }
    }
}
