//! A run while a batch of reports is applied to it, and how the end of an attempt leaves it.

use std::sync::Arc;

use cueline_model::{
    Conclusion, Job, OnLost, Outcome, OutcomeKind, Retry, RunFacts, RunId, RunState, Timestamp,
    conclude,
};

use super::facts::{Event, Facts};
use super::skipped::STOPPED_MEANWHILE;
use super::values::clean;

/// How an attempt's end leaves its run, as it is written: the end of the run, or another attempt.
#[derive(Debug, Clone)]
pub struct Close {
    /// The run.
    pub id: i64,
    /// The attempt that the store has before this.
    pub from_attempt: u32,
    /// The state from now on.
    pub state: RunState,
    /// The attempt from now on.
    pub attempt: u32,
    /// Retries used up by now.
    pub retries: u32,
    /// Reruns used up by now.
    pub reruns: u32,
    /// When the next attempt is due; `None` at the end of the run.
    pub due_at: Option<Timestamp>,
    /// When the handler started, as far as the report tells.
    pub started_at: Option<Timestamp>,
    /// When the run ended; `None` if it goes on.
    pub ended_at: Option<Timestamp>,
    /// Exit status of the attempt.
    pub exit_status: Option<i32>,
    /// Why it did not succeed.
    pub message: Option<String>,
    /// What a successful handler returned.
    pub output: Option<String>,
}

impl Close {
    /// Whether the run has succeeded.
    pub fn succeeded(&self) -> bool {
        self.state == RunState::Succeeded
    }
}

/// A run with what the batch has made of it so far.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) facts: Facts,
    pub(super) state: RunState,
    pub(super) attempt: u32,
    pub(super) started_at: Option<Timestamp>,
    pub(super) progress: Option<f64>,
    /// Goes on with another attempt.
    pub(super) again: Option<Close>,
    pub(super) end: Option<Close>,
}

impl Standing {
    /// Takes note of the end of the present attempt.
    pub(super) fn close(
        &mut self,
        outcome: &Outcome,
        job: Option<&Arc<Job>>,
        now: Timestamp,
    ) -> (Close, Option<Event>) {
        let facts = RunFacts {
            run: RunId(self.facts.id),
            attempt: self.attempt,
            retries: self.facts.retries,
            reruns: self.facts.reruns,
            cancel_requested: self.facts.cancel_requested,
        };
        let no_retry = Retry::default();
        let (retry, on_lost) = match job {
            Some(job) => (&job.spec.retry, job.spec.on_lost),
            None => (&no_retry, OnLost::Fail),
        };
        let mut conclusion = conclude(facts, retry, on_lost, outcome, now);
        let mut stopped = None;
        if matches!(conclusion, Conclusion::Again { .. }) && !self.facts.goes_on() {
            conclusion = Conclusion::End(outcome.kind.state().unwrap_or(RunState::Cancelled));
            stopped = Some(STOPPED_MEANWHILE);
        }
        let mut close = Close {
            id: self.facts.id,
            from_attempt: match &self.again {
                Some(earlier) => earlier.from_attempt,
                None => self.attempt,
            },
            state: RunState::Scheduled,
            attempt: self.attempt,
            retries: facts.retries,
            reruns: facts.reruns,
            due_at: None,
            started_at: outcome.started_at,
            ended_at: None,
            exit_status: outcome.exit_status,
            message: outcome
                .message
                .as_deref()
                .map(bounded)
                .or_else(|| stopped.map(str::to_owned)),
            output: None,
        };
        match conclusion {
            Conclusion::End(end) => {
                self.state = end;
                close.state = end;
                close.from_attempt = self.attempt;
                close.ended_at = Some(outcome.ended_at);
                close.output = outcome.output.as_deref().map(bounded);
                (close, None)
            }
            Conclusion::Again {
                due_at,
                retries,
                reruns,
                reason,
            } => {
                let event = match outcome.kind {
                    OutcomeKind::Returned => "returned",
                    _ if reruns > facts.reruns => "rerun",
                    _ => "retry",
                };
                let event = Event {
                    run: self.facts.id,
                    attempt: self.attempt,
                    event,
                    detail: clean(&reason).into_owned(),
                };
                self.state = RunState::Scheduled;
                self.attempt = self.attempt.saturating_add(1);
                self.facts.retries = retries;
                self.facts.reruns = reruns;
                self.started_at = None;
                close.attempt = self.attempt;
                close.retries = retries;
                close.reruns = reruns;
                close.due_at = Some(due_at);
                (close, Some(event))
            }
        }
    }
}

/// Text from outside, within the limit that workers keep to and without what databases cannot keep.
fn bounded(text: &str) -> String {
    let mut end = text.len().min(Outcome::MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    clean(text.get(..end).unwrap_or_default()).into_owned()
}
