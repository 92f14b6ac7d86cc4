//! The event loop's actions when the broker lease ends and when it is renewed.

use super::decisions::Decisions;
use super::state::EventLoop;
use crate::lanes::NotStarted;
use crate::lease::FenceStage;

impl EventLoop {
    /// Acts on the state of the lease. A fence is never lifted in the turn that noticed it. Before that, running
    /// attempts must be asked to stop, and returned attempts must be on disk.
    pub(super) fn follow_lease(&mut self, decisions: &mut Decisions) {
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
