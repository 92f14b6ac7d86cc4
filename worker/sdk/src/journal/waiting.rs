//! Which triggers the table `waiting` has, and how a write of entries changes it.
//!
//! A trigger is much larger than the rest of its entry, and is needed only until its attempt starts. In the table of the
//! entries it would fill the pages that each later state writes again. The journal keeps the keys of `waiting` in memory.
//! So an attempt that starts in the write that accepts it costs nothing here.

use std::collections::HashMap;

use super::entry::{Entry, EntryState};
use super::keys::StoreNumbers;

/// Deletes the triggers whose attempts do not wait. A worker leaves such a trigger behind only where the file system does
/// not keep locks.
pub(super) const DELETE_UNUSED_TRIGGERS: &str = "
    DELETE FROM waiting WHERE NOT EXISTS (SELECT 1 FROM entry WHERE entry.key = waiting.key AND state = 0)";

/// The attempts whose triggers are in the file, by key.
///
/// It has every row of the table. It may also have an attempt whose repeated trigger was not written, because the
/// attempt had moved on. The later states of an attempt remove it. So there are as many as the worker holds triggers.
#[derive(Debug, Default)]
pub(super) struct Waiting(HashMap<i64, u32>);

/// The trigger of an accepted entry.
#[derive(Debug)]
pub(super) struct NewTrigger<'e> {
    pub(super) key: i64,
    pub(super) attempt: u32,
    pub(super) trigger: &'e [u8],
}

/// What a write of entries changes in the table. A key is in one of the lists at most.
#[derive(Debug, Default)]
pub(super) struct WaitingChanges<'e> {
    /// Their attempts move on.
    pub(super) removed: Vec<i64>,
    /// To write, unless the journal has an entry of this or a newer attempt.
    pub(super) added: Vec<NewTrigger<'e>>,
}

impl WaitingChanges<'_> {
    pub(super) const fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }
}

impl Waiting {
    /// The rows of the file: key and attempt.
    pub(super) fn new(rows: Vec<(i64, u32)>) -> Self {
        Self(rows.into_iter().collect())
    }

    /// What these entries change. Their stores have numbers, and a run has at most one of them.
    pub(super) fn changes<'e>(
        &self,
        entries: &'e [Entry],
        stores: &StoreNumbers,
    ) -> WaitingChanges<'e> {
        let mut changes = WaitingChanges::default();
        for entry in entries {
            let Some(key) = stores.key(entry.key.run) else {
                continue;
            };
            let attempt = entry.key.attempt;
            let waits = self.0.get(&key).copied();
            // A repeated or older write changes nothing.
            if waits.is_some_and(|of| (attempt, entry.state) <= (of, EntryState::Accepted)) {
                continue;
            }
            match entry.trigger.as_deref() {
                Some(trigger) if entry.state == EntryState::Accepted => {
                    changes.added.push(NewTrigger {
                        key,
                        attempt,
                        trigger,
                    });
                }
                _ if waits.is_some() => changes.removed.push(key),
                _ => {}
            }
        }
        changes
    }

    /// These changes are in the file.
    pub(super) fn apply(&mut self, changes: &WaitingChanges<'_>) {
        for key in &changes.removed {
            self.0.remove(key);
        }
        for new in &changes.added {
            self.0.insert(new.key, new.attempt);
        }
    }

    /// The keys and their attempts.
    #[cfg(test)]
    pub(super) fn attempts(&self) -> std::collections::BTreeMap<i64, u32> {
        self.0.iter().map(|(key, of)| (*key, *of)).collect()
    }
}
