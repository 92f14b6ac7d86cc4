//! What is due when: claimed runs in memory, ordered by due time, then priority, then id.
//!
//! An ordered map rather than a hashed timing wheel: it tells what is due at any instant it is asked about, so a test can set the clock
//! (docs/adr/0002). It knows no clock itself.

use std::collections::{BTreeMap, HashMap};

use cueline_model::{RunId, Timestamp};

type Key = (Timestamp, std::cmp::Reverse<u8>, RunId);

/// An ordered map of what is due when, with one entry for a run.
#[derive(Debug)]
pub struct Wheel<T> {
    entries: BTreeMap<Key, T>,
    places: HashMap<RunId, Key>,
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            places: HashMap::new(),
        }
    }
}

impl<T> Wheel<T> {
    /// Puts in a run. Whatever was there for it is replaced: after an edit, a run must not be there under both definitions.
    pub fn insert(&mut self, due: Timestamp, priority: u8, run: RunId, item: T) {
        let key = (due, std::cmp::Reverse(priority), run);
        if let Some(before) = self.places.insert(run, key)
            && before != key
        {
            self.entries.remove(&before);
        }
        self.entries.insert(key, item);
    }

    /// Takes out up to `max` of what is due at or before `now`, in order.
    pub fn pop_due(&mut self, now: Timestamp, max: usize) -> Vec<T> {
        let mut due = Vec::new();
        while due.len() < max {
            match self.entries.first_entry() {
                Some(entry) if entry.key().0 <= now => {
                    let ((.., run), item) = entry.remove_entry();
                    self.places.remove(&run);
                    due.push(item);
                }
                _ => break,
            }
        }
        due
    }

    /// When the first is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.entries.first_key_value().map(|((due, ..), _)| *due)
    }

    /// How many are due at or before `until`; more than `most` are not counted.
    pub fn count_due(&self, until: Timestamp, most: usize) -> usize {
        let due = self.entries.keys().take(most);
        due.take_while(|(due, ..)| *due <= until).count()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.places.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn takes_out_exactly_what_is_due_in_order(
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

    /// Its priority or due time changed: the later word counts, wherever it stands.
    #[test]
    fn a_run_is_there_once() {
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
        assert!(wheel.is_empty());
        wheel.insert(at(1), 5, RunId(1), "again");
        assert_eq!(wheel.pop_due(at(30), 9), ["again"]);
    }

    #[test]
    fn takes_no_more_than_asked() {
        let mut wheel = Wheel::default();
        for id in 0..10 {
            wheel.insert(Timestamp::from_millis(id), 5, RunId(id), id);
        }
        assert_eq!(wheel.pop_due(Timestamp::from_millis(100), 3), vec![0, 1, 2]);
        assert_eq!(wheel.len(), 7);
    }
}
