//! The last events, numbered. Pure.
//!
//! Each subscriber reads at its own pace. One that is slower than the ring loses events, and is told how many. A client
//! that comes back continues where it was, if that is still here.

use std::collections::VecDeque;
use std::sync::Arc;

use super::event::Event;

/// The events that are kept, some 5 MB.
pub(super) const KEPT_EVENTS: usize = 16_384;

/// The last events.
#[derive(Debug)]
pub(super) struct Ring {
    events: VecDeque<Arc<Event>>,
    /// The number of the first one.
    first: u64,
    most: usize,
}

/// Events from a number on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Events that are no longer here.
    pub(super) missed: u64,
    pub(super) events: Vec<(u64, Arc<Event>)>,
    /// Where to continue.
    pub(super) next: u64,
}

impl Ring {
    /// Numbers begin at 1, so there is a number before the first one.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            events: VecDeque::new(),
            first: 1,
            most,
        }
    }

    pub(super) fn push(&mut self, event: Event) {
        if self.events.len() >= self.most {
            self.events.pop_front();
            self.first += 1;
        }
        self.events.push_back(Arc::new(event));
    }

    /// The number of the next event.
    pub(super) fn next(&self) -> u64 {
        self.first + to_u64(self.events.len())
    }

    /// Whether a reader can continue at this number without a loss.
    pub(super) fn has_all_from(&self, number: u64) -> bool {
        (self.first..=self.next()).contains(&number)
    }

    /// At most `limit` events from this number on.
    pub(super) fn read(&self, from: u64, limit: usize) -> Part {
        let start = from.clamp(self.first, self.next());
        let skipped = usize::try_from(start - self.first).unwrap_or(usize::MAX);
        let numbered = (start..).zip(self.events.iter().skip(skipped));
        let events: Vec<(u64, Arc<Event>)> = numbered
            .take(limit)
            .map(|(number, event)| (number, Arc::clone(event)))
            .collect();
        Part {
            missed: start.saturating_sub(from),
            next: start + to_u64(events.len()),
            events,
        }
    }
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::event::Kind;

    fn ring(most: usize, events: usize) -> Ring {
        let mut ring = Ring::new(most);
        for watched in 0..events {
            ring.push(Event::overflow(Kind::Run, watched));
        }
        ring
    }

    fn numbers(part: &Part) -> Vec<u64> {
        part.events.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn a_reader_gets_each_event_once_in_order() {
        let ring = ring(10, 5);
        let first = ring.read(1, 3);
        assert_eq!((numbers(&first), first.missed), (vec![1, 2, 3], 0));
        assert_eq!(*first.events[0].1, Event::overflow(Kind::Run, 0));
        let second = ring.read(first.next, 3);
        assert_eq!((numbers(&second), second.missed), (vec![4, 5], 0));
        let nothing = ring.read(second.next, 3);
        assert_eq!((nothing.events.len(), nothing.next), (0, 6));
    }

    #[test]
    fn a_reader_that_is_too_slow_is_told_how_many_events_it_lost() {
        let ring = ring(10, 25);
        let part = ring.read(1, 100);
        assert_eq!((part.missed, part.events.len(), part.next), (15, 10, 26));
        assert_eq!(part.events[0].0, 16);
        assert_eq!(ring.read(16, 100).missed, 0);
    }

    #[test]
    fn a_client_continues_only_where_no_event_is_lost() {
        let ring = ring(10, 25);
        assert!(!ring.has_all_from(15));
        assert!(ring.has_all_from(16));
        assert!(ring.has_all_from(26), "it has seen all of them");
        assert!(!ring.has_all_from(27), "there was no such event");
    }
}
