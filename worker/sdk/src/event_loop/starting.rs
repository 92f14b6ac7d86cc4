//! Attempts between the decision to start them and the start of their handlers.
//!
//! Their lanes count them as running. Until their start is recorded they can still end unstarted. An overdue lease also holds
//! back those whose start is recorded. [`unjournalled`](super::unjournalled) says when the journal gets them.

use super::decisions::Decisions;
use super::lane_events;
use super::state::EventLoop;
use crate::identity::AttemptKey;
use crate::lanes::NotStarted;
use crate::starts::Delay;

impl EventLoop {
    /// Records the starts that were decided in this turn. The record is under way while the journal is written, which
    /// saves each start the time of one disk sync. No handler runs before both are done.
    pub(super) fn record_starts(&self, decisions: &mut Decisions) {
        if let Some(starts) = &self.services.starts
            && !decisions.record_start.is_empty()
        {
            starts.push(std::mem::take(&mut decisions.record_start));
        }
    }

    /// Starts the attempts that are recorded now. While the lease is overdue they wait, as long as that takes: it ends
    /// with a proof or a fence. A fenced worker returns them, because it does not know how long it will be fenced.
    pub(super) fn take_recorded(
        &mut self,
        recorded: impl Iterator<Item = AttemptKey>,
        decisions: &mut Decisions,
    ) {
        let held = std::mem::take(&mut self.recorded);
        for key in held.into_iter().chain(recorded) {
            if self.is_fenced() {
                self.end_starting(key, NotStarted::Fenced, decisions);
            } else if self.lease_overdue {
                self.recorded.push(key);
            } else if let Some(attempt) = self.starting.remove(&key) {
                decisions.start(key, attempt);
            }
        }
    }

    /// When no start could be recorded for too long, returns what has not started and accepts no more. Other executors
    /// may be able to run it.
    ///
    /// The recorder goes on with its present record, which has at most 256 attempts. Once the broker confirms it, the
    /// worker accepts triggers again.
    pub(super) fn follow_recorder(&mut self, decisions: &mut Decisions) {
        let services = &self.services;
        let (Some(starts), Some(timings)) = (&services.starts, &services.settings.lease_timings)
        else {
            return;
        };
        let delay = starts.delay(timings, services.settings.boot_clock.up_ms());
        services
            .status
            .set_starts_unrecorded(delay >= Delay::Lasting);
        // A drain has returned everything.
        if self.draining {
            return;
        }
        if delay == Delay::TooLong {
            starts.clear();
            self.return_unrecorded(decisions);
        } else if std::mem::take(&mut self.unrecordable) {
            tracing::info!("starts can be recorded again; triggers are accepted");
            // The end of the fence opens them otherwise.
            if !self.is_fenced() {
                self.lanes.reopen();
            }
        }
    }

    fn return_unrecorded(&mut self, decisions: &mut Decisions) {
        let count = self.waiting.len() + self.starting.len();
        if count > 0 || !self.unrecordable {
            tracing::warn!(
                count,
                "returned waiting attempts, because no start could be recorded; check the start log and the worker's right to append to it"
            );
        }
        self.unrecordable = true;
        self.close_lanes(NotStarted::Unrecorded, decisions);
    }

    /// Ends what has not started, and accepts no more for this reason.
    pub(super) fn close_lanes(&mut self, why: NotStarted, decisions: &mut Decisions) {
        let mut steps = Vec::new();
        self.lanes.close(why, &mut steps);
        self.follow(steps, decisions);
        self.end_all_starting(why, decisions);
    }

    /// Ends all of them unstarted.
    fn end_all_starting(&mut self, why: NotStarted, decisions: &mut Decisions) {
        let keys: Vec<AttemptKey> = self.starting.keys().copied().collect();
        for key in keys {
            self.end_starting(key, why, decisions);
        }
    }

    pub(super) fn end_starting(
        &mut self,
        key: AttemptKey,
        why: NotStarted,
        decisions: &mut Decisions,
    ) {
        if let Some(attempt) = self.starting.remove(&key) {
            self.lanes.finished(key);
            lane_events::left(key);
            let outcome = self.not_started(why, decisions);
            decisions.end_unstarted(key, attempt, outcome);
        }
    }
}
