//! The secret with which the first user is created.
//!
//! It exists only in the memory of the process that made it, for an hour, and until it was used once.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_store::SecretHash;
use tokio::time::Instant;

use super::secret::Secret;
use crate::problem::Problem;

/// For how long the secret is valid.
pub(super) const VALID: Duration = Duration::from_hours(1);

/// Creates the first user, once. See [`ApiState::setup_secret`](crate::ApiState::setup_secret).
#[derive(Clone)]
pub struct SetupSecret(String);

impl SetupSecret {
    /// The secret itself, to show it to the person who has started the process.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SetupSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SetupSecret(…)")
    }
}

/// The secret that is valid now, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Setup(Mutex<Option<Pending>>);

#[derive(Debug, Clone, Copy)]
struct Pending {
    hash: SecretHash,
    ends_at: Instant,
}

impl Setup {
    /// Makes a secret. An earlier one is not valid any more.
    pub(crate) fn open(&self, now: Instant) -> Result<SetupSecret, Problem> {
        let secret = Secret::random()?;
        *self.lock() = Some(Pending {
            hash: secret.hash(),
            ends_at: now + VALID,
        });
        Ok(SetupSecret(secret.to_text()))
    }

    /// Whether `given` is the secret and still valid. The hashes are compared, so the time taken says nothing about the
    /// secret.
    pub(crate) fn admits(&self, given: &str, now: Instant) -> bool {
        let pending = *self.lock();
        let given = Secret::parse(given);
        pending
            .zip(given)
            .is_some_and(|(pending, given)| now < pending.ends_at && given.hash() == pending.hash)
    }

    /// Ends the secret: there is a user.
    pub(crate) fn close(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_valid_for_an_hour_and_until_it_was_used() {
        let (setup, now) = (Setup::default(), Instant::now());
        assert!(!setup.admits("", now));
        let first = setup.open(now).expect("random bytes");
        let second = setup.open(now).expect("random bytes");
        assert!(!setup.admits(first.expose(), now));
        assert!(setup.admits(second.expose(), now));
        assert!(setup.admits(second.expose(), now + VALID - Duration::from_secs(1)));
        assert!(!setup.admits(second.expose(), now + VALID));
        setup.close();
        assert!(!setup.admits(second.expose(), now));
    }

    #[test]
    fn the_secret_is_not_printed() {
        let secret = Setup::default().open(Instant::now()).expect("random bytes");
        assert!(!format!("{secret:?}").contains(secret.expose()));
    }
}
