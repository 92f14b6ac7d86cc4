//! The ends of attempts, whether they ran or the lanes never started them.

use cueline_model::{Outcome, OutcomeKind};

use super::decisions::Decisions;
use super::state::EventLoop;
use crate::attempt::EndedAttempt;
use crate::lanes::{NotStarted, Step};

impl EventLoop {
    pub(super) fn take_ended(
        &mut self,
        ended: impl Iterator<Item = EndedAttempt>,
        decisions: &mut Decisions,
    ) {
        for ended in ended {
            self.lanes.finished(ended.key);
            let Some(running) = self.running.remove(&ended.key) else {
                continue;
            };
            decisions.reports.extend(ended.reports);
            decisions.end(ended.key, running.cx.job().clone(), ended.outcome);
        }
    }

    /// Turns the steps of the lanes into decisions.
    pub(super) fn follow(&mut self, steps: Vec<Step>, decisions: &mut Decisions) {
        for step in steps {
            match step {
                Step::Start(key) => {
                    if let Some(attempt) = self.waiting.remove(&key) {
                        decisions.start(key, attempt);
                    }
                }
                Step::Stop(key, reason) => decisions.stop.push((key, reason)),
                Step::End(key, why) => {
                    if let Some(attempt) = self.waiting.remove(&key) {
                        let outcome = self.not_started(why, decisions);
                        decisions.end(key, attempt.trigger.job.name.clone(), outcome);
                    }
                }
            }
        }
    }

    pub(super) fn not_started(&self, why: NotStarted, decisions: &Decisions) -> Outcome {
        let (kind, message) = match why {
            NotStarted::LaneBusy => (OutcomeKind::Discarded, "the lane is busy".to_owned()),
            NotStarted::BacklogFull(limit) => (
                OutcomeKind::Discarded,
                format!("the backlog of {limit} is full"),
            ),
            NotStarted::CoveredBy(run) => (OutcomeKind::Covered, format!("run {run} replaced it")),
            NotStarted::Cancelled => (
                OutcomeKind::Cancelled,
                "it was cancelled before it started".to_owned(),
            ),
            NotStarted::SupersededBy(attempt) => (
                OutcomeKind::Cancelled,
                format!("attempt {attempt} of the same run replaced it"),
            ),
            NotStarted::Draining => (
                OutcomeKind::Returned,
                "the executor is about to stop".to_owned(),
            ),
            NotStarted::Fenced => (OutcomeKind::Returned, self.services.lease.fence_reason()),
        };
        Outcome::new(kind, decisions.now).because(message)
    }
}
