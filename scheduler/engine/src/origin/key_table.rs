//! The keys of each executor, and what they may still do. Pure.

use std::collections::HashMap;

use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::origin::{WorkerKeyId, WorkerPublicKey};
use cueline_store::{StoredWorkerKey, WorkerKeyState};

/// The beginnings of [`StoredWorkerKey::changed_by`] for a key whose place another one took: by a rotation, or by a token
/// for this very executor.
const REPLACED_BY: [&str; 2] = ["rotation to ", "enrolment token "];
/// The digits of the id that follows.
const ID_DIGITS: usize = 16;

/// What is sealed with a key may be in a queue when another key takes its place, and its worker may not know of that yet.
/// For this time the key still counts for such messages.
const REPLACED_COUNTS_MS: i64 = 5 * 60_000;

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyStanding {
    Allowed,
    /// Another key took its place a short time ago. It still counts for messages that may be in a queue.
    JustReplaced,
    Revoked,
}

#[derive(Debug)]
struct Known {
    key: WorkerPublicKey,
    is_allowed: bool,
    /// When another key took its place.
    replaced_at: Option<Timestamp>,
}

/// All keys that the store has listed. The store bounds their number.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    executors: HashMap<ExecutorId, HashMap<WorkerKeyId, Known>>,
}

impl KeyTable {
    /// Adds a key, or replaces what was known about it.
    pub(super) fn insert(&mut self, stored: StoredWorkerKey) {
        let key = WorkerPublicKey::from_bytes(stored.key);
        let was_replaced = is_replacement(&stored.changed_by);
        let known = Known {
            key,
            is_allowed: stored.state == WorkerKeyState::Allowed,
            replaced_at: was_replaced.then_some(stored.changed_at),
        };
        let keys = self.executors.entry(stored.executor).or_default();
        keys.insert(key.id(), known);
    }

    /// The key and what it may do at `now`. `None` if the store has not listed it.
    pub(super) fn find(
        &self,
        executor: &ExecutorId,
        id: &WorkerKeyId,
        now: Timestamp,
    ) -> Option<(WorkerPublicKey, KeyStanding)> {
        let known = self.executors.get(executor)?.get(id)?;
        let is_recent = |at: Timestamp| now.since_ms(at) <= REPLACED_COUNTS_MS;
        let standing = if known.is_allowed {
            KeyStanding::Allowed
        } else if known.replaced_at.is_some_and(is_recent) {
            KeyStanding::JustReplaced
        } else {
            KeyStanding::Revoked
        };
        Some((known.key, standing))
    }
}

fn is_replacement(changed_by: &str) -> bool {
    let ids = REPLACED_BY.map(|beginning| changed_by.strip_prefix(beginning));
    ids.into_iter().flatten().any(|id| id.len() == ID_DIGITS)
}

#[cfg(test)]
mod tests {
    use cueline_protocol::origin::WorkerKey;

    use super::*;

    fn executor(name: &str) -> ExecutorId {
        ExecutorId {
            group: "g".parse().expect("valid"),
            name: name.parse().expect("valid"),
        }
    }

    fn key(seed: u8) -> WorkerPublicKey {
        WorkerKey::from_seed([seed; 32]).public()
    }

    fn stored(seed: u8, state: WorkerKeyState, changed_by: &str) -> StoredWorkerKey {
        StoredWorkerKey {
            executor: executor("e"),
            key: *key(seed).as_bytes(),
            key_id: key(seed).id().to_string(),
            state,
            enrolled_at: Timestamp::from_millis(0),
            enrolled_by: "enrolment token 0123456789abcdef".to_owned(),
            changed_at: Timestamp::from_millis(1_000),
            changed_by: changed_by.to_owned(),
        }
    }

    fn standing(table: &KeyTable, seed: u8, now: i64) -> Option<KeyStanding> {
        let found = table.find(&executor("e"), &key(seed).id(), Timestamp::from_millis(now));
        found.map(|(found, standing)| {
            assert_eq!(found, key(seed));
            standing
        })
    }

    #[test]
    fn a_key_belongs_to_one_executor_and_follows_the_store() {
        let mut table = KeyTable::default();
        assert_eq!(standing(&table, 1, 0), None);
        table.insert(stored(1, WorkerKeyState::Allowed, "ann"));
        assert_eq!(standing(&table, 1, 0), Some(KeyStanding::Allowed));
        let at = Timestamp::from_millis(0);
        assert!(table.find(&executor("other"), &key(1).id(), at).is_none());
        table.insert(stored(1, WorkerKeyState::Revoked, "ann"));
        assert_eq!(standing(&table, 1, 1_000), Some(KeyStanding::Revoked));
        table.insert(stored(1, WorkerKeyState::Allowed, "ann"));
        assert_eq!(standing(&table, 1, 1_000), Some(KeyStanding::Allowed));
    }

    #[test]
    fn a_replaced_key_counts_for_a_short_time_and_a_revoked_one_does_not() {
        let mut table = KeyTable::default();
        let to = format!("rotation to {}", key(2).id());
        table.insert(stored(1, WorkerKeyState::Revoked, &to));
        table.insert(stored(
            2,
            WorkerKeyState::Allowed,
            "enrolment token 0123456789abcdef",
        ));
        table.insert(stored(3, WorkerKeyState::Revoked, "ann"));
        table.insert(stored(
            4,
            WorkerKeyState::Revoked,
            "enrolment token 0123456789abcdef",
        ));
        table.insert(stored(5, WorkerKeyState::Revoked, "token 0123456789abcdef"));
        let last = 1_000 + REPLACED_COUNTS_MS;
        assert_eq!(standing(&table, 1, last), Some(KeyStanding::JustReplaced));
        assert_eq!(standing(&table, 1, last + 1), Some(KeyStanding::Revoked));
        assert_eq!(standing(&table, 2, last + 1), Some(KeyStanding::Allowed));
        assert_eq!(standing(&table, 3, last), Some(KeyStanding::Revoked));
        assert_eq!(standing(&table, 4, last), Some(KeyStanding::JustReplaced));
        assert_eq!(standing(&table, 5, last), Some(KeyStanding::Revoked));
    }
}
