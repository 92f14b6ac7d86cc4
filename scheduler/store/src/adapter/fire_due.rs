//! Turns due jobs into new runs.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use cueline_model::{Route, Timestamp};
use serde::Deserialize;

use super::definitions::JobsById;
use super::live_executors::LiveExecutors;
use super::new_run::{NewRun, silent_note};
use crate::{ClaimedRun, FireDueRequest, Planner};

/// A job that is due.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct DueJob {
    /// The job.
    pub id: i64,
    /// The version of its definition.
    pub version: i64,
    /// The fire time that is due, in milliseconds.
    pub next_fire_at: i64,
    /// Number of its runs so far.
    pub run_count: i64,
}

impl From<(i64, i64, i64, i64)> for DueJob {
    fn from((id, version, next_fire_at, run_count): (i64, i64, i64, i64)) -> Self {
        Self {
            id,
            version,
            next_fire_at,
            run_count,
        }
    }
}

/// The schedule of a job after it fired.
#[derive(Debug, Clone, Copy)]
pub struct Advance {
    /// The job.
    pub id: i64,
    /// When it is due next.
    pub next_fire_at: Option<Timestamp>,
    /// Number of its runs, including the planned ones.
    pub run_count: i64,
}

/// The runs of due jobs, and when the jobs are due next.
#[derive(Debug, Default)]
pub struct PlannedJobs {
    /// The runs to write.
    pub runs: Vec<NewRun>,
    /// The schedules of the planned jobs.
    pub advances: Vec<Advance>,
    /// Whether jobs are left, because there were enough runs without them.
    pub jobs_left: bool,
}

/// Plans due jobs, as far as the limits of `request` allow. A job whose definition cannot be read stays due and does
/// not stop the others. So does a job that the planner holds.
pub fn plan_due_jobs(
    due: &[DueJob],
    jobs: &JobsById,
    live: &mut LiveExecutors,
    request: &FireDueRequest,
    planner: &dyn Planner,
    now: Timestamp,
) -> PlannedJobs {
    let mut planned_jobs = PlannedJobs::default();
    let PlannedJobs {
        runs,
        advances,
        jobs_left,
    } = &mut planned_jobs;
    for due in due {
        // After an outage each job may have thousands of runs. All of them in one transaction could time out for ever.
        if !advances.is_empty() && runs.len() >= request.max_runs {
            *jobs_left = true;
            break;
        }
        let Some(job) = jobs.get(&due.id) else {
            continue;
        };
        let candidates = live.candidates(&job.spec);
        if job.spec.route == Route::Broadcast && planner.holds(job, &live.silent(&job.spec)) {
            continue;
        }
        let note = silent_note(job, live);
        let fire_at = Timestamp::from_millis(due.next_fire_at);
        let plan = planner.plan(job, fire_at, now, &candidates);
        let mut run_count = due.run_count;
        for planned in plan.runs {
            // A skipped run takes no sequence number, so that `round` passes over no executor.
            let counts = planned.skipped.is_none();
            let is_first = counts && planned.shard.index == 0;
            let mut run = NewRun::planned(job, run_count, request.node, planned);
            run.silent_note = note.clone().filter(|_| is_first);
            runs.push(run);
            run_count += i64::from(counts);
        }
        advances.push(Advance {
            id: due.id,
            next_fire_at: plan.next_fire,
            run_count,
        });
    }
    planned_jobs
}

/// The runs that the calling node dispatches, in the order of dispatch. `left_out` are the ids that were not written.
pub fn runs_to_dispatch(runs: Vec<NewRun>, left_out: &BTreeSet<i64>) -> Vec<ClaimedRun> {
    let mut claimed: Vec<ClaimedRun> = runs
        .into_iter()
        .filter(|run| run.skipped.is_none() && !left_out.contains(&run.id))
        .map(ClaimedRun::from)
        .collect();
    claimed.sort_by_key(|run| (run.due_at, Reverse(run.job.spec.priority), run.id));
    claimed
}
