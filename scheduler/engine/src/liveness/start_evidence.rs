//! What an executor's start log says about its attempts. Pure.

use std::collections::HashSet;

use bytes::Bytes;
use cueline_model::{AttemptId, Session, StoreId, Timestamp};
use cueline_protocol::{StartRecord, decode};

/// The starts in the log of one executor.
#[derive(Debug, Default)]
pub(crate) struct StartEvidence {
    started: HashSet<AttemptId>,
    /// The log has the starts of all attempts that were marked `dispatching` at this time or later, by the database's
    /// clock. `None` if it says nothing.
    complete_from: Option<Timestamp>,
}

/// Who writes records with consecutive numbers: a start of the process, in one of its sessions.
type Writer = (String, Session);

/// The executor's clock dates the oldest record that is left and the first one after a gap. All other times here are by
/// the database's clock. The executor's clock must be less than this behind the database's.
const CLOCK_SLACK_MS: u64 = 60_000;

impl StartEvidence {
    /// Reads the records of a log, oldest first.
    pub(crate) fn of(records: &[Bytes], store: StoreId) -> Self {
        let mut evidence = Self::default();
        // The writer and number of the last record of the executor.
        let mut last: Option<(Writer, u64)> = None;
        let mut declarations = HashSet::new();
        for record in records {
            match decode::<StartRecord>(record) {
                Ok(StartRecord::Declaration { id, .. }) => {
                    declarations.insert(id);
                }
                Ok(StartRecord::Mark {
                    declaration, at, ..
                }) if declarations.contains(&declaration) => {
                    // Attempts that were marked `dispatching` at its time or later have their records behind its
                    // declaration. Records that the log had lost before that are of older attempts.
                    let earlier = evidence.complete_from.map_or(at, |from| from.min(at));
                    evidence.complete_from = Some(earlier);
                }
                // The log that has its declaration is lost, with starts since its time.
                Ok(StartRecord::Mark { .. }) => {}
                Ok(StartRecord::Starts {
                    incarnation,
                    session,
                    number,
                    at,
                    store: of,
                    attempts,
                    ..
                }) => {
                    let writer = (incarnation, session);
                    let next = last.as_ref().map(|(before, n)| {
                        let is_same = *before == writer;
                        if is_same { n + 1 } else { 0 }
                    });
                    let has_gap = next.is_some_and(|next| number > next);
                    if has_gap || evidence.complete_from.is_none() {
                        let complete_from = at.plus_ms(CLOCK_SLACK_MS);
                        tracing::warn!(number, expected = next, %complete_from, "a start log has lost records; attempts dispatched before it is complete again count as started");
                        evidence.complete_from = Some(complete_from);
                    }
                    // A record whose confirmation was lost may come again after its successor.
                    let newest = next.map_or(number, |next| number.max(next.saturating_sub(1)));
                    last = Some((writer, newest));
                    if of == store {
                        evidence.started.extend(attempts);
                    }
                }
                // The next record counts as the first one after a gap.
                Err(e) => {
                    tracing::warn!(error = %e, "ignored a record of a start log that cannot be read");
                    evidence.complete_from = None;
                }
            }
        }
        evidence
    }

    /// Whether the log has a start of the attempt.
    pub(crate) fn has_start(&self, attempt: AttemptId) -> bool {
        self.started.contains(&attempt)
    }

