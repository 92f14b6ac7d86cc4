//! Builds answers to queries from rows.

use std::collections::HashMap;

use cueline_model::{RunId, RunState, Timestamp};

use super::convert::{run_state, to_u32, to_u64};
use super::definitions::{JobsById, job_of};
use crate::{DeadLetter, JobSummary, Run, StoreError, StoreStats, TimelineEntry};

/// A listed job: id, version, next fire time.
pub type JobRow = (i64, i64, Option<i64>);

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

/// Selects the runs of a listing.
#[derive(Debug, Clone, Copy)]
pub struct NewestRuns<'a> {
    /// Of these jobs.
    pub jobs: &'a [i64],
    /// In one of these states; empty for all states.
    pub states: &'a [RunState],
    /// With an id below this one.
    pub before: i64,
    /// Only runs that have started or ended.
    pub begun: bool,
    /// The most ids to return.
    pub limit: usize,
}

impl<'a> NewestRuns<'a> {
    /// All runs of these jobs.
    pub const fn of(jobs: &'a [i64], limit: usize) -> Self {
        Self {
            jobs,
            states: &[],
            before: i64::MAX,
            begun: false,
            limit,
        }
    }

    /// The newest run of a job that has started or ended.
    pub const fn last_begun(job: &'a [i64]) -> Self {
        Self {
            begun: true,
            ..Self::of(job, 1)
        }
    }

    /// The value for the field `before`: the id of `run`, or no limit.
    pub fn before(run: Option<RunId>) -> i64 {
        run.map_or(i64::MAX, |run| run.0)
    }
}
