//! How often the trigger of one attempt is published again (G15). Pure.
//!
//! The run's timeline has the number. It is read only for attempts that this node has published again before, so that
//! the loss of a whole queue costs no read for each attempt.

use std::collections::HashSet;

use cueline_model::AttemptId;
use cueline_store::TimelineEntry;

/// The most times that the trigger of an attempt is published again. It takes at least five minutes to get there.
const MAX_TIMES: usize = 10;
/// The most attempts that are noted. At the limit all are forgotten. Each is then published once more before its number
/// is read again.
const MAX_NOTED: usize = 100_000;

/// The attempts that this node has published again.
#[derive(Debug, Default)]
pub(crate) struct RepublishLimit(HashSet<AttemptId>);

impl RepublishLimit {
    pub(crate) fn note(&mut self, attempts: &[AttemptId]) {
        if self.0.len() + attempts.len() > MAX_NOTED {
            self.0.clear();
        }
        self.0.extend(attempts);
    }

    pub(crate) fn is_noted(&self, attempt: AttemptId) -> bool {
        self.0.contains(&attempt)
    }
}

/// How often the attempt was published in all, if it must not be published again.
pub(crate) fn published_too_often(timeline: &[TimelineEntry], attempt: AttemptId) -> Option<usize> {
    let again = timeline
        .iter()
        .filter(|entry| entry.event == "republished" && entry.attempt == attempt.attempt)
        .count();
    (again >= MAX_TIMES).then_some(again + 1)
}

#[cfg(test)]
mod tests {
    use cueline_model::{RunId, Timestamp};

    use super::*;

    fn attempt(run: i64, attempt: u32) -> AttemptId {
        AttemptId {
            run: RunId(run),
            attempt,
        }
    }

    fn entry(event: &str, attempt: u32) -> TimelineEntry {
        TimelineEntry {
            at: Timestamp::from_millis(0),
            attempt,
            event: event.to_owned(),
            detail: String::new(),
        }
    }

    #[test]
    fn only_publications_of_this_attempt_count() {
        let mut timeline = vec![entry("republished", 1), entry("retry", 2)];
        timeline.extend((1..MAX_TIMES).map(|_| entry("republished", 2)));
        assert_eq!(published_too_often(&timeline, attempt(1, 2)), None);
        timeline.push(entry("republished", 2));
        assert_eq!(
            published_too_often(&timeline, attempt(1, 2)),
            Some(MAX_TIMES + 1)
        );
        assert_eq!(published_too_often(&timeline, attempt(1, 1)), None);
    }

    #[test]
    fn a_bounded_number_of_attempts_is_noted() {
        let mut limit = RepublishLimit::default();
        let runs = i64::try_from(MAX_NOTED).expect("a small number");
        let many: Vec<AttemptId> = (0..runs).map(|run| attempt(run, 1)).collect();
        limit.note(&many);
        assert!(limit.is_noted(many[0]));
        assert!(!limit.is_noted(attempt(0, 2)));
        limit.note(&[attempt(runs, 1)]);
        assert!(!limit.is_noted(many[0]));
        assert!(limit.is_noted(attempt(runs, 1)));
    }
}