    /// Whether the attempt, which was marked `dispatching` at `dispatched_at`, may have started.
    ///
    /// The time of its confirmation would prove nothing. The executor may have started the attempt long before that, and
    /// the log may have lost the record since.
    pub(crate) fn may_have_started(&self, attempt: AttemptId, dispatched_at: Timestamp) -> bool {
        let is_complete = self.complete_from.is_some_and(|from| from <= dispatched_at);
        !is_complete || self.has_start(attempt)
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::RunId;
    use cueline_protocol::{VERSION, encode};

    use super::*;

    const STORE: StoreId = StoreId(1);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn attempt(run: i64) -> AttemptId {
        AttemptId {
            run: RunId(run),
            attempt: 1,
        }
    }

    const DECLARATION: &str = "d";

    fn declaration() -> Bytes {
        let record = StartRecord::Declaration {
            v: VERSION,
            id: DECLARATION.to_owned(),
        };
        encode(&record).into()
    }

    /// A mark that counts behind its [`declaration`].
    fn mark(ms: i64) -> Bytes {
        let record = StartRecord::Mark {
            v: VERSION,
            declaration: DECLARATION.to_owned(),
            at: at(ms),
        };
        encode(&record).into()
    }

    fn starts(session: i64, number: u64, ms: i64, runs: &[i64]) -> Bytes {
        starts_in(STORE, session, number, ms, runs)
    }

    fn starts_in(store: StoreId, session: i64, number: u64, ms: i64, runs: &[i64]) -> Bytes {
        let record = StartRecord::Starts {
            v: VERSION,
            incarnation: "1".to_owned(),
            session: Session(session),
            number,
            at: at(ms),
            store,
            attempts: runs.iter().map(|run| attempt(*run)).collect(),
        };
        encode(&record).into()
    }

    /// A log that begins with a declaration.
    fn evidence(records: &[Bytes]) -> StartEvidence {
        StartEvidence::of(&[&[declaration()][..], records].concat(), STORE)
    }

    fn may(records: &[Bytes], run: i64, dispatched_ms: i64) -> bool {
        evidence(records).may_have_started(attempt(run), at(dispatched_ms))
    }

    #[test]
    fn an_attempt_that_is_not_in_a_complete_log_has_not_started() {
        let log = [
            mark(100),
            starts(5, 0, 200, &[1, 2]),
            starts(5, 1, 300, &[3]),
        ];
        for run in [1, 2, 3] {
            assert!(may(&log, run, 150), "run {run} is in the log");
        }
        assert!(!may(&log, 4, 100));
        assert!(
            may(&log, 4, 99),
            "it was dispatched before the log was declared"
        );
        assert!(!may(&log[..1], 1, 100), "nothing has started");
        let other = AttemptId {
            attempt: 2,
            ..attempt(1)
        };
        assert!(!evidence(&log).may_have_started(other, at(150)));
    }

    /// The log with its declaration was lost before the mark was written, or has dropped the declaration.
    #[test]
    fn a_mark_without_its_declaration_proves_nothing() {
        let may = |log: &[Bytes], dispatched_ms| {
            StartEvidence::of(log, STORE).may_have_started(attempt(3), at(dispatched_ms))
        };
        assert!(may(&[mark(100)], i64::MAX));
        assert!(may(&[mark(100), declaration()], i64::MAX));
        assert!(!may(&[mark(100), declaration(), mark(200)], 200));
        assert!(may(&[mark(100), declaration(), mark(200)], 199));
        let log = [mark(100), starts(5, 0, 200, &[1])];
        assert!(may(&log, 60_199));
        assert!(!may(&log, 60_200));
    }

    #[test]
    fn a_log_without_its_first_records_says_nothing_about_older_attempts() {
        assert!(may(&[], 1, i64::MAX), "there is no log");
        let log = [starts(5, 7, 1_000, &[1]), starts(5, 8, 2_000, &[2])];
        assert!(may(&log, 3, 60_999));
        assert!(!may(&log, 3, 61_000));
        let log = [mark(900), starts(5, 7, 1_000, &[1])];
        assert!(may(&log, 3, 899));
        assert!(!may(&log, 3, 900), "all since the mark are in the log");
    }

    #[test]
    fn a_mark_makes_the_log_complete_whatever_is_before_it() {
        let records: [&[Bytes]; 3] = [
            &[starts(5, 2, 200, &[1])],
            &[mark(100), starts(5, 0, 200, &[1]), starts(5, 2, 250, &[2])],
            &[mark(100), Bytes::from_static(b"?")],
        ];
        for before in records {
            let log = [before, &[mark(300), starts(5, 3, 400, &[3])]].concat();
            assert!(!may(&log, 4, 300));
            assert!(may(&log, 4, 299));
            assert!(may(&log, 3, 300));
            let lost_after_it = [&log[..], &[starts(5, 5, 500, &[5])]].concat();
            assert!(may(&lost_after_it, 4, 300));
        }
    }

    #[test]
    fn a_gap_says_nothing_about_older_attempts() {
        let first = [mark(100), starts(5, 0, 200, &[1])];
        let with = |more: &[Bytes]| [&first[..], more].concat();
        for (what, more, complete) in [
            ("a repeated record", vec![starts(5, 0, 250, &[1])], true),
            ("the next record", vec![starts(5, 1, 250, &[2])], true),
            ("a new session", vec![starts(6, 0, 250, &[2])], true),
            ("a lost record", vec![starts(5, 2, 250, &[2])], false),
            (
                "a lost first record of a session",
                vec![starts(6, 1, 250, &[2])],
                false,
            ),
            (
                "a late copy",
                vec![
                    starts(5, 1, 250, &[2]),
                    starts(5, 0, 250, &[1]),
                    starts(5, 2, 250, &[4]),
                ],
                true,
            ),
            (
                "an unreadable record",
                vec![Bytes::from_static(b"?")],
                false,
            ),
            ("a second mark", vec![mark(50_000)], true),
        ] {
            assert_eq!(!may(&with(&more), 3, 150), complete, "{what}");
        }
        let log = with(&[starts(5, 2, 250, &[2])]);
        assert!(!may(&log, 3, 60_250), "it was dispatched after the gap");
        assert!(may(&log, 1, 60_250), "it is still in the log");
    }

    #[test]
    fn stores_on_one_broker_do_not_mix() {
        let log = [mark(100), starts_in(StoreId(2), 5, 0, 200, &[1])];
        assert!(!may(&log, 1, 150));
    }
}
