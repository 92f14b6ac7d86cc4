//! The state of the lease. Pure: the time is an argument, in milliseconds since the machine's start.
//!
//! That clock is [`BootClock`](cueline_runtime::BootClock). It includes the machine's sleep and never goes back.

use super::proof::LeaseProof;
use super::timings::{LeaseTimings, millis};

/// How far the event loop has handled the current fence. The order of the variants is the order of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FenceStage {
    /// Nothing yet: the worker is not fenced, or was fenced a moment ago.
    NotHandled,
    /// Nothing is started any more, and running attempts were asked to stop.
    Stopped,
    /// Waiting attempts were returned as well, so schedulers may route them elsewhere.
    WaitingReturned,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseState {
    /// Nothing may be started.
    pub(super) fenced: bool,
    /// The event loop must return waiting attempts before the fence is lifted.
    pub(super) must_return_waiting: bool,
    /// A valid renewal arrived while fenced and was not handled yet.
    pub(super) renewal_pending: bool,
    pub(super) proof: Option<LeaseProof>,
    /// Deadline for the end of fenced attempts. `None` until a lease first expires. It stays when the fence is lifted:
    /// attempts of that fence must end even if the lease was renewed.
    pub(super) must_end_by_ms: Option<i64>,
}

/// A change that is due because time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseChange {
    None,
    Fence,
    ReturnWaiting,
}

impl LeaseState {
    /// No proof yet: nothing may be started or kept.
    pub(super) const FENCED: Self = Self {
        fenced: true,
        must_return_waiting: true,
        renewal_pending: false,
        proof: None,
        must_end_by_ms: None,
    };

    /// For workers that need no lease because the schedulers run in this process.
    pub(super) const UNFENCED: Self = Self {
        fenced: false,
        must_return_waiting: false,
        ..Self::FENCED
    };

    /// Continues with the proof of an earlier process.
    pub(super) const fn resumed(proof: LeaseProof) -> Self {
        Self {
            proof: Some(proof),
            ..Self::UNFENCED
        }
    }

    /// 0 without a proof. No deadline is derived from that 0: such a state is fenced and returns waiting attempts.
    fn proven_ms(&self) -> i64 {
        self.proof.map_or(0, |proof| proof.boot_ms)
    }

    fn is_expired(&self, timings: &LeaseTimings, now_ms: i64) -> bool {
        let is_valid = |proof| is_valid(proof, timings, now_ms);
        !self.proof.is_some_and(is_valid)
    }

    /// Whether the last proof is so old that nothing may be accepted or started before the next one.
    pub(super) fn is_overdue(&self, timings: &LeaseTimings, now_ms: i64) -> bool {
        let overdue_ms = millis(timings.overdue_after());
        let is_recent = |proof: LeaseProof| now_ms.saturating_sub(proof.boot_ms) < overdue_ms;
        !self.proof.is_some_and(is_recent)
    }

    /// The change that is due at `now_ms`.
    pub(super) fn due_change(&self, timings: &LeaseTimings, now_ms: i64) -> LeaseChange {
        if !self.fenced {
            return if self.is_expired(timings, now_ms) {
                LeaseChange::Fence
            } else {
                LeaseChange::None
            };
        }
        let return_waiting_ms = self
            .proven_ms()
            .saturating_add(millis(timings.return_waiting_after()));
        if !self.must_return_waiting && return_waiting_ms <= now_ms {
            LeaseChange::ReturnWaiting
        } else {
            LeaseChange::None
        }
    }

    /// Applies the due change. After a long pause both apply; the result names only the first.
    pub(super) fn apply_due_change(&mut self, timings: &LeaseTimings, now_ms: i64) -> LeaseChange {
        let change = self.due_change(timings, now_ms);
        match change {
            LeaseChange::None => {}
            LeaseChange::Fence => {
                self.fenced = true;
                self.renewal_pending = false;
                self.must_end_by_ms = Some(timings.must_end_by_ms(self.proven_ms()));
                // Returning waiting attempts may be due as well.
                self.apply_due_change(timings, now_ms);
            }
            LeaseChange::ReturnWaiting => self.must_return_waiting = true,
        }
        change
    }

    /// Stores the latest proof. The caller passes proofs in order.
    pub(super) fn renew(&mut self, proof: LeaseProof, timings: &LeaseTimings, now_ms: i64) {
        self.proof = Some(proof);
        self.renewal_pending = self.fenced && is_valid(proof, timings, now_ms);
    }

    /// Whether the event loop, which has reached `stage`, must act on the fence.
    pub(super) fn needs_action(&self, stage: FenceStage) -> bool {
        match stage {
            FenceStage::NotHandled => self.fenced,
            FenceStage::Stopped => self.renewal_pending || self.must_return_waiting,
            FenceStage::WaitingReturned => self.renewal_pending,
        }
    }

    /// Lifts the fence if the lease is valid and the event loop has reached the stage that the fence requires.
    pub(super) fn lift_fence(
        &mut self,
        stage: FenceStage,
        timings: &LeaseTimings,
        now_ms: i64,
    ) -> bool {
        // Handled now, even if the fence stays: the next renewal sets it again.
        self.renewal_pending = false;
        let required = if self.must_return_waiting {
            FenceStage::WaitingReturned
        } else {
            FenceStage::Stopped
        };
        let lifted = self.fenced && stage >= required && !self.is_expired(timings, now_ms);
        if lifted {
            self.fenced = false;
            self.must_return_waiting = false;
        }
        lifted
    }
}

/// Whether a lease with this proof has not ended yet.
pub(super) fn is_valid(proof: LeaseProof, timings: &LeaseTimings, now_ms: i64) -> bool {
    now_ms.saturating_sub(proof.boot_ms) <= millis(timings.fence_after)
}
