//! Which store a run is in.
//!
//! Runs are known by number, and each store counts by itself: a new store, or one that was restored under a new id, gives numbers
//! that this worker may have seen before. So stores are numbered here, in the order in which they came, and a run is known by the
//! numbers of both. The numbers are in the journal; they mean nothing outside of the state directory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cueline_model::{AttemptId, RunId, StoreId};

/// Bits of a [`RunKey`] that are the run's number. The largest numbers are those of PostgreSQL's runs: year, month and day in front of ten digits.
const RUN_BITS: u32 = 54;
/// Stores that a state directory can know.
const MOST: u16 = 1 << (63 - RUN_BITS);

/// A store, by its number here. 0 is the first one, whose id may not be known yet: it was there before triggers told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct StoreNumber(u16);

impl StoreNumber {
    pub(crate) fn number(self) -> i64 {
        i64::from(self.0)
    }
}

/// A run and its store, in one number: what the journal goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunKey(i64);

impl RunKey {
    /// `None` for a number that no run has.
    pub(crate) fn new(store: StoreNumber, run: RunId) -> Option<Self> {
        let fits = (0..1 << RUN_BITS).contains(&run.0) && store.0 < MOST;
        fits.then(|| Self((i64::from(store.0) << RUN_BITS) | run.0))
    }

    /// As the journal keeps it.
    pub(crate) const fn from_number(number: i64) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> i64 {
        self.0
    }

    pub(crate) const fn run(self) -> RunId {
        RunId(self.0 & ((1 << RUN_BITS) - 1))
    }

    pub(crate) fn store(self) -> StoreNumber {
        StoreNumber(u16::try_from(self.0 >> RUN_BITS).unwrap_or(u16::MAX))
    }
}

/// The run's number in its store.
impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run().fmt(f)
    }
}

/// An attempt, by identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AttemptKey {
    pub(crate) run: RunKey,
    pub(crate) attempt: u32,
}

impl AttemptKey {
    /// As its store knows it.
    pub(crate) const fn holding(self) -> AttemptId {
        AttemptId {
            run: self.run.run(),
            attempt: self.attempt,
        }
    }
}

/// The stores that this worker has met.
#[derive(Debug, Default)]
pub(crate) struct Stores(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By number. Only the first one's may be missing.
    ids: Vec<Option<StoreId>>,
    numbers: HashMap<StoreId, StoreNumber>,
    /// Not in the journal yet.
    new: Vec<(StoreNumber, StoreId)>,
}

impl Stores {
    /// Those that are in the journal.
    pub(crate) fn load(&self, rows: Vec<(StoreNumber, StoreId)>) {
        let mut known = self.lock();
        for (number, id) in rows {
            known.put(number, id);
        }
    }

    /// The key of a run of the store with this id, which becomes known by it. `None` when a state directory can know no more stores, or for a
    /// number that no run has.
    pub(crate) fn key(&self, store: StoreId, run: RunId) -> Option<RunKey> {
        let number = self.lock().meet(store)?;
        RunKey::new(number, run)
    }

    /// The same for a run of a store that has sent no trigger yet: `None` then, for nothing can be known of it.
    pub(crate) fn known_key(&self, store: StoreId, run: RunId) -> Option<RunKey> {
        let number = self.lock().find(store)?;
        RunKey::new(number, run)
    }

    /// The id of a store that was met.
    pub(crate) fn id(&self, number: StoreNumber) -> StoreId {
        let known = self.lock();
        let id = known.ids.get(usize::from(number.0)).copied().flatten();
        id.unwrap_or(StoreId(0))
    }

    /// Those that the journal does not have, until it does.
    pub(crate) fn unwritten(&self) -> Vec<(StoreNumber, StoreId)> {
        self.lock().new.clone()
    }

    /// The journal has so many of them.
    pub(crate) fn written(&self, count: usize) {
        let mut known = self.lock();
        let count = count.min(known.new.len());
        known.new.drain(..count);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn put(&mut self, number: StoreNumber, id: StoreId) {
        let at = usize::from(number.0);
        if self.ids.len() <= at {
            self.ids.resize(at + 1, None);
        }
        self.ids[at] = Some(id);
        self.numbers.insert(id, number);
    }

    /// What is known from before triggers told their store belongs to the first one that does.
    fn find(&self, id: StoreId) -> Option<StoreNumber> {
        match self.numbers.get(&id) {
            Some(number) => Some(*number),
            None if self.numbers.is_empty() => Some(StoreNumber::default()),
            None => None,
        }
    }

    fn meet(&mut self, id: StoreId) -> Option<StoreNumber> {
        if let Some(number) = self.numbers.get(&id) {
            return Some(*number);
        }
        let next = if self.numbers.is_empty() {
            0
        } else {
            u16::try_from(self.ids.len()).ok()?
        };
        if next >= MOST {
            return None;
        }
        if next > 0 {
            tracing::warn!(store = %id, "triggers come from another store than before; its runs are told apart from those of the other one");
        }
        let number = StoreNumber(next);
        self.put(number, id);
        self.new.push((number, id));
        Some(number)
    }
}

/// A number as the journal keeps it.
impl TryFrom<i64> for StoreNumber {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        u16::try_from(number)
            .ok()
            .filter(|n| *n < MOST)
            .map(Self)
            .ok_or_else(|| format!("store number {number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StoreId = StoreId(0xa);
    const B: StoreId = StoreId(0xb);

    #[test]
    fn runs_of_two_stores_are_two_runs() {
        let stores = Stores::default();
        let old = stores.key(A, RunId(7)).expect("a key");
        assert_eq!(stores.known_key(A, RunId(7)), Some(old));
        assert_eq!(stores.key(A, RunId(7)), Some(old));
        assert_eq!(stores.known_key(B, RunId(7)), None);
        let other = stores.key(B, RunId(7)).expect("a key");
        assert_ne!(other, old);
        assert_eq!((other.run(), old.run()), (RunId(7), RunId(7)));
        assert_eq!(stores.id(other.store()), B);
        assert_eq!(stores.id(old.store()), A);
        let again = Stores::default();
        again.load(stores.unwritten());
        assert_eq!(again.key(B, RunId(7)), Some(other));
        assert!(again.unwritten().is_empty());
    }

    #[test]
    fn keys_are_as_the_journal_had_them_before() {
        let run = RunId(991_231 * 10_000_000_000 + 9_999_999_999);
        let key = RunKey::new(StoreNumber(0), run).expect("a key");
        assert_eq!(key.number(), run.0);
        let far = RunKey::new(StoreNumber(MOST - 1), run).expect("a key");
        assert_eq!((far.run(), far.store()), (run, StoreNumber(MOST - 1)));
        assert!(far.number() > 0);
        assert_eq!(RunKey::new(StoreNumber(0), RunId(-1)), None);
        assert_eq!(RunKey::new(StoreNumber(0), RunId(1 << RUN_BITS)), None);
    }

    #[test]
    fn a_state_directory_knows_only_so_many_stores() {
        let stores = Stores::default();
        for id in 0..u128::from(MOST) {
            assert!(stores.key(StoreId(id), RunId(1)).is_some());
        }
        let one_more = StoreId(u128::from(MOST));
        assert_eq!(stores.key(one_more, RunId(1)), None);
    }
}
