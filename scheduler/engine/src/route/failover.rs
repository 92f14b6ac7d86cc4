//! The choice of `failover`: the first executor by name that answers.
//!
//! An executor answers if a heartbeat of it, or its answer to a ping, is at most [`FRESH_MS`] old. An unanswered ping
//! makes it silent until its next heartbeat or answer, so a dead executor delays one run, and not the runs after it.

use cueline_model::Timestamp;

/// How long a heartbeat or an answer counts, in ms.
pub(crate) const FRESH_MS: i64 = 3_000;

/// Whether an executor answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// Its last sign is old, and it was not asked since.
    Unknown,
}

/// The candidate that gets the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstAnswering {
    Candidate(usize),
    /// It depends on answers that are not known yet.
    Unknown,
}

/// What a node knows of the answers of one executor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Its last heartbeat or answer.
    pub(crate) last_sign_at: Timestamp,
    /// Its last ping without an answer.
    pub(crate) unanswered_at: Option<Timestamp>,
}

impl Answered {
    /// Whether the executor answers.
    pub(crate) fn answer(self, now: Timestamp) -> Answer {
        if self.unanswered_at.is_some_and(|at| at > self.last_sign_at) {
            Answer::No
        } else if self.age_ms(now) <= FRESH_MS {
            Answer::Yes
        } else {
            Answer::Unknown
        }
    }

    /// Whether the executor has to be asked again soon, so that no run waits for its next answer.
    pub(crate) fn is_getting_old(self, now: Timestamp) -> bool {
        self.age_ms(now) > FRESH_MS / 2
    }

    /// The age of the newest of both. A time in the future is one from before a step of the clock.
    fn age_ms(self, now: Timestamp) -> i64 {
        let newest = self
            .unanswered_at
            .unwrap_or_default()
            .max(self.last_sign_at);
        now.since_ms(newest).saturating_abs()
    }
}

/// The first candidate that answers. If none does, the first of all gets the run: all of them were alive a moment ago,
/// and its queue keeps the trigger. Unless the run may wait, an executor whose answer is not known counts as answering.
pub(super) fn first_answering(answers: &[Answer], may_wait: bool) -> FirstAnswering {
    for (index, answer) in answers.iter().enumerate() {
        match answer {
            Answer::No => {}
            Answer::Unknown if may_wait => return FirstAnswering::Unknown,
            Answer::Yes | Answer::Unknown => return FirstAnswering::Candidate(index),
        }
    }
    FirstAnswering::Candidate(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_sign_counts_for_a_while_and_an_unanswered_ping_until_the_next_sign() {
        let mut answered = Answered {
            last_sign_at: at(10_000),
            unanswered_at: None,
        };
        assert_eq!(answered.answer(at(13_000)), Answer::Yes);
        assert!(!answered.is_getting_old(at(11_500)));
        assert!(answered.is_getting_old(at(11_501)));
        assert_eq!(answered.answer(at(13_001)), Answer::Unknown);
        answered.unanswered_at = Some(at(14_000));
        assert_eq!(answered.answer(at(14_000)), Answer::No);
        assert_eq!(answered.answer(at(90_000)), Answer::No);
        assert!(!answered.is_getting_old(at(15_000)), "it was just asked");
        assert!(answered.is_getting_old(at(16_000)));
        answered.last_sign_at = at(16_000);
        assert_eq!(answered.answer(at(16_000)), Answer::Yes);
    }

    proptest! {
        #[test]
        fn the_first_that_answers_is_chosen_and_nothing_before_it_is_unknown(
            answers in proptest::collection::vec(0..3_u8, 1..6)
        ) {
            let answers: Vec<Answer> = answers
                .into_iter()
                .map(|n| [Answer::Yes, Answer::No, Answer::Unknown][usize::from(n)])
                .collect();
            let is = |wanted| move |answer: &Answer| *answer == wanted;
            let yes = answers.iter().position(is(Answer::Yes));
            let unknown = answers.iter().position(is(Answer::Unknown));
            let expected = match (yes, unknown) {
                (Some(yes), None) => FirstAnswering::Candidate(yes),
                (Some(yes), Some(unknown)) if yes < unknown => FirstAnswering::Candidate(yes),
                (_, Some(_)) => FirstAnswering::Unknown,
                (None, None) => FirstAnswering::Candidate(0),
            };
            prop_assert_eq!(first_answering(&answers, true), expected);
            if let FirstAnswering::Candidate(index) = first_answering(&answers, false) {
                prop_assert!(answers[index] != Answer::No || answers.iter().all(is(Answer::No)));
            } else {
                prop_assert!(false, "it may not wait");
            }
        }
    }
}
