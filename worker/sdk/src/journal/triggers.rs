//! The triggers of waiting attempts, in rows of their own.
//!
//! An entry stays for an hour after its attempt has ended, and its trigger only until the attempt starts. A trigger is
//! several times as large as the rest. With both in one row, a page would keep few entries for all that time, and each
//! later state of the entries would write as many pages as the triggers took. A trigger that starts in the turn that
//! accepts it is never written.
//!
//! A trigger's row has a negative key, so it is on other pages than entries. It is written by the statement that
//! writes the entry, and deleted some time after the attempt has started or ended. Until then it does no harm, because
//! triggers are read only with entries that wait.

use std::collections::HashMap;

use super::entry::{Entry, EntryState};

/// The state of a trigger's row. No entry has it.
pub(super) const TRIGGER_STATE: i64 = 4;

/// Deletes the triggers of attempts that do not wait. A later trigger may get the key of one of these.
pub(super) const DELETE_UNUSED_TRIGGERS: &str = "
    DELETE FROM entry WHERE key < 0 AND -1 - key NOT IN (SELECT seq FROM entry WHERE state = 0)";

/// The key of the trigger that was accepted with this number. Entries have keys from 0 on.
pub(super) const fn trigger_key(seq: i64) -> i64 {
    -1 - seq
}

/// The triggers in the file.
#[derive(Debug, Default)]
pub(super) struct TriggerRows {
    /// Of attempts that wait, by the key of the entry: the attempt, and its order of acceptance.
    waiting: HashMap<i64, (u32, i64)>,
    /// Keys of rows that are no longer needed.
    unused: Vec<i64>,
}

impl TriggerRows {
    /// Whether writing the entry may have added a trigger or made one unneeded.
    pub(super) fn concerns(&self, entry: &Entry) -> bool {
        entry.state == EntryState::Accepted || !self.waiting.is_empty()
    }

    /// Notes an entry that was written. `key` is its key.
    pub(super) fn note(&mut self, key: i64, entry: &Entry) {
        let attempt = entry.key.attempt;
        let known = self.waiting.get(&key).copied();
        if entry.state > EntryState::Accepted {
            // The end of an older attempt says nothing about the one that waits.
            if let Some((waiting, seq)) = known
                && waiting <= attempt
            {
                self.waiting.remove(&key);
                self.unused.push(trigger_key(seq));
            }
        } else if entry.trigger.is_some() {
            match known {
                // A repeated or older write changes nothing, so the entry keeps its order of acceptance.
                Some((waiting, seq)) if waiting >= attempt => {
                    if seq != entry.seq {
                        self.unused.push(trigger_key(entry.seq));
                    }
                }
                older => {
                    self.waiting.insert(key, (attempt, entry.seq));
                    let replaced = older.filter(|(_, seq)| *seq != entry.seq);
                    self.unused
                        .extend(replaced.map(|(_, seq)| trigger_key(seq)));
                }
            }
        }
    }

    /// The keys of up to `max` rows that are no longer needed.
    pub(super) fn unused(&self, max: usize) -> &[i64] {
        &self.unused[..self.unused.len().min(max)]
    }

    /// The first `count` of the [`unused`](Self::unused) rows were deleted.
    pub(super) fn forget_unused(&mut self, count: usize) {
        self.unused.drain(..count.min(self.unused.len()));
    }
}
