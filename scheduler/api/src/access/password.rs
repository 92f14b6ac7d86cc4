//! Passwords: Argon2id hashes, computed off the async threads.
//!
//! A login with an unknown name takes as long as one with a wrong password, so that the time says nothing about names.

use std::sync::Arc;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use cueline_store::PasswordHash;
use tokio::sync::Semaphore;

use crate::body::Fields;
use crate::problem::Problem;
use crate::random::random;

/// The fewest and the most characters of a new password. There are no other rules.
const MIN_CHARACTERS: usize = 12;
const MAX_CHARACTERS: usize = 256;
/// A character has at most 4 bytes.
const MAX_BYTES: usize = 4 * MAX_CHARACTERS;

/// What OWASP recommends for Argon2id: 19 MiB, 2 passes, 1 lane.
const COST: Cost = Cost {
    memory_kib: 19_456,
    passes: 2,
    lanes: 1,
};
/// The highest cost of a stored hash that is computed. A hash of a higher cost matches no password.
const MAX_COST: Cost = Cost {
    memory_kib: 256 * 1_024,
    passes: 16,
    lanes: 16,
};
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// Hashes that are computed at the same time. The other processors stay with the scheduler.
const MAX_COMPUTATIONS: usize = 2;
/// Further requests that wait for these. The answer to more is 503.
const MAX_WAITING: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// The field `name` as a new password, if it is given.
pub(crate) fn new_password(fields: &mut Fields, name: &str) -> Option<String> {
    let password = fields.text(name, MAX_BYTES)?;
    let characters = password.chars().count();
    if (MIN_CHARACTERS..=MAX_CHARACTERS).contains(&characters) {
        return Some(password);
    }
    fields.record(
        name,
        format!("has {characters} characters; a password has {MIN_CHARACTERS} to {MAX_CHARACTERS}"),
    );
    None
}

/// The field `name` as a new password that has to be given.
pub(crate) fn required_new_password(fields: &mut Fields, name: &str) -> String {
    if !fields.has(name) {
        let message = format!("missing; give {MIN_CHARACTERS} to {MAX_CHARACTERS} characters");
        fields.record(name, message);
    }
    new_password(fields, name).unwrap_or_default()
}

/// The field `name` as a password that is to be checked. No password is longer than a new one may be.
pub(crate) fn given_password(fields: &mut Fields, name: &str) -> String {
    let password = fields.required_text(name, MAX_BYTES);
    let characters = password.chars().count();
    if characters > MAX_CHARACTERS {
        let message =
            format!("has {characters} characters; a password has at most {MAX_CHARACTERS}");
        fields.record(name, message);
    }
    password
}

/// The places of computations.
#[derive(Debug)]
pub(crate) struct Passwords {
    computing: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Passwords {
    pub(super) fn new() -> Self {
        Self {
            computing: Arc::new(Semaphore::new(MAX_COMPUTATIONS)),
            waiting: Arc::new(Semaphore::new(MAX_COMPUTATIONS + MAX_WAITING)),
        }
    }

    /// The hash of a new password.
    pub(crate) async fn hash(&self, password: String) -> Result<PasswordHash, Problem> {
        let salt = random::<SALT_BYTES>()?;
        let hashed = self.compute(move || hashed(&password, &salt)).await?;
        hashed.ok_or_else(|| Problem::unavailable("the password could not be hashed"))
    }

    /// Whether this is the password of the stored hash. Without a hash it is not, after the same time.
    pub(crate) async fn verify(
        &self,
        stored: Option<PasswordHash>,
        password: String,
    ) -> Result<bool, Problem> {
        self.compute(move || is_password(stored.as_ref(), &password))
            .await
    }

    /// If the request ends meanwhile, the computation keeps its places until it is done.
    async fn compute<T: Send + 'static>(
        &self,
        computation: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let waiting = self.waiting.clone().try_acquire_owned().map_err(|_| {
            Problem::unavailable("many other passwords are being checked; send the request again")
        })?;
        let interrupted = || Problem::unavailable("the request was interrupted; send it again");
        let computing = self.computing.clone().acquire_owned().await;
        let computing = computing.map_err(|_| interrupted())?;
        let computed = tokio::task::spawn_blocking(move || {
            let computed = computation();
            drop((computing, waiting));
            computed
        });
        computed.await.map_err(|_| interrupted())
    }
}

/// A hash with its cost and salt, as in the PHC text format.
#[derive(Debug, PartialEq, Eq)]
struct Hashed {
    cost: Cost,
    salt: Vec<u8>,
    hash: [u8; HASH_BYTES],
}

