//! What was published without an answer. Deduplication keeps the first copy of a message: when that one came too late to count, the next
//! needs another id. Decides; does no input or output.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// At most so many are known; past that the oldest tries are forgotten with all others, and what is lost by it is published again by reconcile.
const MOST: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Doubt {
    /// From then on the first copy under the last id does not count if it arrives: a copy in the stream may be that one.
    late_from: Instant,
    /// From then on no copy sent before counts.
    until: Instant,
    /// Ids used up.
    used: u32,
}

/// By the messages' own ids.
#[derive(Debug, Default)]
pub(crate) struct Doubts(Mutex<HashMap<String, Doubt>>);

impl Doubts {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Doubt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The number of the id to publish under: another one when no copy under the last can count any more.
    pub(crate) fn number(&self, id: &str, now: Instant) -> u32 {
        self.lock()
            .get(id)
            .map_or(0, |doubt| doubt.used + u32::from(doubt.until <= now))
    }

    /// A try was made under this number, and whether it was taken is not known. Its first copy counts until `late_from` at least, its last
    /// until `until`. A further try under the same number moves `until` and not `late_from`: the stream keeps the copy that comes first.
    pub(crate) fn note(&self, id: String, number: u32, late_from: Instant, until: Instant) {
        let mut doubts = self.lock();
        if doubts.len() >= MOST && !doubts.contains_key(&id) {
            doubts.clear();
        }
        let before = doubts.get(&id).filter(|doubt| doubt.used == number);
        let doubt = Doubt {
            late_from: before.map_or(late_from, |doubt| doubt.late_from.min(late_from)),
            until,
            used: number,
        };
        doubts.insert(id, doubt);
    }

    /// The stream has a copy under this number; whether that may be one that came too late.
    pub(crate) fn may_be_late(&self, id: &str, number: u32, now: Instant) -> bool {
        self.lock()
            .get(id)
            .is_some_and(|doubt| doubt.used == number && doubt.late_from <= now)
    }

    /// It has been taken.
    pub(crate) fn end(&self, id: &str) {
        self.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_id_is_used_until_no_copy_under_it_counts() {
        let (doubts, now) = (Doubts::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        assert_eq!(doubts.number("a", now), 0);
        assert!(!doubts.may_be_late("a", 0, later));
        doubts.note("a".into(), 0, later, later);
        assert_eq!(doubts.number("a", now), 0, "the first copy may count");
        assert!(!doubts.may_be_late("a", 0, now));
        assert!(doubts.may_be_late("a", 0, later));
        assert_eq!(doubts.number("a", later), 1);
        assert!(!doubts.may_be_late("a", 1, later), "it is the only one");
        doubts.note("a".into(), 1, later, later);
        assert_eq!(doubts.number("a", later), 2);
        assert_eq!(doubts.number("b", later), 0);
        doubts.end("a");
        assert!(doubts.is_empty());
    }

    #[test]
    fn later_tries_do_not_move_the_time_from_which_the_first_copy_is_late() {
        let (doubts, now) = (Doubts::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        doubts.note("a".into(), 0, after(10), after(15));
        doubts.note("a".into(), 0, after(15), after(20));
        assert_eq!(doubts.number("a", after(12)), 0, "a later copy may count");
        assert!(!doubts.may_be_late("a", 0, after(9)));
        assert!(doubts.may_be_late("a", 0, after(10)));
        doubts.note("a".into(), 1, after(30), after(35));
        assert!(
            !doubts.may_be_late("a", 1, after(29)),
            "a new id has a time of its own"
        );
    }

    #[test]
    fn there_is_a_bound_to_what_is_remembered() {
        let (doubts, now) = (Doubts::default(), Instant::now());
        for n in 0..MOST + 10 {
            doubts.note(n.to_string(), 0, now, now);
        }
        assert_eq!(doubts.lock().len(), 10);
    }
}
