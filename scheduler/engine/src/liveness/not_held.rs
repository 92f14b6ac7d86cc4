//! Attempts that may have started and that their executor did not hold when it was asked. Pure.
//!
//! The executor may have reported the end of such an attempt before it lost its state directory. So one comparison proves
//! nothing. An attempt counts as lost if two comparisons in a row find it missing. All results that were in the queue at
//! the first one must be in the store at the second one.

use std::collections::{HashMap, HashSet};

use cueline_model::{AttemptId, Timestamp};

use super::results_queue::ResultsQueue;

/// The most attempts that are remembered. At the limit further ones are not; a later comparison finds them again.
const MAX_ATTEMPTS: usize = 10_000;
/// An attempt that was not found again within this many waits is forgotten.
const KEPT_WAITS: i64 = 10;
/// A node that was killed may hold results for almost this long before the broker delivers them to another node.
const REDELIVERED_AFTER_MS: i64 = 60_000;

/// The first comparison that found an attempt missing, and what followed.
#[derive(Debug)]
struct Finding {
    first_at: Timestamp,
    last_at: Timestamp,
    /// The first look at the results queue after it.
    queue: Option<ResultsQueue>,
    /// When all results that were in the queue then had been fetched, by any node.
    fetched_at: Option<Timestamp>,
    /// Whether the store has all results that were in the queue then.
    is_ingested: bool,
}

/// The findings of this node.
#[derive(Debug, Default)]
pub(crate) struct NotHeld(HashMap<AttemptId, Finding>);

impl NotHeld {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes the state of the results queue. The next comparison lists its attempts after this.
    ///
    /// If the queue is empty, and no other node can hold results, all older ones are in the store. Otherwise, another node
    /// may hold some of them for a while after they were fetched.
    pub(crate) fn look_at_results(&mut self, now: ResultsQueue, at: Timestamp) {
        for finding in self.0.values_mut() {
            let then = *finding.queue.get_or_insert(now);
            if finding.fetched_at.is_none() && now.has_passed(then) {
                finding.fetched_at = Some(at);
            }
            let fetched_at = finding.fetched_at;
            let has_waited =
                fetched_at.is_some_and(|since| at.since_ms(since) >= REDELIVERED_AFTER_MS);
            finding.is_ingested |= has_waited || (now.counts_all && now.messages == 0);
        }
    }

