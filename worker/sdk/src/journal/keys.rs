//! Keys of entries: a run and its store in one number.
//!
//! `SQLite` finds a row by one integer much faster than by two columns, and a trigger needs several look-ups. With run
//! and store as columns of the key, the standalone server would fire a fifth less. The journal therefore numbers the
//! stores of its entries. The numbers mean nothing outside of the file.

use std::fmt::Write as _;

use cueline_model::{RunId, StoreId};

use crate::identity::RunKey;

/// Bits of a key for the run id. The largest ids are those of PostgreSQL: year, month and day before ten digits.
const RUN_BITS: u32 = 54;
/// The most stores with entries in one journal.
const MAX_STORES: i64 = 1 << (63 - RUN_BITS);

/// Deletes the numbers of stores without entries, a day after their last entry was forgotten. 54 is [`RUN_BITS`].
pub(super) const DELETE_UNUSED_STORES: &str = "
    DELETE FROM store WHERE coalesce(forgotten, 0) < (unixepoch() - 86400) * 1000 AND NOT EXISTS
        (SELECT 1 FROM entry WHERE key BETWEEN number << 54 AND (number << 54) + (1 << 54) - 1)";

/// The stores of a journal's entries, and their numbers.
#[derive(Debug, Default)]
pub(super) struct StoreNumbers {
    numbers: Vec<(i64, StoreId)>,
    /// Numbers before this index are in the file.
    written: usize,
}

impl StoreNumbers {
    /// The stores that are in the file.
    pub(super) fn new(numbers: Vec<(i64, StoreId)>) -> Self {
        Self {
            written: numbers.len(),
            numbers,
        }
    }

    /// The key of a run whose store has a number.
    pub(super) fn key(&self, run: RunKey) -> Option<i64> {
        let number = self.number(run.store)?;
        Some((number << RUN_BITS) | run.run.0)
    }

    /// The number of a store.
    pub(super) fn number(&self, store: StoreId) -> Option<i64> {
        let (number, _) = self.numbers.iter().find(|(_, id)| *id == store)?;
        Some(*number)
    }

    /// The key of a run that [`check`](Self::check) accepts. Its store gets a number if it has none.
    pub(super) fn key_or_add(&mut self, run: RunKey) -> i64 {
        self.key(run).unwrap_or_else(|| {
            let number = self.free_number().unwrap_or_default();
            self.numbers.push((number, run.store));
            (number << RUN_BITS) | run.run.0
        })
    }

    /// The run with this key.
    pub(super) fn run(&self, key: i64) -> Option<RunKey> {
        let number = key >> RUN_BITS;
        let (_, store) = self.numbers.iter().find(|(n, _)| *n == number)?;
        Some(RunKey {
            store: *store,
            run: RunId(key & ((1 << RUN_BITS) - 1)),
        })
    }

    /// Why the journal cannot have an entry of this run.
    pub(super) fn check(&self, run: RunKey) -> Result<(), String> {
        if !(0..1 << RUN_BITS).contains(&run.run.0) {
            return Err(format!("no run has the id {}", run.run));
        }
        if self.key(run).is_none() && self.free_number().is_none() {
            return Err(format!(
                "the state directory has runs of {MAX_STORES} stores, which is the limit; restart the worker a day after they ended"
            ));
        }
        Ok(())
    }

    fn free_number(&self) -> Option<i64> {
        (0..MAX_STORES).find(|number| self.numbers.iter().all(|(used, _)| used != number))
    }

    /// The numbers that are not in the file yet.
    pub(super) fn unwritten(&self) -> &[(i64, StoreId)] {
        &self.numbers[self.written..]
    }

    /// All numbers are in the file.
    pub(super) fn mark_written(&mut self) {
        self.written = self.numbers.len();
    }
}

/// The keys as an array of JSON, so that one parameter of a statement has them all.
pub(super) fn json_array(keys: impl Iterator<Item = i64>) -> String {
    let mut text = String::from("[");
    for (i, key) in keys.enumerate() {
        let comma = if i == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{key}");
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(store: u128, run: i64) -> RunKey {
        RunKey {
            store: StoreId(store),
            run: RunId(run),
        }
    }

    #[test]
    fn keys_name_runs_and_stores() {
        let mut numbers = StoreNumbers::default();
        let runs = [run(7, 1), run(8, 1), run(7, (1 << RUN_BITS) - 1)];
        let keys = runs.map(|run| numbers.key_or_add(run));
        assert_eq!(keys.map(|key| numbers.run(key)), runs.map(Some));
        assert_eq!(numbers.unwritten().len(), 2);
        numbers.mark_written();
        assert_eq!(numbers.key(run(9, 1)), None);
        assert!(numbers.unwritten().is_empty());
    }

    #[test]
    fn what_has_no_key_is_refused() {
        let mut numbers = StoreNumbers::default();
        for bad in [-1, 1 << RUN_BITS] {
            assert!(numbers.check(run(1, bad)).is_err());
        }
        for store in 0..512 {
            assert_eq!(numbers.check(run(store, 1)), Ok(()));
            assert!(numbers.key_or_add(run(store, 1)) >= 0);
        }
        assert!(numbers.check(run(512, 1)).is_err());
        assert_eq!(numbers.check(run(511, 2)), Ok(()));
    }
}
