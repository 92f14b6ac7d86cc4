//! Decides what follows from the end of an attempt.

use crate::policy::{OnLost, Retry};
use crate::run::{Outcome, OutcomeKind, RunId, RunState};
use crate::time::Timestamp;

/// The facts about a run when one of its attempts ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunFacts {
    /// The run.
    pub run: RunId,
    /// The attempt that ended.
    pub attempt: u32,
    /// Retries that the run used before.
    pub retries: u32,
    /// Reruns by [`OnLost::Rerun`] before.
    pub reruns: u32,
    /// Whether a user has cancelled the run. It then gets no further attempt.
    pub cancel_requested: bool,
}

/// The consequence of the end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// The run ends in this state.
    End(RunState),
    /// The run gets another attempt and returns to `scheduled`.
    Again {
        /// When the next attempt is due.
        due_at: Timestamp,
        /// The number of retries, including this one.
        retries: u32,
        /// The number of reruns, including this one.
        reruns: u32,
        /// The reason for the run's timeline.
        reason: String,
    },
}

/// Decides what follows from `outcome` for a run of a job with these policies.
pub fn conclude(
    facts: RunFacts,
    retry: &Retry,
    on_lost: OnLost,
    outcome: &Outcome,
    now: Timestamp,
) -> Conclusion {
    let Some(state) = outcome.kind.state() else {
        // A returned attempt would be repeated at once, but a cancelled run gets no further attempt.
        if facts.cancel_requested {
            return Conclusion::End(RunState::Cancelled);
        }
        return Conclusion::Again {
            due_at: now,
            retries: facts.retries,
            reruns: facts.reruns,
            reason: format!(
                "attempt {} was returned unstarted: {}",
                facts.attempt,
                outcome.message.as_deref().unwrap_or("no reason given")
            ),
        };
    };
    if !state.is_failure() {
        return Conclusion::End(state);
    }
    if facts.cancel_requested {
        return Conclusion::End(state);
    }
    if outcome.kind == OutcomeKind::Lost
        && on_lost == OnLost::Rerun
        && facts.reruns < OnLost::MAX_RERUNS
    {
        return Conclusion::Again {
            due_at: now,
            retries: facts.retries,
            reruns: facts.reruns + 1,
            reason: format!(
                "attempt {} was lost with its executor; run again",
                facts.attempt
            ),
        };
    }
    if facts.retries < retry.max && retry.on.contains(&state) {
        let number = facts.retries + 1;
        // The seed differs between runs, so attempts that failed together wait for different times.
        let seed = facts.run.0.unsigned_abs() ^ (u64::from(facts.attempt) << 48);
        let wait_ms = retry.wait_ms(number, seed);
        return Conclusion::Again {
            due_at: now.plus_ms(wait_ms),
            retries: number,
            reruns: facts.reruns,
            reason: format!(
                "attempt {} {state}; retry {number} of {} in {wait_ms} ms",
                facts.attempt, retry.max
            ),
        };
    }
    Conclusion::End(state)
}
