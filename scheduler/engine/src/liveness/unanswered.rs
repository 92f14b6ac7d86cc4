//! Executors that are alive and answer no question about their attempts. Pure.
//!
//! Triggers that are lost on the way to such an executor stay `queued`, because only its answer shows that they are
//! missing.

use std::collections::HashMap;

use cueline_model::{ExecutorId, Timestamp};

/// The most executors that are remembered. At the limit all are forgotten, and warnings come later or are repeated.
const MAX_EXECUTORS: usize = 10_000;
/// A busy executor may miss a few questions. Reconcile asks every 10 s by default.
const WARN_AFTER_MS: i64 = 60_000;
/// The least time between two warnings about one executor. Questions that are further apart say nothing about the time
/// between them.
const WARN_EVERY_MS: i64 = 5 * 60_000;

/// The executors that did not answer their last question.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(HashMap<ExecutorId, Silence>);

#[derive(Debug)]
struct Silence {
    /// The first and the last question without an answer.
    since: Timestamp,
    last: Timestamp,
    warned_at: Option<Timestamp>,
}

impl Unanswered {
    /// The executor has answered.
    pub(crate) fn note_answer(&mut self, executor: &ExecutorId) {
        self.0.remove(executor);
    }

    /// The executor has not answered a question. If a warning is due, returns for how long it has answered none, in
    /// milliseconds.
    pub(crate) fn note_silence(&mut self, executor: &ExecutorId, now: Timestamp) -> Option<i64> {
        if self.0.len() >= MAX_EXECUTORS && !self.0.contains_key(executor) {
            self.0.clear();
        }
        let new = || Silence {
            since: now,
            last: now,
            warned_at: None,
        };
        let silence = self.0.entry(executor.clone()).or_insert_with(new);
        if !(0..=WARN_EVERY_MS).contains(&now.since_ms(silence.last)) {
            *silence = new();
        }
        silence.last = now;
        let silent_ms = now.since_ms(silence.since);
        let is_new = silence
            .warned_at
            .is_none_or(|at| now.since_ms(at) >= WARN_EVERY_MS);
        if silent_ms < WARN_AFTER_MS || !is_new {
            return None;
        }
        silence.warned_at = Some(now);
        Some(silent_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(number: usize) -> ExecutorId {
        ExecutorId {
            group: "g".parse().expect("valid"),
            name: format!("e{number}").parse().expect("valid"),
        }
    }

    /// The times, in seconds, at which a warning is due if the executor answers no question at `asked`.
    fn warned(unanswered: &mut Unanswered, asked: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let mut warned = Vec::new();
        for second in asked {
            let now = Timestamp::from_millis(second * 1_000);
            if unanswered.note_silence(&executor(0), now).is_some() {
                warned.push(second);
            }
        }
        warned
    }

    #[test]
    fn an_executor_that_answers_nothing_is_warned_about_every_five_minutes() {
        let mut unanswered = Unanswered::default();
        let asked = (0..=700).step_by(10);
        assert_eq!(warned(&mut unanswered, asked), [60, 360, 660]);
    }

    #[test]
    fn an_answer_begins_anew() {
        let mut unanswered = Unanswered::default();
        assert!(warned(&mut unanswered, [0, 30, 50]).is_empty());
        unanswered.note_answer(&executor(0));
        assert_eq!(warned(&mut unanswered, [60, 119, 120]), [120]);
    }

    #[test]
    fn questions_far_apart_and_a_clock_that_is_set_back_begin_anew() {
        let mut unanswered = Unanswered::default();
        assert!(warned(&mut unanswered, [0, 3_600, 3_650]).is_empty());
        assert_eq!(warned(&mut unanswered, [100, 159, 160]), [160]);
    }

    #[test]
    fn the_number_of_remembered_executors_is_limited() {
        let mut unanswered = Unanswered::default();
        let now = Timestamp::from_millis(0);
        for number in 0..=MAX_EXECUTORS {
            assert_eq!(unanswered.note_silence(&executor(number), now), None);
        }
        assert_eq!(unanswered.0.len(), 1);
    }
}
