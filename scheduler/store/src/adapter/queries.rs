//! Builds answers to queries from rows.

use std::collections::HashMap;

use cueline_model::exclusion::next_free;
use cueline_model::{FireRules, RunState, Timestamp};

use super::convert::{run_state, to_u32, to_u64};
use super::definitions::{JobsById, job_of};
use super::run_list::IdRange;
use crate::{DeadLetter, JobSummary, Order, Run, StoreError, StoreStats, TimelineEntry};

/// A listed job: id, version, next fire time. While fire times are excluded, [`shown_next_fires`] corrects the last one.
pub type JobRow = (i64, i64, Option<i64>);

/// A job with fire times that are excluded at present: id, the first of them, revision of its fire rules.
pub type ExcludedJob = (i64, i64, i64);

/// The rows with the next fire times that people see: those that are not excluded.
pub fn shown_next_fires(
    rows: &[JobRow],
    jobs: &JobsById,
    excluded: &[ExcludedJob],
    rules: &FireRules,
) -> Vec<JobRow> {
    let from: HashMap<i64, i64> = excluded.iter().map(|(id, from, _)| (*id, *from)).collect();
    let shown = |&(id, version, next): &JobRow| {
        let (Some(from), Some(job)) = (from.get(&id), jobs.get(&id)) else {
            return (id, version, next);
        };
        let after = Timestamp::from_millis(*from).minus_ms(1);
        let free = next_free(&job.spec, &rules.of(&job.spec), after);
        (id, version, free.map(Timestamp::as_millis))
    };
    rows.iter().map(shown).collect()
}

/// Summaries of jobs in the order of their rows. `last` are the newest runs that started or ended. `day` are the counts
/// of the last day: job id, code of the state, number of runs.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for an unreadable definition or an unknown state.
pub fn job_summaries(
    rows: &[JobRow],
    jobs: &JobsById,
    last: Vec<Run>,
    day: Vec<(i64, i64, i64)>,
) -> Result<Vec<JobSummary>, StoreError> {
    let mut last: HashMap<i64, Run> = last.into_iter().map(|run| (run.job_id.0, run)).collect();
    let mut days: HashMap<i64, Vec<(RunState, u64)>> = HashMap::new();
    for (job, state, count) in day {
        days.entry(job)
            .or_default()
            .push((run_state(state)?, to_u64(count)));
    }
    rows.iter()
        .map(|(id, _, next_fire)| {
            Ok(JobSummary {
                job: job_of(jobs, *id)?,
                next_fire: next_fire.map(Timestamp::from_millis),
                last: last.remove(id),
                day: days.remove(id).unwrap_or_default(),
            })
        })
        .collect()
}

/// Reads an entry of a timeline: time, attempt, event, detail.
pub fn timeline_entry((at, attempt, event, detail): (i64, i64, String, String)) -> TimelineEntry {
    TimelineEntry {
        at: Timestamp::from_millis(at),
        attempt: to_u32(attempt),
        event,
        detail,
    }
}

/// Counts over the store. `live` has the number of runs for each code of a state. `oldest_due_at` is the due time of
/// the oldest `scheduled` run.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for an unknown state.
pub fn store_stats(
    jobs: i64,
    live: impl IntoIterator<Item = (i64, i64)>,
    oldest_due_at: Option<i64>,
    now: Timestamp,
) -> Result<StoreStats, StoreError> {
    let late_ms = oldest_due_at.map(|due| now.since_ms(Timestamp::from_millis(due)));
    Ok(StoreStats {
        jobs: to_u64(jobs),
        live: live
            .into_iter()
            .map(|(state, count)| Ok((run_state(state)?, to_u64(count))))
            .collect::<Result<_, StoreError>>()?,
        oldest_due_ms: late_ms.and_then(|ms| u64::try_from(ms).ok()),
    })
}

/// A stored dead letter: id, queue, topic, reason, time, payload, origin, namespace.
pub type DeadLetterRow = (
    i64,
    String,
    String,
    String,
    i64,
    Vec<u8>,
    Option<String>,
    Option<String>,
);

/// A dead letter from its row. One with an unreadable namespace belongs to none.
pub fn dead_letter(row: DeadLetterRow) -> DeadLetter {
    let (id, queue, topic, reason, at, payload, origin, namespace) = row;
    DeadLetter {
        id,
        queue,
        topic,
        reason,
        at: Timestamp::from_millis(at),
        payload,
        origin,
        namespace: namespace.and_then(|text| text.parse().ok()),
    }
}

/// Selects runs of jobs.
#[derive(Debug, Clone, Copy)]
pub struct RunsOfJobs<'a> {
    /// Of these jobs.
    pub jobs: &'a [i64],
    /// In one of these states; empty for all states.
    pub states: &'a [RunState],
    /// With these ids.
    pub ids: IdRange,
    /// The direction of the search.
    pub order: Order,
    /// Only runs that have started or ended.
    pub begun: bool,
    /// The most ids to return.
    pub limit: usize,
    /// The most blocks of ids to search.
    pub max_blocks: usize,
}

impl<'a> RunsOfJobs<'a> {
    /// The newest runs of these jobs.
    pub const fn newest(jobs: &'a [i64], limit: usize) -> Self {
        Self {
            jobs,
            states: &[],
            ids: IdRange::ALL,
            order: Order::Descending,
            begun: false,
            limit,
            max_blocks: usize::MAX,
        }
    }

    /// The newest run of a job that has started or ended.
    pub const fn last_begun(job: &'a [i64]) -> Self {
        Self {
            begun: true,
            ..Self::newest(job, 1)
        }
    }
}

/// Runs of jobs that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundRuns {
    /// Their ids, in the order of the search.
    pub ids: Vec<i64>,
    /// The id to which the search got, if it ended early. There may be further runs behind it.
    pub searched_to: Option<i64>,
}