impl Hashed {
    /// What takes the place of an unknown user's hash. No password matches it, because [`is_password`] says so.
    fn dummy() -> Self {
        Self {
            cost: COST,
            salt: vec![0; SALT_BYTES],
            hash: [0; HASH_BYTES],
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("$argon2id$v=19$")?.split('$');
        let (costs, salt, hash) = (parts.next()?, parts.next()?, parts.next()?);
        let mut costs = costs.split(',');
        let mut cost = |name: &str, most: u32| {
            let value: u32 = costs.next()?.strip_prefix(name)?.parse().ok()?;
            (1..=most).contains(&value).then_some(value)
        };
        let cost = Cost {
            memory_kib: cost("m=", MAX_COST.memory_kib)?,
            passes: cost("t=", MAX_COST.passes)?,
            lanes: cost("p=", MAX_COST.lanes)?,
        };
        let is_whole = costs.next().is_none() && parts.next().is_none();
        is_whole.then_some(())?;
        Some(Self {
            cost,
            salt: STANDARD_NO_PAD.decode(salt).ok()?,
            hash: STANDARD_NO_PAD.decode(hash).ok()?.try_into().ok()?,
        })
    }

    fn to_text(&self) -> String {
        let Cost {
            memory_kib,
            passes,
            lanes,
        } = self.cost;
        format!(
            "$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${}${}",
            STANDARD_NO_PAD.encode(&self.salt),
            STANDARD_NO_PAD.encode(self.hash)
        )
    }
}

fn hashed(password: &str, salt: &[u8; SALT_BYTES]) -> Option<PasswordHash> {
    let hashed = Hashed {
        cost: COST,
        salt: salt.to_vec(),
        hash: argon2id(COST, password, salt)?,
    };
    Some(PasswordHash(hashed.to_text()))
}

fn is_password(stored: Option<&PasswordHash>, password: &str) -> bool {
    let stored = stored.and_then(|hash| Hashed::parse(&hash.0));
    let is_known = stored.is_some();
    let stored = stored.unwrap_or_else(Hashed::dummy);
    let Some(hash) = argon2id(stored.cost, password, &stored.salt) else {
        return false;
    };
    let mut differs = 0;
    for (one, other) in hash.iter().zip(stored.hash) {
        differs = std::hint::black_box(differs | (one ^ other));
    }
    differs == 0 && is_known
}

/// `None` for costs and salts that Argon2 does not have, or without memory.
fn argon2id(cost: Cost, password: &str, salt: &[u8]) -> Option<[u8; HASH_BYTES]> {
    let Cost {
        memory_kib,
        passes,
        lanes,
    } = cost;
    let params = Params::new(memory_kib, passes, lanes, Some(HASH_BYTES)).ok()?;
    let mut hash = [0; HASH_BYTES];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(password.as_bytes(), salt, &mut hash)
        .ok()?;
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_password_matches_its_hash() {
        let stored = hashed("correct horse battery", &[7; SALT_BYTES]).expect("a hash");
        assert!(
            stored.0.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{}",
            stored.0
        );
        assert!(is_password(Some(&stored), "correct horse battery"));
        assert!(!is_password(Some(&stored), "correct horse batterx"));
        assert!(!is_password(Some(&stored), ""));
    }

    #[test]
    fn an_unknown_user_costs_a_computation_of_the_same_cost_and_never_matches() {
        assert!(!is_password(None, "correct horse battery"));
        let dummy = Hashed::dummy();
        assert_eq!(dummy.cost, COST);
        assert!(argon2id(dummy.cost, "any", &dummy.salt).is_some());
    }

    #[test]
    fn a_hash_is_read_as_it_was_written() {
        let hashed = Hashed {
            cost: COST,
            salt: b"sixteen bytes ok".to_vec(),
            hash: [9; HASH_BYTES],
        };
        assert_eq!(Hashed::parse(&hashed.to_text()), Some(hashed));
    }

    #[test]
    fn other_texts_and_excessive_costs_match_no_password() {
        let good = Hashed::dummy().to_text();
        assert!(Hashed::parse(&good).is_some());
        for wrong in [
            String::new(),
            good.replace("argon2id", "argon2i"),
            good.replace("v=19", "v=16"),
            good.replace("m=19456", "m=4000000000"),
            good.replace("t=2", "t=1000"),
            good.replace("p=1", "p=0"),
            good.replace(",p=1", ""),
            good.replace("p=1", "p=1,x=1"),
            format!("{good}$"),
            good[..good.len() - 1].to_owned(),
        ] {
            assert_eq!(Hashed::parse(&wrong), None, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn passwords_beyond_the_bound_are_refused_at_once() {
        let passwords = Passwords::new();
        let most = u32::try_from(MAX_COMPUTATIONS + MAX_WAITING).expect("small");
        let all = passwords.waiting.clone().try_acquire_many_owned(most);
        let all = all.expect("they are free");
        let refused = passwords.verify(None, String::new()).await;
        assert_eq!(refused.expect_err("no place").status, 503);
        drop(all);
        assert!(
            !passwords
                .verify(None, String::new())
                .await
                .expect("checked")
        );
    }
}
