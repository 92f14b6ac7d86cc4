//! Which numbers of runs a reader of new runs still has to look for. Pure.
//!
//! Transactions allocate numbers before they commit, so numbers appear out of order. A number that is missing below the
//! highest one that was read is kept, and looked for again, until no transaction can write it any more.

use cueline_model::Timestamp;

use crate::changes::{MissingNumbers, RunCursor};

/// A missing number is given up after this time: longer than any call of a store may take. The numbers of transactions
/// that were rolled back stay missing until then.
pub const MISSING_KEPT_MS: u64 = 3 * 60_000;

/// The most ranges of missing numbers. Beyond it the oldest numbers are given up. Ranges stay only after failed
/// transactions, so there are few.
pub const MAX_MISSING: usize = 10_000;

/// The most ranges of missing numbers that one search looks through. The oldest others are left out of it.
pub const MAX_SEARCHED: usize = 64;

/// Ranges with so few numbers between them are searched as one. Transactions that take numbers at the same time leave
/// many small ranges next to each other.
const JOINED_WITHIN: i64 = 64;

/// The ranges of numbers to search, first and last, ascending. The last one is everything above the cursor.
///
/// A search through joined ranges also finds runs that were read before. [`advance`] leaves them out.
pub fn searched(cursor: &RunCursor) -> Vec<(i64, i64)> {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for part in &cursor.missing {
        match ranges.last_mut() {
            Some((_, last)) if part.first - *last <= JOINED_WITHIN => *last = part.last,
            _ => ranges.push((part.first, part.last)),
        }
    }
    let excess = ranges.len().saturating_sub(MAX_SEARCHED);
    ranges.drain(..excess);
    ranges.push((cursor.last + 1, i64::MAX));
    ranges
}

/// Moves the cursor over the numbers that a search has found, and returns those that are new, ascending.
///
/// `found` are all numbers in the [`searched`] ranges, up to `complete_to`; numbers above that are not looked at. `now`
/// is the time of the search.
pub fn advance(
    cursor: &RunCursor,
    found: impl IntoIterator<Item = i64>,
    complete_to: i64,
    now: Timestamp,
) -> (Vec<i64>, RunCursor) {
    let mut found: Vec<i64> = found.into_iter().filter(|n| *n <= complete_to).collect();
    found.sort_unstable();
    found.dedup();
    let above = found.partition_point(|number| *number <= cursor.last);
    let (below, above) = found.split_at(above);
    let (mut new, mut missing) = fill(&cursor.missing, below);
    missing.retain(|part| now.since_ms(part.since) < to_ms(MISSING_KEPT_MS));
    let mut last = cursor.last;
    for number in above {
        if *number > last + 1 {
            missing.push(MissingNumbers {
                first: last + 1,
                last: number - 1,
                since: now,
            });
        }
        last = *number;
        new.push(*number);
    }
    let excess = missing.len().saturating_sub(MAX_MISSING);
    missing.drain(..excess);
    (new, RunCursor { last, missing })
}

/// Takes the found numbers out of the missing ones. Returns those that were missing, and the ranges that are left.
fn fill(missing: &[MissingNumbers], found: &[i64]) -> (Vec<i64>, Vec<MissingNumbers>) {
    let (mut new, mut left) = (Vec::new(), Vec::new());
    let mut found = found.iter().copied().peekable();
    for part in missing {
        let mut first = part.first;
        while let Some(number) = found.next_if(|number| *number <= part.last) {
            if number < first {
                continue;
            }
            if number > first {
                left.push(MissingNumbers {
                    first,
                    last: number - 1,
                    since: part.since,
                });
            }
            new.push(number);
            first = number + 1;
        }
        if first <= part.last {
            left.push(MissingNumbers { first, ..*part });
        }
    }
    (new, left)
}

