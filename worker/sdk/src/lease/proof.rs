//! Proofs of the lease, and the callback that is notified of them.

use std::fmt;
use std::sync::Arc;

/// The time at which a heartbeat was sent whose echo has returned, on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseProof {
    pub(super) wall_ms: i64,
    pub(super) boot_ms: i64,
}

/// The times of a renewed broker lease, in milliseconds on the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseDeadline {
    /// When the lease was proven. Attempts that start under this lease see it in
    /// [`Context::lease_proven_ms`](crate::Context::lease_proven_ms).
    pub proven_ms: i64,
    /// When attempts that started under this lease must have ended, unless it is renewed.
    pub end_by_ms: i64,
}

/// Called with each renewal.
#[derive(Clone)]
pub(crate) struct OnLeaseRenewed(Arc<dyn Fn(LeaseDeadline) + Send + Sync>);

impl OnLeaseRenewed {
    pub(crate) fn new(notify: impl Fn(LeaseDeadline) + Send + Sync + 'static) -> Self {
        Self(Arc::new(notify))
    }

    pub(super) fn notify(&self, deadline: LeaseDeadline) {
        (self.0)(deadline);
    }
}

impl fmt::Debug for OnLeaseRenewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnLeaseRenewed")
    }
}
