//! What the logins of a process share: the throttle, the places for hashing, the set-up secret, and how many refusals are
//! recorded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cueline_http::PeerAddress;
use cueline_model::Actor;
use cueline_store::{Audit, AuditResult, NewAuditEntry};
use tokio::time::Instant;

use super::password::Passwords;
use super::refusals::Refusals;
use super::setup::Setup;
use super::throttle::Throttle;
use crate::problem::Problem;

/// The action of refused logins in the audit log.
const ACTION: &str = "session.login";

#[derive(Debug)]
pub(crate) struct Logins {
    pub(crate) passwords: Passwords,
    pub(crate) setup: Setup,
    throttle: Mutex<Throttle>,
    /// Apart from those of requests without a right, so that these cannot hide attempts to guess a password.
    refusals: Refusals,
}

impl Logins {
    pub(crate) fn new() -> Self {
        Self {
            passwords: Passwords::new(),
            setup: Setup::default(),
            throttle: Mutex::new(Throttle::new()),
            refusals: Refusals::default(),
        }
    }

    /// Counts an attempt to use the password of `name`. After too many, the answer is 429.
    pub(crate) fn attempt(&self, name: &str, address: PeerAddress) -> Result<(), Problem> {
        let taken = lock(&self.throttle).attempt(name, address, Instant::now());
        taken.map_err(Problem::too_many_attempts)
    }

    /// Counts an attempt to end a login at an identity provider. After too many from this address, the answer is 429.
    pub(crate) fn attempt_from(&self, address: PeerAddress) -> Result<(), Problem> {
        let taken = lock(&self.throttle).attempt_from(address, Instant::now());
        taken.map_err(Problem::too_many_attempts)
    }

    /// Gives a successful attempt without a name back.
    pub(crate) fn succeeded_from(&self, address: PeerAddress) {
        lock(&self.throttle).succeeded_from(address);
    }

    /// Gives a successful attempt back.
    pub(crate) fn succeeded(&self, name: &str, address: PeerAddress) {
        lock(&self.throttle).succeeded(name, address);
    }

    /// Records a refused login, within the bound. If that fails, the refusal is answered all the same.
    pub(crate) async fn record_refusal(&self, audit: &dyn Audit, actor: Actor, reason: &str) {
        let entry = NewAuditEntry {
            object: actor.name.clone(),
            actor,
            action: ACTION.to_owned(),
            namespace: None,
            group: None,
            result: AuditResult::Refused,
            detail: reason.to_owned(),
            before: None,
            after: None,
        };
        self.refusals.record(audit, entry).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
