//! The event loop's actions when the broker lease is overdue, when it ends, and when it is renewed.

use super::decisions::Decisions;
use super::state::EventLoop;
use crate::lanes::NotStarted;
use crate::lease::FenceStage;

impl EventLoop {
    /// Acts on the state of the lease.
    pub(super) fn follow_lease(&mut self, decisions: &mut Decisions) {
        self.follow_fence(decisions);
        let was_overdue = self.lease_overdue;
        // One look for the whole turn: what is accepted in it can also start in it.
        self.lease_overdue = !self.is_fenced() && self.services.lease.is_overdue();
        self.services.status.set_lease_overdue(self.lease_overdue);
        if self.lease_overdue && !was_overdue {
            tracing::warn!(
                "broker lease was not renewed in time; no trigger is accepted or started until it is. Check that the broker stores heartbeats"
            );
        } else if was_overdue && !self.lease_overdue && !self.is_fenced() {
            tracing::info!("broker lease renewed; triggers are accepted and started again");
        }
    }

    /// Whether triggers that have come must wait unaccepted. A lane whose policy discards or covers would decide about
    /// them now, by attempts that may never start. A drain returns them, so it waits for nothing.
    pub(super) fn holds_triggers(&self) -> bool {
        self.lease_overdue && !self.draining
    }

    /// A fence is never lifted in the turn that noticed it. Before that, running attempts must be asked to stop, and
    /// returned attempts must be on disk.
    fn follow_fence(&mut self, decisions: &mut Decisions) {
        let lease = &self.services.lease;
        match self.fence_stage {
            FenceStage::NotHandled if !lease.is_fenced() => return,
            FenceStage::NotHandled => self.stop_fenced(),
            FenceStage::Stopped if lease.must_return_waiting() => {}
            FenceStage::Stopped | FenceStage::WaitingReturned => {
                if lease.lift_fence(self.fence_stage, self.now().as_millis()) {
                    self.unfence();
                }
                return;
            }
        }
        if self.services.lease.must_return_waiting() {
            self.return_waiting(decisions);
        }
    }

    /// While fenced, the worker accepts and starts nothing.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence_stage != FenceStage::NotHandled
    }

    fn stop_fenced(&mut self) {
        self.fence_stage = FenceStage::Stopped;
        for running in self.running.values() {
            running.cx.stop_fenced();
        }
    }

    fn return_waiting(&mut self, decisions: &mut Decisions) {
        self.fence_stage = FenceStage::WaitingReturned;
        let count = self.waiting.len() + self.starting.len();
        if count > 0 {
            tracing::warn!(
                count,
                "returned waiting attempts; the schedulers will give them to another executor"
            );
        }
        self.close_lanes(NotStarted::Fenced, decisions);
    }

    fn unfence(&mut self) {
        self.fence_stage = FenceStage::NotHandled;
        if !self.draining {
            self.lanes.reopen();
        }
    }

    /// Records the lease only if a restart depends on it: with other entries, or while attempts wait.
    pub(super) fn record_lease(&mut self, decisions: &Decisions, tick: bool) {
        let needed = !decisions.entries.is_empty()
            || (tick && !(self.waiting.is_empty() && self.starting.is_empty()));
        if needed && let Some(lease) = self.services.lease.take_unrecorded() {
            self.journal.record_lease(lease);
        }
    }
}
