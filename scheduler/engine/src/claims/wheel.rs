//! The wheel: runs in memory, ordered by due time, then priority, then id.
//!
//! It is an ordered map, not a hashed timing wheel. It answers for any instant and reads no clock, so tests can set the
//! time (docs/adr/0002).

use std::collections::{BTreeMap, HashMap};

use cueline_model::{RunId, Timestamp};

type Key = (Timestamp, std::cmp::Reverse<u8>, RunId);

/// An ordered map with at most one entry for each run.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    entries: BTreeMap<Key, T>,
    keys: HashMap<RunId, Key>,
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            keys: HashMap::new(),
        }
    }
}

impl<T> Wheel<T> {
    /// Replaces the run's entry if there is one. After an edit, a run must not be here with both definitions.
    pub(crate) fn insert(&mut self, due: Timestamp, priority: u8, run: RunId, item: T) {
        let key = (due, std::cmp::Reverse(priority), run);
        if let Some(previous) = self.keys.insert(run, key)
            && previous != key
        {
            self.entries.remove(&previous);
        }
        self.entries.insert(key, item);
    }

    /// Removes at most `max` items that are due at or before `now`, in order.
    pub(crate) fn pop_due(&mut self, now: Timestamp, max: usize) -> Vec<T> {
        let mut due = Vec::new();
        while due.len() < max {
            match self.entries.first_entry() {
                Some(entry) if entry.key().0 <= now => {
                    let ((.., run), item) = entry.remove_entry();
                    self.keys.remove(&run);
                    due.push(item);
                }
                _ => break,
            }
        }
        due
    }

    /// The item of a run.
    pub(crate) fn get(&self, run: RunId) -> Option<&T> {
        self.keys.get(&run).and_then(|key| self.entries.get(key))
    }

    pub(crate) fn remove(&mut self, run: RunId) {
        if let Some(key) = self.keys.remove(&run) {
            self.entries.remove(&key);
        }
    }

    /// All items, in order.
    pub(crate) fn into_items(self) -> impl Iterator<Item = T> {
        self.entries.into_values()
    }

    pub(crate) fn items_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.values_mut()
    }

    /// The due time of the first item.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.entries.first_key_value().map(|((due, ..), _)| *due)
    }

    /// Counts the items that are due at or before `until`, at most `max` of them.
    pub(crate) fn count_due(&self, until: Timestamp, max: usize) -> usize {
        let due = self.entries.keys().take(max);
        due.take_while(|(due, ..)| *due <= until).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pops_exactly_the_due_items_in_order(
            entries in proptest::collection::vec((0_i64..50, 0_u8..10), 0..200),
            now in 0_i64..60,
        ) {
            let mut wheel = Wheel::default();
            for (id, (due, priority)) in (0..).zip(&entries) {
                wheel.insert(Timestamp::from_millis(*due), *priority, RunId(id), (*due, *priority, id));
            }
            let count = wheel.count_due(Timestamp::from_millis(now), 100);
            let out = wheel.pop_due(Timestamp::from_millis(now), usize::MAX);
            let mut expected: Vec<_> =
                (0..).zip(&entries).map(|(id, (d, p))| (*d, *p, id)).filter(|e| e.0 <= now).collect();
            expected.sort_by_key(|(due, priority, id)| (*due, std::cmp::Reverse(*priority), *id));
            prop_assert_eq!(&out, &expected);
            prop_assert_eq!(count, out.len().min(100));
            prop_assert_eq!(wheel.len(), entries.len() - expected.len());
            prop_assert!(wheel.next_due().is_none_or(|due| due.as_millis() > now));
        }
    }

    /// The later insert wins when priority or due time have changed.
    #[test]
    fn a_run_has_one_entry() {
        let at = Timestamp::from_millis;
        let mut wheel = Wheel::default();
        wheel.insert(at(10), 9, RunId(1), "old");
        wheel.insert(at(10), 1, RunId(1), "new");
        wheel.insert(at(20), 5, RunId(2), "old");
        wheel.insert(at(5), 5, RunId(2), "new");
        wheel.insert(at(5), 5, RunId(3), "old");
        wheel.insert(at(5), 5, RunId(3), "new");
        assert_eq!(wheel.len(), 3);
        assert_eq!(wheel.next_due(), Some(at(5)));
        assert_eq!(wheel.pop_due(at(30), 9), ["new"; 3]);
        assert_eq!(wheel.len(), 0);
        wheel.insert(at(1), 5, RunId(1), "again");
        assert_eq!(wheel.pop_due(at(30), 9), ["again"]);
    }

    #[test]
    fn pops_no_more_than_max() {
        let mut wheel = Wheel::default();
        for id in 0..10 {
            wheel.insert(Timestamp::from_millis(id), 5, RunId(id), id);
        }
        assert_eq!(wheel.pop_due(Timestamp::from_millis(100), 3), vec![0, 1, 2]);
        assert_eq!(wheel.len(), 7);
    }
}
