//! The ends of attempts, whether they ran or the lanes never started them.

use cueline_model::{Outcome, OutcomeKind};

use super::decisions::Decisions;
use super::lane_events;
use super::state::EventLoop;
use crate::attempt::EndedAttempt;
use crate::context::StopReason;
use crate::lanes::{NotStarted, Step};

impl EventLoop {
    pub(super) fn take_ended(
        &mut self,
        ended: impl Iterator<Item = EndedAttempt>,
        decisions: &mut Decisions,
    ) {
        for ended in ended {
            self.lanes.finished(ended.key);
            lane_events::left(ended.key);
            let Some(running) = self.running.remove(&ended.key) else {
                continue;
            };
            // One of 64, so that the storm goes on.
            if cueline_runtime::planted!("lost_result") && ended.key.run.run.0 % 64 == 0 {
                continue;
            }
            self.services.status.times.note_end(&ended.outcome);
            decisions.reports.extend(ended.reports);
            decisions.end(ended.key, running.cx.job().clone(), ended.outcome);
        }
    }

    /// Turns the steps of the lanes into decisions.
    pub(super) fn follow(&mut self, steps: Vec<Step>, decisions: &mut Decisions) {
        for step in steps {
            match step {
                Step::Start(key) => {
                    lane_events::started(key);
                    let Some(attempt) = self.waiting.remove(&key) else {
                        continue;
                    };
                    if self.services.starts.is_some() {
                        self.starting.insert(key, attempt);
                        decisions.record_start.push(key);
                    } else {
                        decisions.start(key, attempt);
                    }
                }
                Step::Stop(key, reason) => {
                    if self.starting.contains_key(&key) {
                        self.end_starting(key, stopped_early(reason), decisions);
                    } else {
                        decisions.stop.push((key, reason));
                    }
                }
                Step::End(key, why) => {
                    lane_events::left(key);
                    if let Some(attempt) = self.waiting.remove(&key) {
                        let outcome = self.not_started(why, decisions);
                        decisions.end_unstarted(key, attempt, outcome);
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
            NotStarted::Covered => (
                OutcomeKind::Covered,
                "a newer run replaced it before it started".to_owned(),
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
            NotStarted::EarlierSession => (
                OutcomeKind::Returned,
                "its trigger was written before the executor's last absence; the schedulers may have given the run to another executor"
                    .to_owned(),
            ),
            NotStarted::Unrecorded => (
                OutcomeKind::Returned,
                "the executor could not record starts in its start log".to_owned(),
            ),
            NotStarted::Fenced => (OutcomeKind::Returned, self.services.lease.fence_reason()),
        };
        Outcome::new(kind, decisions.now).because(message)
    }
}

/// Why an attempt that was asked to stop was not started.
const fn stopped_early(reason: StopReason) -> NotStarted {
    match reason {
        StopReason::Cancelled => NotStarted::Cancelled,
        StopReason::Covered => NotStarted::Covered,
        StopReason::Drained => NotStarted::Draining,
        // An attempt that has not started has no time limit yet.
        StopReason::Fenced | StopReason::TimedOut => NotStarted::Fenced,
    }
}
