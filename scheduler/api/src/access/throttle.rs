//! How often a password may be tried: for one name, and from one address.
//!
//! Pure: the time is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use cueline_http::PeerAddress;
use cueline_store::name_key;
use tokio::time::Instant;

/// The most names, and the most addresses, that are remembered.
const MAX_ENTRIES: usize = 10_000;

/// For one name: 10 attempts at once, then one each 30 s.
const PER_NAME: Rate = Rate {
    burst: 10,
    every: Duration::from_secs(30),
};

/// For one address, which may be a proxy of many people: 30 attempts at once, then one each 2 s.
const PER_ADDRESS: Rate = Rate {
    burst: 30,
    every: Duration::from_secs(2),
};

/// A bucket of `burst` attempts, to which one is added after each `every`.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    every: Duration,
}

/// The buckets of many keys. A full bucket needs no entry.
#[derive(Debug)]
struct Buckets<K> {
    rate: Rate,
    most: usize,
    /// When the bucket will be full again.
    full_at: HashMap<K, Instant>,
}

impl<K: Eq + Hash + Clone> Buckets<K> {
    fn new(rate: Rate, most: usize) -> Self {
        Self {
            rate,
            most,
            full_at: HashMap::new(),
        }
    }

    /// Takes an attempt out of the bucket. If it is empty, returns the time until it has one.
    fn take(&mut self, key: &K, now: Instant) -> Result<(), Duration> {
        let Rate { burst, every } = self.rate;
        let known = self.full_at.get(key).copied();
        let full_at = known.map_or(now, |at| at.max(now));
        let room = every * burst.saturating_sub(1);
        let wait = full_at.saturating_duration_since(now).saturating_sub(room);
        if !wait.is_zero() {
            return Err(wait);
        }
        if known.is_none() {
            self.make_room(now);
        }
        self.full_at.insert(key.clone(), full_at + every);
        Ok(())
    }

    /// Puts one attempt back.
    fn give_back(&mut self, key: &K) {
        if let Some(at) = self.full_at.get_mut(key) {
            *at = at.checked_sub(self.rate.every).unwrap_or(*at);
        }
    }

    /// Forgets full buckets. If that is not enough, forgets the one that will be full first.
    fn make_room(&mut self, now: Instant) {
        if self.full_at.len() < self.most {
            return;
        }
        self.full_at.retain(|_, at| *at > now);
        if self.full_at.len() < self.most {
            return;
        }
        let first = self.full_at.iter().min_by_key(|(_, at)| **at);
        if let Some(key) = first.map(|(key, _)| key.clone()) {
            self.full_at.remove(&key);
        }
    }
}

/// The attempts of all names and addresses.
#[derive(Debug)]
pub(super) struct Throttle {
    names: Buckets<String>,
    addresses: Buckets<PeerAddress>,
}

impl Throttle {
    pub(super) fn new() -> Self {
        Self {
            names: Buckets::new(PER_NAME, MAX_ENTRIES),
            addresses: Buckets::new(PER_ADDRESS, MAX_ENTRIES),
        }
    }

    /// Counts an attempt. If there were too many, returns the time until the next one.
    pub(super) fn attempt(
        &mut self,
        name: &str,
        address: PeerAddress,
        now: Instant,
    ) -> Result<(), Duration> {
        // The address first: without an attempt left, it cannot fill the memory with names.
        self.addresses.take(&address.network(), now)?;
        self.names.take(&name_key(name), now)
    }

    /// Counts an attempt without a name. If there were too many from this address, returns the time until the next one.
    pub(super) fn attempt_from(
        &mut self,
        address: PeerAddress,
        now: Instant,
    ) -> Result<(), Duration> {
        self.addresses.take(&address.network(), now)
    }

    /// Gives a successful attempt without a name back.
    pub(super) fn succeeded_from(&mut self, address: PeerAddress) {
        self.addresses.give_back(&address.network());
    }

