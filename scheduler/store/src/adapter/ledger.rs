//! How the ledger is put together: the fire times that a definition gives, and what stands at each.

use cueline_model::{JobSpec, RunId, RunState, Timestamp};

use super::values::{small, state};
use crate::{LedgerEntry, StoreError};

/// A run at a fire time, as it is read.
#[derive(Debug, Clone, Copy)]
pub struct RunAt {
    /// Its fire time.
    pub at: Timestamp,
    /// The run.
    pub run: RunId,
    /// Its place among the shards of the fire time.
    pub shard: i64,
    /// The number of its state.
    pub state: i64,
}

impl RunAt {
    /// It as an entry.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if there is no such state.
    pub fn entry(&self) -> Result<LedgerEntry, StoreError> {
        Ok(LedgerEntry {
            fire_at: self.at,
            run: Some(self.run),
            shard: Some(small(self.shard)),
            state: Some(state(self.state)?),
        })
    }
}

/// A skipped run that stands for fire times besides its own.
#[derive(Debug, Clone, Copy)]
pub struct StandIn {
    /// The first fire time that it stands for.
    pub since: Timestamp,
    /// The last one: its own.
    pub until: Timestamp,
    /// The run.
    pub run: RunId,
}

/// The fire times that the definition gives for `from..to`, `limit` at the most.
pub fn expected(spec: &JobSpec, from: Timestamp, to: Timestamp, limit: usize) -> Vec<Timestamp> {
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

/// What became of each of `times`: its runs, else the skipped run that stands for it, else nothing. `runs` are by fire time and shard,
/// `standing` by `until`; `limit` entries at the most.
///
/// # Errors
///
/// As [`RunAt::entry`].
pub fn entries(
    times: &[Timestamp],
    runs: &[RunAt],
    standing: &[StandIn],
    limit: usize,
) -> Result<Vec<LedgerEntry>, StoreError> {
    let mut entries = Vec::with_capacity(times.len());
    let mut runs = runs.iter().peekable();
    for &at in times {
        let mut found = false;
        while let Some(run) = runs.next_if(|run| run.at <= at) {
            entries.push(run.entry()?);
            found = true;
        }
        if !found {
            entries.push(without_own_run(at, standing));
        }
    }
    entries.truncate(limit);
    Ok(entries)
}

fn without_own_run(at: Timestamp, standing: &[StandIn]) -> LedgerEntry {
    let behind = standing.partition_point(|run| run.until < at);
    let stands = standing
        .get(behind..)
        .unwrap_or_default()
        .iter()
        .find(|run| run.since <= at);
    LedgerEntry {
        fire_at: at,
        run: stands.map(|run| run.run),
        shard: stands.map(|_| 0),
        state: stands.map(|_| RunState::Skipped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn run(ms: i64, id: i64, shard: i64) -> RunAt {
        RunAt {
            at: at(ms),
            run: RunId(id),
            shard,
            state: i64::from(RunState::Succeeded.code()),
        }
    }

    #[test]
    fn a_fire_time_has_its_runs_or_a_stand_in_or_nothing() {
        let standing = [StandIn {
            since: at(2),
            until: at(3),
            run: RunId(9),
        }];
        let runs = [run(1, 5, 0), run(1, 6, 1)];
        let times = [at(1), at(2), at(4)];
        let got = entries(&times, &runs, &standing, 10).expect("known states");
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
        let cut = entries(&times, &runs, &standing, 1).expect("known states");
        assert_eq!(cut.len(), 1);
    }

    #[test]
    fn an_unknown_state_is_damage() {
        let mut run = run(1, 5, 0);
        run.state = 99;
        assert!(run.entry().is_err());
    }
}
