//! The state of the lease. Pure: the time is an argument, in milliseconds on the boot clock.

use super::proof::LeaseProof;
use super::timings::{LeaseTimings, millis};

/// What the event loop has done since the worker was fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FenceStage {
    /// Nothing: the worker is not fenced, or has been fenced only now.
    Unfenced,
    /// It starts nothing, and has asked running attempts to stop.
    Stopped,
    /// It has returned waiting attempts as well: the schedulers may hand them over to other executors.
    HandedOver,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseState {
    /// Nothing may be started.
    pub(super) fenced: bool,
    /// Since the fence, the lease has been missing for so long that waiting attempts have to be returned.
    pub(super) handed_over: bool,
    /// The lease was renewed since the fence.
    pub(super) renewed: bool,
    pub(super) proof: Option<LeaseProof>,
    /// When the attempts that this fence stops must have ended. `i64::MIN` before the first fence that followed a
    /// lease.
    pub(super) must_end_by_ms: i64,
}

/// What the passing of time has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expiry {
    Nothing,
    Fenced,
    HandedOver,
}

impl LeaseState {
    /// No proof yet: fenced, and nothing may be kept.
    pub(super) const FENCED: Self = Self {
        fenced: true,
        handed_over: true,
        renewed: false,
        proof: None,
        must_end_by_ms: i64::MIN,
    };

    /// A worker without a lease is never fenced.
    pub(super) const UNFENCED: Self = Self {
        fenced: false,
        handed_over: false,
        ..Self::FENCED
    };

    /// The state that takes over the proof of an earlier process.
    pub(super) const fn resumed(proof: LeaseProof) -> Self {
        Self {
            proof: Some(proof),
            ..Self::UNFENCED
        }
    }

    fn proven_ms(&self) -> i64 {
        self.proof.map_or(0, |proof| proof.boot_ms)
    }

    fn is_expired(&self, timings: &LeaseTimings, now_ms: i64) -> bool {
        let is_valid = |proof| is_valid(proof, timings, now_ms);
        !self.proof.is_some_and(is_valid)
    }

    /// What time has to change in this state.
    pub(super) fn expiry(&self, timings: &LeaseTimings, now_ms: i64) -> Expiry {
        if !self.fenced {
            return if self.is_expired(timings, now_ms) {
                Expiry::Fenced
            } else {
                Expiry::Nothing
            };
        }
        let hand_over_ms = self
            .proven_ms()
            .saturating_add(millis(timings.hand_over_after()));
        if !self.handed_over && hand_over_ms <= now_ms {
            Expiry::HandedOver
        } else {
            Expiry::Nothing
        }
    }

    /// Makes the change that [`expiry`](Self::expiry) says. A pause may be so long that both changes are due at once.
    pub(super) fn expire(&mut self, timings: &LeaseTimings, now_ms: i64) -> Expiry {
        let expiry = self.expiry(timings, now_ms);
        match expiry {
            Expiry::Nothing => {}
            Expiry::Fenced => {
                self.fenced = true;
                self.renewed = false;
                self.must_end_by_ms = timings.must_end_by_ms(self.proven_ms());
                self.expire(timings, now_ms);
            }
            Expiry::HandedOver => self.handed_over = true,
        }
        expiry
    }

    /// Takes a newer proof.
    pub(super) fn renew(&mut self, proof: LeaseProof, timings: &LeaseTimings, now_ms: i64) {
        self.proof = Some(proof);
        self.renewed = self.fenced && is_valid(proof, timings, now_ms);
    }

    /// Whether the event loop, which has reached `stage`, has something to do about the fence.
    pub(super) fn asks_for_action(&self, stage: FenceStage) -> bool {
        match stage {
            FenceStage::Unfenced => self.fenced,
            FenceStage::Stopped => self.renewed || self.handed_over,
            FenceStage::HandedOver => self.renewed,
        }
    }

    /// Lifts the fence if the lease is valid and the event loop has done what the fence asks for.
    pub(super) fn lift_fence(
        &mut self,
        stage: FenceStage,
        timings: &LeaseTimings,
        now_ms: i64,
    ) -> bool {
        self.renewed = false;
        let required = if self.handed_over {
            FenceStage::HandedOver
        } else {
            FenceStage::Stopped
        };
        let lifted = self.fenced && stage >= required && !self.is_expired(timings, now_ms);
        if lifted {
            self.fenced = false;
            self.handed_over = false;
        }
        lifted
    }
}

/// Whether a lease with this proof has not ended yet.
pub(super) fn is_valid(proof: LeaseProof, timings: &LeaseTimings, now_ms: i64) -> bool {
    now_ms.saturating_sub(proof.boot_ms) <= millis(timings.fence_after)
}
