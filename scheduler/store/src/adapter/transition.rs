//! Applies the end of an attempt to a run in memory. The result is a transition to write.

use std::cmp::Ordering;
use std::sync::Arc;

use cueline_model::{
    Conclusion, ExecutorId, FireState, Job, OnLost, Outcome, OutcomeKind, Retry, RunFacts, RunId,
    RunState, Timestamp, conclude,
};

use super::convert::without_nul;
use super::snapshot::{GivenTo, RunSnapshot};
use super::timeline::{STOPPED_MEANWHILE, TimelineEvent};

/// The change of a run at the end of an attempt: the run ends, or gets another attempt.
#[derive(Debug, Clone)]
pub struct Transition {
    /// The run.
    pub run: i64,
    /// The stored attempt. The write is guarded by it.
    pub from_attempt: u32,
    /// The new state.
    pub state: RunState,
    /// The new attempt.
    pub attempt: u32,
    /// Retries used up after the transition.
    pub retries: u32,
    /// Reruns used up after the transition.
    pub reruns: u32,
    /// When the next attempt is due; `None` at the end of the run.
    pub due_at: Option<Timestamp>,
    /// When the handler started, if the report says so.
    pub started_at: Option<Timestamp>,
    /// When the run ended; `None` if another attempt follows.
    pub ended_at: Option<Timestamp>,
    /// Exit status of the attempt.
    pub exit_status: Option<i32>,
    /// Why the attempt did not succeed.
    pub message: Option<String>,
    /// What a successful handler returned.
    pub output: Option<String>,
}

impl Transition {
    /// Whether the run succeeded.
    pub fn is_success(&self) -> bool {
        self.state == RunState::Succeeded
    }
}

/// A run with the changes that the reports of a batch have made so far.
#[derive(Debug)]
pub(super) struct RunUpdate {
    /// The run before the batch, except for `retries` and `reruns`, which include the batch.
    pub(super) run: RunSnapshot,
    pub(super) state: RunState,
    pub(super) attempt: u32,
    pub(super) started_at: Option<Timestamp>,
    pub(super) progress: Option<f64>,
    pub(super) next_attempt: Option<Transition>,
    pub(super) end: Option<Transition>,
}

impl RunUpdate {
    pub(super) fn new(run: RunSnapshot) -> Self {
        Self {
            state: run.state,
            attempt: run.attempt,
            run,
            started_at: None,
            progress: None,
            next_attempt: None,
            end: None,
        }
    }

    /// Whether this attempt was given to this executor, as far as the store knows.
    pub(super) fn is_given_to(&self, executor: &ExecutorId, attempt: u32) -> bool {
        match attempt.cmp(&self.attempt) {
            Ordering::Less => self.run.earlier.get(&attempt) == Some(executor),
            Ordering::Equal => self.given_to().is_some_and(|given| given.may_be(executor)),
            Ordering::Greater => false,
        }
    }

    /// What the current attempt was given to. An attempt that waits to be dispatched was given to none.
    fn given_to(&self) -> Option<&GivenTo> {
        let given_to = self.run.executor.as_ref();
        given_to.filter(|_| self.state != RunState::Scheduled)
    }

