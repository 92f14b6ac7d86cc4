//! The ledger lists the expected fire times of a past window, each with the run that accounts for it.

use cueline_model::{JobSpec, RunId, RunState, Timestamp};
use serde::Deserialize;

use super::convert::{run_state, to_u32};
use crate::{LedgerEntry, StoreError};

/// Excluded fire times that have no run yet: from the first on, and before the second. `None` without any.
pub type ExcludedRange = Option<(Timestamp, Timestamp)>;

/// The excluded fire times of a job that are not accounted for yet.
pub fn excluded_range(excluded_from: Option<i64>, next_fire_at: Option<i64>) -> ExcludedRange {
    let until = next_fire_at.unwrap_or(i64::MAX);
    excluded_from.map(|from| (Timestamp::from_millis(from), Timestamp::from_millis(until)))
}

/// A run of the schedule at its fire time.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct LedgerRun {
    /// The fire time.
    pub fire_at: Timestamp,
    /// The run.
    pub run: RunId,
    /// Its shard index.
    pub shard_index: i64,
    /// The code of its state.
    pub state: i64,
}

impl LedgerRun {
    /// The ledger entry of the run.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for an unknown state.
    pub fn entry(&self) -> Result<LedgerEntry, StoreError> {
        Ok(LedgerEntry {
            fire_at: self.fire_at,
            run: Some(self.run),
            shard: Some(to_u32(self.shard_index)),
            state: Some(run_state(self.state)?),
            pruned: false,
        })
    }
}

/// A skipped run that accounts for a range of fire times.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct SkippedRange {
    /// The first fire time.
    pub first: Timestamp,
    /// The last fire time, which is the run's own.
    pub last: Timestamp,
    /// The run.
    pub run: RunId,
}

impl From<(i64, i64, i64)> for SkippedRange {
    fn from((first, last, run): (i64, i64, i64)) -> Self {
        Self {
            first: Timestamp::from_millis(first),
            last: Timestamp::from_millis(last),
            run: RunId(run),
        }
    }
}

/// Cuts `from..to` to the part that can have entries: after the creation of the job, and not in the future.
pub fn past_window(
    created_at: i64,
    from: Timestamp,
    to: Timestamp,
    now: Timestamp,
) -> (Timestamp, Timestamp) {
    (
        from.max(Timestamp::from_millis(created_at).plus_ms(1)),
        to.min(now.plus_ms(1)),
    )
}

/// The fire times of the definition in `from..to`, at most `limit`.
pub fn expected_fire_times(
    spec: &JobSpec,
    from: Timestamp,
    to: Timestamp,
    limit: usize,
) -> Vec<Timestamp> {
    let mut times = Vec::new();
    let mut after = from.minus_ms(1);
    while times.len() < limit {
        match spec.next_fire(after) {
            Some(at) if at < to && at > after => {
                times.push(at);
                after = at;
            }
            _ => break,
        }
    }
    times
}

/// What a ledger knows of fire times without a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WithoutRun {
    /// These are skipped, and get their run later.
    pub excluded: ExcludedRange,
    /// The last fire time whose run may have been deleted. `None` if none was.
    pub pruned_until: Option<i64>,
}

/// At most `limit` entries for `times`. A fire time gets its runs. If it has none, it gets the skipped run that
/// accounts for it, or no run. `runs` have to be sorted by fire time and shard, `skipped` by `last`.
///
/// # Errors
///
/// As [`LedgerRun::entry`].
pub fn ledger_entries(
    times: &[Timestamp],
    runs: &[LedgerRun],
    skipped: &[SkippedRange],
    without_run: WithoutRun,
    limit: usize,
) -> Result<Vec<LedgerEntry>, StoreError> {
    let mut entries = Vec::with_capacity(times.len());
    let mut runs = runs.iter().peekable();
    for &at in times {
        let mut found = false;
        while let Some(run) = runs.next_if(|run| run.fire_at <= at) {
            entries.push(run.entry()?);
            found = true;
        }
        if !found {
            entries.push(entry_without_run(at, skipped, without_run));
        }
    }
    entries.truncate(limit);
    Ok(entries)
}

fn entry_without_run(
    at: Timestamp,
    skipped: &[SkippedRange],
    without_run: WithoutRun,
) -> LedgerEntry {
    let is_excluded = without_run
        .excluded
        .is_some_and(|(from, until)| from <= at && at < until);
    let before = skipped.partition_point(|range| range.last < at);
    let range = skipped
        .get(before..)
        .unwrap_or_default()
        .iter()
        .find(|range| range.first <= at);
    LedgerEntry {
        fire_at: at,
        run: range.map(|range| range.run),
        shard: range.map(|_| 0),
        state: (range.is_some() || is_excluded).then_some(RunState::Skipped),
        pruned: range.is_none()
            && !is_excluded
            && without_run
                .pruned_until
                .is_some_and(|until| at.as_millis() <= until),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn run(ms: i64, id: i64, shard: i64) -> LedgerRun {
        LedgerRun {
            fire_at: at(ms),
            run: RunId(id),
            shard_index: shard,
            state: i64::from(RunState::Succeeded.code()),
        }
    }

    #[test]
    fn a_fire_time_has_its_runs_or_a_skipped_run_or_none() {
        let skipped = [SkippedRange {
            first: at(2),
            last: at(3),
            run: RunId(9),
        }];
        let runs = [run(1, 5, 0), run(1, 6, 1)];
        let times = [at(1), at(2), at(4)];
        let none = WithoutRun::default();
        let got = ledger_entries(&times, &runs, &skipped, none, 10).expect("known states");
        let got: Vec<_> = got.iter().map(|e| (e.fire_at, e.run, e.shard)).collect();
        assert_eq!(
            got,
            [
                (at(1), Some(RunId(5)), Some(0)),
                (at(1), Some(RunId(6)), Some(1)),
                (at(2), Some(RunId(9)), Some(0)),
                (at(4), None, None),
            ]
        );
        let cut = ledger_entries(&times, &runs, &skipped, none, 1).expect("known states");
        assert_eq!(cut.len(), 1);
    }

    #[test]
    fn an_excluded_fire_time_is_skipped_before_it_has_its_run() {
        let times = [at(1), at(2), at(3)];
        let without_run = WithoutRun {
            excluded: Some((at(2), at(3))),
            ..WithoutRun::default()
        };
        let got = ledger_entries(&times, &[], &[], without_run, 10).expect("known states");
        let states: Vec<_> = got.iter().map(|e| (e.run, e.state)).collect();
        assert_eq!(
            states,
            [(None, None), (None, Some(RunState::Skipped)), (None, None)]
        );
    }

    #[test]
    fn a_deleted_run_is_not_a_lost_one() {
        let times = [at(1), at(2), at(3), at(4)];
        let runs = [run(1, 5, 0)];
        let without_run = WithoutRun {
            excluded: Some((at(2), at(3))),
            pruned_until: Some(3),
        };
        let got = ledger_entries(&times, &runs, &[], without_run, 10).expect("known states");
        let pruned: Vec<_> = got.iter().map(|entry| entry.pruned).collect();
        assert_eq!(pruned, [false, false, true, false]);
    }

    #[test]
    fn an_unknown_state_is_an_error() {
        let mut run = run(1, 5, 0);
        run.state = 99;
        assert!(run.entry().is_err());
    }
}