fn to_ms(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn start(last: i64) -> RunCursor {
        RunCursor {
            last,
            missing: Vec::new(),
        }
    }

    /// Searches as a store does.
    fn search(cursor: &RunCursor, committed: &BTreeSet<i64>) -> Vec<i64> {
        let ranges = searched(cursor).into_iter();
        ranges
            .flat_map(|(first, last)| committed.range(first..=last).copied())
            .collect()
    }

    #[test]
    fn a_number_that_appears_late_is_found_once() {
        let (new, cursor) = advance(&start(10), [11, 14], i64::MAX, NOW);
        assert_eq!(new, [11, 14]);
        assert_eq!(searched(&cursor), [(12, 13), (15, i64::MAX)]);
        let (new, cursor) = advance(&cursor, [13], i64::MAX, NOW);
        assert_eq!(new, [13]);
        assert_eq!(searched(&cursor), [(12, 12), (15, i64::MAX)]);
        let (new, cursor) = advance(&cursor, [12], i64::MAX, NOW);
        assert_eq!(new, [12]);
        assert_eq!(cursor, start(14));
    }

    #[test]
    fn a_missing_number_is_given_up_after_its_time() {
        let (_, cursor) = advance(&start(0), [2], i64::MAX, NOW);
        let before = NOW.plus_ms(MISSING_KEPT_MS - 1);
        let (_, kept) = advance(&cursor, [], i64::MAX, before);
        assert_eq!(kept.missing.len(), 1);
        let (_, given_up) = advance(&cursor, [], i64::MAX, NOW.plus_ms(MISSING_KEPT_MS));
        assert_eq!(given_up, start(2));
        // It is still found in the search that gives it up.
        let (new, _) = advance(&cursor, [1], i64::MAX, NOW.plus_ms(MISSING_KEPT_MS));
        assert_eq!(new, [1]);
    }

    #[test]
    fn numbers_above_an_incomplete_search_are_read_again() {
        let (new, cursor) = advance(&start(0), [1, 2, 9], 5, NOW);
        assert_eq!((new, cursor.last), (vec![1, 2], 2));
        let (new, cursor) = advance(&cursor, [3, 9], i64::MAX, NOW);
        assert_eq!((new, cursor.last), (vec![3, 9], 9));
    }

    #[test]
    fn many_small_ranges_are_searched_as_one() {
        let odd = (0..500).map(|n| 2 * n + 1);
        let (_, cursor) = advance(&start(-1), odd, i64::MAX, NOW);
        assert_eq!(cursor.missing.len(), 500);
        assert_eq!(searched(&cursor), [(0, 998), (1_000, i64::MAX)]);
        // The search also finds numbers that were read before.
        let (new, _) = advance(&cursor, [997, 998, 999], i64::MAX, NOW);
        assert_eq!(new, [998]);
    }

    #[test]
    fn the_ranges_of_a_search_and_of_a_cursor_are_bounded() {
        let far_apart = (0..20_000).map(|n| MissingNumbers {
            first: 1_000 * n,
            last: 1_000 * n,
            since: NOW,
        });
        let cursor = RunCursor {
            last: 30_000_000,
            missing: far_apart.collect(),
        };
        let (_, cursor) = advance(&cursor, [30_000_002], i64::MAX, NOW);
        assert_eq!(cursor.missing.len(), MAX_MISSING);
        let ranges = searched(&cursor);
        assert_eq!(ranges.len(), MAX_SEARCHED + 1);
        assert_eq!(ranges[MAX_SEARCHED - 1], (30_000_001, 30_000_001));
        assert_eq!(ranges[MAX_SEARCHED], (30_000_003, i64::MAX));
    }

    /// Transactions commit in any order. Each number is returned exactly once.
    #[test]
    fn every_number_is_returned_exactly_once_in_any_order_of_commits() {
        for seed in 1..200_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let mut open: Vec<i64> = (0..120).collect();
            let (mut committed, mut seen) = (BTreeSet::new(), Vec::new());
            let mut cursor = start(-1);
            while !open.is_empty() {
                for _ in 0..=next(8) {
                    // Numbers are allocated in their order, so only the first ones can be in open transactions.
                    let among = open.len().min(15) as u64;
                    if among > 0 {
                        let index = usize::try_from(next(among)).expect("small");
                        committed.insert(open.remove(index));
                    }
                }
                let found = search(&cursor, &committed);
                let complete_to = if next(3) == 0 {
                    cursor.last + 3
                } else {
                    i64::MAX
                };
                let (new, moved) = advance(&cursor, found, complete_to, NOW);
                assert!(moved.last >= cursor.last, "seed {seed}");
                seen.extend(new);
                cursor = moved;
            }
            let found = search(&cursor, &committed);
            seen.extend(advance(&cursor, found, i64::MAX, NOW).0);
            seen.sort_unstable();
            assert_eq!(seen, (0..120).collect::<Vec<i64>>(), "seed {seed}");
        }
    }
}
