//! Which runs the file may have an entry of, from memory.
//!
//! Nearly every trigger is of a new run, and newer runs have higher keys. So most look-ups need not read the file.

use std::collections::BTreeSet;

/// The most keys that are held. At the limit the lower half is forgotten, and the file is read for those.
const MAX_KEYS: usize = 16_384;

/// Has the higher keys of the file. It may also have keys that are not in the file: those of writes that failed, and of
/// entries that were deleted.
///
/// With several stores, only the one with the highest number gains from it.
#[derive(Debug)]
pub(super) struct RecentKeys {
    /// The file may have any key up to this one.
    floor: i64,
    /// All keys of the file above the floor.
    above: BTreeSet<i64>,
}

impl RecentKeys {
    /// `highest` is the highest key of the file. Keys are not negative.
    pub(super) fn new(highest: Option<i64>) -> Self {
        Self {
            floor: highest.unwrap_or(-1),
            above: BTreeSet::new(),
        }
    }

    /// An entry with this key is about to be written.
    pub(super) fn add(&mut self, key: i64) {
        if key > self.floor {
            self.above.insert(key);
        }
        if self.above.len() > MAX_KEYS
            && let Some(middle) = self.above.iter().nth(MAX_KEYS / 2).copied()
        {
            self.above = self.above.split_off(&middle);
            self.floor = middle - 1;
        }
    }

    /// False if the file has no entry with this key.
    pub(super) fn may_have(&self, key: i64) -> bool {
        key <= self.floor || self.above.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_new_file_has_no_keys_and_an_old_one_may_have_all_up_to_its_highest() {
        assert!(!RecentKeys::new(None).may_have(0));
        let old = RecentKeys::new(Some(7));
        assert_eq!([6, 7, 8].map(|key| old.may_have(key)), [true, true, false]);
    }

    #[test]
    fn at_the_limit_the_lower_half_is_forgotten() {
        let mut keys = RecentKeys::new(None);
        // Odd keys, so that those between them are known not to be there.
        let added: Vec<i64> = (1..).step_by(2).take(MAX_KEYS + 1).collect();
        for key in &added {
            keys.add(*key);
        }
        assert_eq!(keys.above.len(), MAX_KEYS / 2 + 1);
        assert!(keys.may_have(0), "forgotten");
        let last = added[MAX_KEYS];
        assert_eq!(
            [last - 1, last].map(|key| keys.may_have(key)),
            [false, true]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Whatever the order, no key of the file is taken for a new one.
        #[test]
        fn no_written_key_is_denied(
            highest in proptest::option::of(0_i64..1_000),
            written in proptest::collection::vec(0_i64..100_000, 0..40_000),
        ) {
            let mut keys = RecentKeys::new(highest);
            for key in &written {
                keys.add(*key);
            }
            prop_assert!(keys.above.len() <= MAX_KEYS);
            prop_assert!(highest.is_none_or(|key| keys.may_have(key)));
            prop_assert!(written.iter().all(|key| keys.may_have(*key)));
            // Without so many keys, new ones are known to be new.
            let all: HashSet<i64> = written.iter().copied().collect();
            if all.len() <= MAX_KEYS {
                let new = |key: &i64| *key > highest.unwrap_or(-1) && !all.contains(key);
                let mut new = (0..100_000).filter(new);
                prop_assert!(new.all(|key| !keys.may_have(key)));
            }
        }
    }
}
