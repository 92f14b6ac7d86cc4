//! Unconfirmed publishes, and the message id that the next try uses.
//!
//! A stream keeps the first copy of a message id and answers later ones as duplicates. A copy that was stored after its
//! [deadline](crate::deadline) is void. The stream would then confirm a further try with the same id, although it holds
//! no valid copy. Once that is possible, the next try uses another id: `<id>~1`, then `<id>~2`, and so on.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// Beyond this number all entries are forgotten. A run may then lose its trigger, and reconcile publishes it again.
const MAX_ENTRIES: usize = 100_000;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The number of the last published id.
    id_number: u32,
    /// After this time the stream may hold an expired copy with that id. It is the deadline of the first copy.
    may_be_expired_from: Instant,
    /// After this time every unstored copy with that id has expired.
    all_expired_from: Instant,
}

/// Keyed by message id without its number.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed(Mutex<HashMap<String, Entry>>);

impl Unconfirmed {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the id for the next try. It is the last one while a copy with that id can still arrive in time.
    pub(crate) fn id_number(&self, id: &str, now: Instant) -> u32 {
        self.entries().get(id).map_or(0, |entry| {
            entry.id_number + u32::from(entry.all_expired_from <= now)
        })
    }

    /// Records a try. A further try with the same id extends only `all_expired_from`, because the stream keeps the copy
    /// that arrives first.
    pub(crate) fn record(
        &self,
        id: &str,
        id_number: u32,
        may_be_expired_from: Instant,
        all_expired_from: Instant,
    ) {
        let mut entries = self.entries();
        if entries.len() >= MAX_ENTRIES && !entries.contains_key(id) {
            entries.clear();
        }
        let first = entries
            .get(id)
            .filter(|entry| entry.id_number == id_number)
            .map_or(may_be_expired_from, |entry| entry.may_be_expired_from);
        let entry = Entry {
            id_number,
            may_be_expired_from: first.min(may_be_expired_from),
            all_expired_from,
        };
        entries.insert(id.to_owned(), entry);
    }

    /// Whether the copy that the stream holds under this id may have arrived after its deadline.
    pub(crate) fn may_be_expired(&self, id: &str, id_number: u32, now: Instant) -> bool {
        self.entries()
            .get(id)
            .is_some_and(|entry| entry.id_number == id_number && entry.may_be_expired_from <= now)
    }

    pub(crate) fn confirm(&self, id: &str) {
        self.entries().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_id_is_used_until_every_copy_under_it_has_expired() {
        let (unconfirmed, now) = (Unconfirmed::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        assert_eq!(unconfirmed.id_number("a", now), 0);
        assert!(!unconfirmed.may_be_expired("a", 0, later));
        unconfirmed.record("a", 0, later, later);
        assert_eq!(unconfirmed.id_number("a", now), 0, "a copy may be in time");
        assert!(!unconfirmed.may_be_expired("a", 0, now));
        assert!(unconfirmed.may_be_expired("a", 0, later));
        assert_eq!(unconfirmed.id_number("a", later), 1);
        assert!(!unconfirmed.may_be_expired("a", 1, later), "a first copy");
        unconfirmed.record("a", 1, later, later);
        assert_eq!(unconfirmed.id_number("a", later), 2);
        assert_eq!(unconfirmed.id_number("b", later), 0);
        unconfirmed.confirm("a");
        assert_eq!(unconfirmed.id_number("a", later), 0);
    }

    #[test]
    fn further_tries_do_not_move_the_deadline_of_the_first_copy() {
        let (unconfirmed, now) = (Unconfirmed::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        unconfirmed.record("a", 0, after(10), after(15));
        unconfirmed.record("a", 0, after(15), after(20));
        assert_eq!(
            unconfirmed.id_number("a", after(17)),
            0,
            "a later copy may be in time"
        );
        assert!(!unconfirmed.may_be_expired("a", 0, after(9)));
        assert!(unconfirmed.may_be_expired("a", 0, after(10)));
        unconfirmed.record("a", 1, after(30), after(35));
        assert!(
            !unconfirmed.may_be_expired("a", 1, after(29)),
            "a new id has a deadline of its own"
        );
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let (unconfirmed, now) = (Unconfirmed::default(), Instant::now());
        for n in 0..MAX_ENTRIES + 10 {
            unconfirmed.record(&n.to_string(), 0, now, now);
        }
        assert_eq!(unconfirmed.entries().len(), 10);
    }
}