    /// Gives a successful attempt back. Earlier failures still count, because somebody else may have made them.
    pub(super) fn succeeded(&mut self, name: &str, address: PeerAddress) {
        self.addresses.give_back(&address.network());
        self.names.give_back(&name_key(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        burst: 3,
        every: Duration::from_secs(10),
    };

    fn address(last: u8) -> PeerAddress {
        PeerAddress::of([10, 0, 0, last].into())
    }

    #[test]
    fn a_burst_passes_and_then_one_attempt_at_a_time() {
        let now = Instant::now();
        let mut buckets = Buckets::new(RATE, 10);
        for _ in 0..3 {
            assert_eq!(buckets.take(&"a", now), Ok(()));
        }
        assert_eq!(buckets.take(&"a", now), Err(Duration::from_secs(10)));
        assert_eq!(buckets.take(&"b", now), Ok(()));
        let later = now + Duration::from_secs(4);
        assert_eq!(buckets.take(&"a", later), Err(Duration::from_secs(6)));
        let later = now + Duration::from_secs(10);
        assert_eq!(buckets.take(&"a", later), Ok(()));
        assert_eq!(buckets.take(&"a", later), Err(Duration::from_secs(10)));
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let now = Instant::now();
        let mut buckets = Buckets::new(RATE, 10);
        for _ in 0..10 {
            assert_eq!(buckets.take(&"a", now), Ok(()));
            buckets.give_back(&"a");
        }
    }

    #[test]
    fn the_number_of_entries_is_bounded_and_the_first_to_recover_is_forgotten() {
        let now = Instant::now();
        let mut buckets = Buckets::new(RATE, 2);
        for key in ["slow", "slow", "slow", "quick", "third"] {
            assert_eq!(buckets.take(&key, now), Ok(()), "{key}");
        }
        assert_eq!(buckets.full_at.len(), 2);
        assert!(buckets.take(&"slow", now).is_err());
        assert!(!buckets.full_at.contains_key("quick"));
        let later = now + Duration::from_mins(1);
        assert_eq!(buckets.take(&"fourth", later), Ok(()));
        assert_eq!(buckets.full_at.len(), 1, "full buckets are forgotten");
    }

    #[test]
    fn attempts_count_for_the_name_in_any_case_and_for_the_address() {
        let now = Instant::now();
        let mut throttle = Throttle::new();
        for last in 0..10 {
            assert_eq!(throttle.attempt("Alice", address(last), now), Ok(()));
        }
        assert!(throttle.attempt("alice", address(99), now).is_err());
        // The names that the store takes for the same, whatever the last letter of a word looks like.
        for last in 0..10 {
            let name = if last % 2 == 0 { "ΑΣ" } else { "ασ" };
            assert_eq!(throttle.attempt(name, address(last), now), Ok(()));
        }
        assert!(throttle.attempt("ασ", address(99), now).is_err());
        for name in 0..30 {
            let name = format!("user {name}");
            assert_eq!(throttle.attempt(&name, address(200), now), Ok(()));
        }
        assert!(throttle.attempt("someone", address(200), now).is_err());
        assert_eq!(throttle.attempt("someone", address(201), now), Ok(()));
    }

    #[test]
    fn attempts_without_a_name_count_for_the_address_alone() {
        let now = Instant::now();
        let mut throttle = Throttle::new();
        for _ in 0..30 {
            assert_eq!(throttle.attempt_from(address(1), now), Ok(()));
        }
        assert!(throttle.attempt_from(address(1), now).is_err());
        assert_eq!(throttle.attempt_from(address(2), now), Ok(()));
        throttle.succeeded_from(address(1));
        assert_eq!(throttle.attempt_from(address(1), now), Ok(()));
        assert!(throttle.attempt("alice", address(1), now).is_err());
    }

    #[test]
    fn a_success_does_not_forgive_earlier_failures() {
        let now = Instant::now();
        let mut throttle = Throttle::new();
        for _ in 0..9 {
            assert_eq!(throttle.attempt("alice", address(1), now), Ok(()));
        }
        for _ in 0..3 {
            assert_eq!(throttle.attempt("alice", address(1), now), Ok(()));
            throttle.succeeded("alice", address(1));
        }
        assert_eq!(throttle.attempt("alice", address(1), now), Ok(()));
        assert!(throttle.attempt("alice", address(1), now).is_err());
    }
}