    /// Ends the current attempt. If another attempt follows, the result includes an event for the timeline.
    pub(super) fn end_attempt(
        &mut self,
        outcome: &Outcome,
        job: Option<&Arc<Job>>,
        now: Timestamp,
    ) -> (Transition, Option<TimelineEvent>) {
        let (conclusion, stopped) = self.conclude(outcome, job, now);
        let mut transition = Transition {
            run: self.run.id,
            from_attempt: self.attempt,
            state: RunState::Scheduled,
            attempt: self.attempt,
            retries: self.run.retries,
            reruns: self.run.reruns,
            due_at: None,
            started_at: outcome.started_at,
            ended_at: None,
            exit_status: outcome.exit_status,
            message: message(outcome, stopped),
            output: None,
        };
        match conclusion {
            Conclusion::End(state) => {
                self.state = state;
                transition.state = state;
                transition.ended_at = Some(outcome.ended_at);
                transition.output = outcome.output.as_deref().map(limited);
                (transition, None)
            }
            Conclusion::Again {
                due_at,
                retries,
                reruns,
                reason,
            } => {
                let event = self.next_attempt_event(outcome.kind, reruns, &reason);
                // The store still has the attempt from before the batch.
                if let Some(earlier) = &self.next_attempt {
                    transition.from_attempt = earlier.from_attempt;
                }
                if let Some(executor) = &event.executor {
                    self.run.earlier.insert(self.attempt, executor.clone());
                }
                self.state = RunState::Scheduled;
                self.attempt = self.attempt.saturating_add(1);
                self.run.retries = retries;
                self.run.reruns = reruns;
                self.started_at = None;
                transition.attempt = self.attempt;
                transition.retries = retries;
                transition.reruns = reruns;
                transition.due_at = Some(due_at);
                (transition, Some(event))
            }
        }
    }

    /// Asks the model what follows. A run whose job was stopped gets no further attempt; the second value then says
    /// why.
    fn conclude(
        &self,
        outcome: &Outcome,
        job: Option<&Arc<Job>>,
        now: Timestamp,
    ) -> (Conclusion, Option<&'static str>) {
        let facts = RunFacts {
            run: RunId(self.run.id),
            attempt: self.attempt,
            retries: self.run.retries,
            reruns: self.run.reruns,
            cancel_requested: self.run.cancel_requested,
        };
        let no_retry = Retry::default();
        let (retry, on_lost) = match job {
            Some(job) => (&job.spec.retry, job.spec.on_lost),
            None => (&no_retry, OnLost::Fail),
        };
        let conclusion = conclude(facts, retry, on_lost, outcome, now);
        if matches!(conclusion, Conclusion::Again { .. }) && !self.run.may_continue(now) {
            let state = outcome.kind.state().unwrap_or(RunState::Cancelled);
            return (Conclusion::End(state), Some(STOPPED_MEANWHILE));
        }
        (conclusion, None)
    }

    /// An event for the timeline if jobs run after this one, and none of them starts because of how the run ended.
    pub(super) fn flow_stop(&self, end: &Transition) -> Option<TimelineEvent> {
        let state = FireState::of_shard(end.state, self.run.cancel_requested);
        let stops = state == FireState::Stopped && self.run.has_children();
        stops.then(|| TimelineEvent {
            run: end.run,
            attempt: end.attempt,
            event: "flow_stopped",
            detail: format!(
                "{}; no job that runs after this one starts",
                stop_reason(end.state)
            ),
            executor: None,
        })
    }

    fn next_attempt_event(&self, kind: OutcomeKind, reruns: u32, reason: &str) -> TimelineEvent {
        let event = match kind {
            OutcomeKind::Returned => "returned",
            _ if reruns > self.run.reruns => "rerun",
            _ => "retry",
        };
        TimelineEvent {
            run: self.run.id,
            attempt: self.attempt,
            event,
            detail: without_nul(reason).into_owned(),
            executor: self.given_to().and_then(GivenTo::executor).cloned(),
        }
    }
}

/// Why a run stops its flow run.
fn stop_reason(end: RunState) -> String {
    if end == RunState::Succeeded || end.is_failure() {
        format!("{end} after its cancellation was requested")
    } else {
        end.to_string()
    }
}

/// The message of the outcome, followed by the reason why no further attempt follows.
fn message(outcome: &Outcome, stopped: Option<&str>) -> Option<String> {
    let reported = outcome.message.as_deref().map(limited);
    match (reported, stopped) {
        (Some(reported), Some(stopped)) => Some(format!("{reported}; {stopped}")),
        (reported, stopped) => reported.or_else(|| stopped.map(str::to_owned)),
    }
}

/// Cuts a text of an outcome to the limit that workers obey too.
pub(super) fn limited(text: &str) -> String {
    let mut end = text.len().min(Outcome::MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    without_nul(text.get(..end).unwrap_or_default()).into_owned()
}
