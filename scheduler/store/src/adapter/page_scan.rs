//! Collects a page of a list whose entries are not all found by an index.
//!
//! The caller reads candidates in the order of the list, and says of each whether it belongs to the list. The page ends
//! when a further entry is known, when there are no more candidates, or when enough of them were looked at.

use crate::MAX_SCANNED;

/// The most candidates in one statement.
pub const BATCH: usize = 1_000;

/// A page that is being collected.
#[derive(Debug)]
pub struct PageScan<T, P> {
    limit: usize,
    entries: Vec<T>,
    /// The candidate of the last entry.
    last_entry: Option<P>,
    /// The last candidate.
    last: Option<P>,
    scanned: usize,
    has_more: bool,
}

impl<T, P: Copy> PageScan<T, P> {
    /// An empty page of at most `limit` entries.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            entries: Vec::new(),
            last_entry: None,
            last: None,
            scanned: 0,
            has_more: false,
        }
    }

    /// Takes the next candidate. `entry` is what the list has of it; `None` if it does not belong to the list.
    pub fn take(&mut self, position: P, entry: Option<T>) {
        if self.is_over() {
            return;
        }
        self.scanned += 1;
        match entry {
            Some(_) if self.entries.len() >= self.limit => self.has_more = true,
            Some(entry) => {
                self.entries.push(entry);
                self.last_entry = Some(position);
                self.last = Some(position);
            }
            None => self.last = Some(position),
        }
    }

    /// Whether no further candidate is needed.
    pub fn is_over(&self) -> bool {
        self.has_more || self.scanned >= MAX_SCANNED
    }

    /// The entries, and the candidate after which the next page begins. `is_complete` says that there are no further
    /// candidates.
    pub fn finish(self, is_complete: bool) -> (Vec<T>, Option<P>) {
        let next = if self.has_more {
            self.last_entry
        } else if is_complete {
            None
        } else {
            self.last
        };
        (self.entries, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(
        limit: usize,
        candidates: &[(i64, bool)],
        is_complete: bool,
    ) -> (Vec<i64>, Option<i64>) {
        let mut page = PageScan::new(limit);
        for (position, belongs) in candidates {
            page.take(*position, belongs.then_some(*position));
        }
        page.finish(is_complete)
    }

    #[test]
    fn the_last_page_has_no_next_one() {
        assert_eq!(page(2, &[(1, true), (2, true)], true), (vec![1, 2], None));
        let candidates = [(1, true), (2, true), (3, false)];
        assert_eq!(page(2, &candidates, true), (vec![1, 2], None));
    }

    #[test]
    fn a_full_page_ends_with_its_last_entry() {
        let candidates = [
            (1, true),
            (2, false),
            (3, true),
            (4, false),
            (5, true),
            (6, true),
        ];
        assert_eq!(page(2, &candidates, true), (vec![1, 3], Some(3)));
    }

    #[test]
    fn a_short_page_ends_with_the_last_candidate() {
        assert_eq!(page(2, &[(1, true), (2, false)], false), (vec![1], Some(2)));
        let mut page = PageScan::new(1);
        for position in 0..MAX_SCANNED + 5 {
            page.take(position, None::<()>);
        }
        assert!(page.is_over());
        assert_eq!(page.finish(false).1, Some(MAX_SCANNED - 1));
    }
}