    /// Adds a comparison of the attempts in `listed`, of which `missing` were not held. Returns those that are lost,
    /// because they were found missing at least `wait_ms` ago and ever since.
    pub(crate) fn compare(
        &mut self,
        listed: &[AttemptId],
        missing: &[AttemptId],
        at: Timestamp,
        wait_ms: u64,
    ) -> Vec<AttemptId> {
        let wait_ms = i64::try_from(wait_ms).unwrap_or(i64::MAX);
        let still: HashSet<&AttemptId> = missing.iter().collect();
        for attempt in listed.iter().filter(|attempt| !still.contains(attempt)) {
            self.0.remove(attempt);
        }
        let kept_ms = wait_ms.saturating_mul(KEPT_WAITS);
        self.0
            .retain(|_, finding| at.since_ms(finding.last_at) <= kept_ms);
        let mut lost = Vec::new();
        for attempt in missing {
            if let Some(finding) = self.0.get_mut(attempt) {
                finding.last_at = at;
                if finding.is_ingested && at.since_ms(finding.first_at) >= wait_ms {
                    lost.push(*attempt);
                }
            } else if self.0.len() < MAX_ATTEMPTS {
                let finding = Finding {
                    first_at: at,
                    last_at: at,
                    queue: None,
                    fetched_at: None,
                    is_ingested: false,
                };
                self.0.insert(*attempt, finding);
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::RunId;

    use super::*;

    const WAIT_MS: u64 = 30_000;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn attempt(run: i64) -> AttemptId {
        AttemptId {
            run: RunId(run),
            attempt: 1,
        }
    }

    fn queue(messages: u64, ingested: u64) -> ResultsQueue {
        ResultsQueue {
            messages,
            counts_all: true,
            ingested,
            settled: None,
        }
    }

    /// Another node consumes the queue, and the product does not count what that one holds.
    fn shared_queue(messages: u64, ingested: u64) -> ResultsQueue {
        ResultsQueue {
            counts_all: false,
            ..queue(messages, ingested)
        }
    }

    /// A comparison of attempt 1, which is missing. Returns whether it is lost.
    fn finds(all: &mut NotHeld, ms: i64) -> bool {
        let one = [attempt(1)];
        !all.compare(&one, &one, at(ms), WAIT_MS).is_empty()
    }

    #[test]
    fn an_attempt_is_lost_if_two_comparisons_miss_it_and_the_results_were_ingested_in_between() {
        let mut all = NotHeld::default();
        assert!(!finds(&mut all, 0));
        all.look_at_results(queue(0, 0), at(30_000));
        assert!(finds(&mut all, 30_000));
        assert!(finds(&mut all, 31_000), "the report may have failed");
    }

    #[test]
    fn the_second_comparison_waits() {
        let mut all = NotHeld::default();
        finds(&mut all, 0);
        all.look_at_results(queue(0, 0), at(10_000));
        assert!(!finds(&mut all, 29_999));
        assert!(finds(&mut all, 30_000));
    }

    #[test]
    fn an_attempt_whose_result_may_be_in_the_queue_is_not_lost() {
        let mut all = NotHeld::default();
        all.look_at_results(queue(0, 0), at(0));
        assert!(!finds(&mut all, 1), "the queue was empty before");
        for ms in [40_000, 70_000] {
            all.look_at_results(queue(5, 7), at(ms));
            assert!(!finds(&mut all, ms));
        }
        all.look_at_results(queue(5, 11), at(80_000));
        assert!(!finds(&mut all, 80_000), "one of five is left");
        all.look_at_results(queue(5, 12), at(90_000));
        assert!(!finds(&mut all, 90_000), "another node may hold them");
        all.look_at_results(queue(0, 17), at(100_000));
        assert!(finds(&mut all, 100_000));
    }

    #[test]
    fn another_node_may_hold_results_for_a_while_after_they_were_fetched() {
        let empty = shared_queue(0, 0);
        for (fetched, later) in [(empty, empty), (queue(5, 5), queue(5, 9))] {
            let mut all = NotHeld::default();
            finds(&mut all, 0);
            all.look_at_results(queue(5, 0), at(10_000));
            all.look_at_results(fetched, at(30_000));
            assert!(!finds(&mut all, 30_000));
            all.look_at_results(later, at(89_999));
            assert!(!finds(&mut all, 89_999));
            all.look_at_results(later, at(90_000));
            assert!(finds(&mut all, 90_000));
        }
    }

    #[test]
    fn results_that_arrive_during_the_wait_do_not_prolong_it() {
        let mut all = NotHeld::default();
        finds(&mut all, 0);
        all.look_at_results(shared_queue(0, 0), at(10_000));
        all.look_at_results(shared_queue(3, 0), at(70_000));
        assert!(finds(&mut all, 70_000));
    }

    #[test]
    fn an_attempt_that_is_held_meanwhile_begins_anew() {
        let mut all = NotHeld::default();
        finds(&mut all, 0);
        all.look_at_results(queue(0, 0), at(10_000));
        let held = all.compare(&[attempt(1)], &[], at(20_000), WAIT_MS);
        assert_eq!(held, []);
        assert!(all.is_empty());
        assert!(!finds(&mut all, 40_000));
    }

    #[test]
    fn a_comparison_of_other_attempts_changes_nothing() {
        let mut all = NotHeld::default();
        finds(&mut all, 0);
        all.look_at_results(queue(0, 0), at(10_000));
        assert_eq!(all.compare(&[attempt(2)], &[], at(20_000), WAIT_MS), []);
        assert!(finds(&mut all, 30_000));
    }

    #[test]
    fn memory_is_bounded() {
        let mut all = NotHeld::default();
        let many: Vec<AttemptId> = (0..20_000).map(attempt).collect();
        all.compare(&many, &many, at(0), WAIT_MS);
        assert_eq!(all.0.len(), MAX_ATTEMPTS);
        all.look_at_results(queue(0, 0), at(30_000));
        let lost = all.compare(&many, &many, at(30_000), WAIT_MS);
        assert_eq!(lost, many[..MAX_ATTEMPTS]);
        // They have ended, so they are not listed again. The others get their turn.
        all.compare(&[], &[], at(330_001), WAIT_MS);
        assert!(all.is_empty());
    }
}
