//! Triggers whose run id belongs to another run here.
//!
//! A store that lost its last commits may give the id of a lost run to a new one. Stores skip ids when they notice
//! that, but not every restored copy can be noticed. The outcome of the lost run is not the outcome of the new one
//! (G4).

use std::collections::HashMap;

use cueline_broker::Settlement;
use cueline_model::{Outcome, OutcomeKind};
use cueline_protocol::{KNOWN_FROM_ANOTHER_RUN, Trigger};

use super::decisions::Decisions;
use super::state::EventLoop;
use crate::identity::{AttemptKey, RunKey, fire_of};
use crate::journal::Entry;

impl EventLoop {
    /// Why this is not a trigger of the run that the worker knows by its id.
    pub(super) fn other_fire(
        &self,
        trigger: &Trigger,
        known: &HashMap<RunKey, Entry>,
        decisions: &Decisions,
    ) -> Option<String> {
        let run = AttemptKey::of(trigger).run;
        let entries = [decisions.entry_of(run), known.get(&run)];
        let journalled = entries.into_iter().flatten().find_map(|entry| entry.fire);
        let fire = journalled.or_else(|| self.unstarted_fire(run))?;
        (fire != fire_of(trigger)).then(|| {
            format!(
                "{KNOWN_FROM_ANOTHER_RUN}{run} with another job, fire time or shard than {} at {}; the store has lost commits and issued the id again",
                trigger.job.name, trigger.fire_at
            )
        })
    }

    /// What a run fires that has not started. The journal may not have it yet.
    fn unstarted_fire(&self, run: RunKey) -> Option<i64> {
        let attempt = self.lanes.newest_attempt(run)?;
        let key = AttemptKey { run, attempt };
        let held = self.starting.get(&key).or_else(|| self.waiting.get(&key))?;
        Some(fire_of(&held.trigger))
    }

    /// Moves the trigger to the dead letters, and ends the attempt. Otherwise it would be published again and again
    /// (G17). Its next attempt can run. While the worker holds the other run, it reports only that run's own end. So no
    /// trigger can end the other run.
    pub(super) fn refuse_other_fire(
        &self,
        trigger: &Trigger,
        why: String,
        decisions: &mut Decisions,
    ) -> Settlement {
        let key = AttemptKey::of(trigger);
        if self.lanes.newest_attempt(key.run).is_none() {
            let outcome = Outcome::new(OutcomeKind::Failed, decisions.now).because(why.clone());
            // The journal keeps the end of the other run. The broker may have dropped a report of it as a duplicate.
            decisions.report(key, trigger.job.name.clone(), outcome, true);
        }
        Settlement::Dead(why)
    }
}
