//! Selects runs for lists: by their jobs, by rare states, or one after the other.

use std::collections::HashSet;

use cueline_model::{JobName, RunId, RunState};

use crate::{Order, RunFilter, StoreError};

/// The most jobs whose runs are searched for job by job.
const MAX_SEARCHED_JOBS: usize = 1_000;

/// The most jobs that are looked at to find those of a filter.
const MAX_CANDIDATE_JOBS: usize = 10_000;

/// With rare states, runs of more jobs than this are found by their states.
const MAX_JOBS_BESIDE_RARE_STATES: usize = 20;

/// The most blocks of ids that one page searches for runs of its jobs: 16 million ids.
pub const MAX_BLOCKS_OF_A_PAGE: usize = 1_024;

/// Transactions that write runs take less time than this, in milliseconds. A run's time is that of the beginning of its
/// transaction, and its number is allocated later, so numbers follow the times up to this difference.
const ORDER_SLACK_MS: u64 = 600_000;

/// How the runs of a list are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunSource {
    /// By these jobs. All their runs fit the filter's jobs.
    Jobs(Vec<i64>),
    /// By the index of rare states. The job of each has to be looked at, if the filter is about jobs.
    RareStates,
    /// All runs by id. State and job of each have to be looked at, if the filter is about them.
    All,
}

/// Whether the filter is about the jobs of the runs.
pub fn is_about_jobs(filter: &RunFilter) -> bool {
    filter.namespace.is_some()
        || filter.within.is_some()
        || !(filter.jobs.is_empty() && filter.groups.is_empty() && filter.labels.is_empty())
}

/// Whether the filter is about what neither the source nor the job tells.
pub fn is_about_runs(filter: &RunFilter, source: &RunSource) -> bool {
    let has_states = !filter.states.is_empty() && *source == RunSource::All;
    has_states
        || !(filter.kinds.is_empty() && filter.executors.is_empty())
        || filter.since.is_some()
        || filter.until.is_some()
}

/// Whether an index has the runs in these states: all but success are rare.
pub fn are_rare(states: &[RunState]) -> bool {
    !states.is_empty() && !states.contains(&RunState::Succeeded)
}

/// Chooses the source. `jobs` are those of the filter; `None` if they are too many, or if it is not about jobs.
pub fn choose(filter: &RunFilter, jobs: Option<Vec<i64>>) -> RunSource {
    let is_rare = are_rare(&filter.states);
    match jobs {
        Some(jobs)
            if jobs.len() <= MAX_JOBS_BESIDE_RARE_STATES
                || (jobs.len() <= MAX_SEARCHED_JOBS && !is_rare) =>
        {
            RunSource::Jobs(jobs)
        }
        _ if is_rare => RunSource::RareStates,
        _ => RunSource::All,
    }
}

/// The most jobs that are looked at to find those of the filter. Conditions that no index serves leave few of many.
pub fn most_candidates(filter: &RunFilter) -> usize {
    if filter.labels.is_empty() && filter.within.is_none() {
        MAX_SEARCHED_JOBS
    } else {
        MAX_CANDIDATE_JOBS
    }
}

/// Returns an error for the first name that no job ever had.
///
/// # Errors
///
/// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) with that name.
pub fn require_names<'a>(
    wanted: &[JobName],
    found: impl Iterator<Item = &'a str>,
) -> Result<(), StoreError> {
    let found: HashSet<&str> = found.collect();
    let missing = wanted.iter().find(|name| !found.contains(name.as_str()));
    match missing {
        Some(name) => Err(StoreError::no_job(name.as_str())),
        None => Ok(()),
    }
}

/// Ids of runs: `above < id < below`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// Ids are higher.
    pub above: i64,
    /// Ids are lower.
    pub below: i64,
}

impl IdRange {
    /// All ids.
    pub const ALL: Self = Self {
        above: i64::MIN,
        below: i64::MAX,
    };

    /// The part behind this run in the order of the list.
    #[must_use]
    pub fn behind(self, after: Option<RunId>, order: Order) -> Self {
        match (after, order) {
            (None, _) => self,
            (Some(last), Order::Ascending) => Self {
                above: self.above.max(last.0),
                ..self
            },
            (Some(last), Order::Descending) => Self {
                below: self.below.min(last.0),
                ..self
            },
        }
    }

    /// Whether it can have no id.
    pub const fn is_empty(self) -> bool {
        self.above.saturating_add(1) >= self.below
    }
}

/// Times, in milliseconds, within which the ids of the filter's runs were allocated: from the first one, before the
/// second one.
pub fn id_times(filter: &RunFilter) -> (i64, i64) {
    let since = filter
        .since
        .map(|at| at.minus_ms(ORDER_SLACK_MS).as_millis());
    let until = filter
        .until
        .map(|at| at.plus_ms(ORDER_SLACK_MS).as_millis());
    (since.unwrap_or(i64::MIN), until.unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    #[test]
    fn few_jobs_are_searched_by_job_and_many_by_state_or_by_id() {
        let rare = RunFilter {
            states: vec![RunState::Failed],
            ..RunFilter::default()
        };
        let any = RunFilter::default();
        let jobs = |count: i64| Some((0..count).collect::<Vec<_>>());
        assert!(matches!(choose(&any, jobs(1_000)), RunSource::Jobs(_)));
        assert_eq!(choose(&any, jobs(1_001)), RunSource::All);
        assert_eq!(choose(&any, None), RunSource::All);
        assert!(matches!(choose(&rare, jobs(20)), RunSource::Jobs(_)));
        assert_eq!(choose(&rare, jobs(21)), RunSource::RareStates);
        assert_eq!(choose(&rare, None), RunSource::RareStates);
    }

    #[test]
    fn a_range_continues_behind_a_run() {
        let all = IdRange::ALL;
        assert_eq!(all.behind(None, Order::Descending), all);
        assert_eq!(all.behind(Some(RunId(7)), Order::Descending).below, 7);
        let up = all.behind(Some(RunId(7)), Order::Ascending);
        assert_eq!(up.above, 7);
        assert!(!up.is_empty());
        let none = up.behind(Some(RunId(8)), Order::Descending);
        assert!(none.is_empty(), "no id is above 7 and below 8");
    }

    #[test]
    fn ids_may_be_allocated_some_time_after_the_time_of_a_run() {
        let filter = RunFilter {
            since: Some(Timestamp::from_millis(1_000_000)),
            ..RunFilter::default()
        };
        assert_eq!(id_times(&filter), (400_000, i64::MAX));
    }
}
