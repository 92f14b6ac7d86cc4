//! What follows from the end of runs: the next fire time of fixed-delay jobs, and child runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cueline_model::{RunId, RunKind, Timestamp};
use serde::Deserialize;

use super::convert::to_i64;
use super::definitions::JobsById;
use super::live_executors::LiveExecutors;
use super::new_run::{Fire, NewRun};
use super::report_batch::BatchWrites;

/// The last end of a run, by job.
pub fn latest_ends(ended: &[(i64, Timestamp)]) -> BTreeMap<i64, Timestamp> {
    let mut latest: BTreeMap<i64, Timestamp> = BTreeMap::new();
    for &(job, at) in ended {
        let last = latest.entry(job).or_insert(at);
        *last = at.max(*last);
    }
    latest
}

/// The next fire times of idle fixed-delay jobs, counted from their last end. `None` for a schedule that is over. A job without a readable
/// definition is left out.
pub fn next_fires_after(
    ends: &BTreeMap<i64, Timestamp>,
    idle: &[(i64, i64)],
    jobs: &JobsById,
) -> Vec<(i64, Option<Timestamp>)> {
    idle.iter()
        .filter_map(|(id, _)| Some((*id, jobs.get(id)?.spec.next_fire(*ends.get(id)?))))
        .collect()
}

/// A fire whose runs have all succeeded.
#[derive(Debug, Clone, Copy)]
pub struct CompleteFire<'a> {
    /// The job that fired.
    pub job: i64,
    /// The run that becomes the parent of the child runs.
    pub run: i64,
    /// The first run of the fire.
    pub first_run: i64,
    /// The fire time.
    pub fire_at: Timestamp,
    /// What the parent run returned.
    pub output: Option<&'a str>,
}

impl<'a> CompleteFire<'a> {
    /// The fires that a batch completed, each once. `found` has the successful runs whose fires are complete, with the first run of the fire
    /// and the fire time. Where one batch ended several runs of a fire, the one with the highest id becomes the parent.
    pub fn of(found: &[(i64, i64, i64)], writes: &'a BatchWrites) -> Vec<Self> {
        let found: HashMap<i64, (i64, i64)> = found
            .iter()
            .map(|(run, first_run, fire_at)| (*run, (*first_run, *fire_at)))
            .collect();
        let mut fires = BTreeMap::new();
        for (run, end) in writes.parents() {
            if let Some(&(first_run, fire_at)) = found.get(&run.id) {
                let fire = Self {
                    job: run.job_id,
                    run: run.id,
                    first_run,
                    fire_at: Timestamp::from_millis(fire_at),
                    output: end.output.as_deref(),
                };
                fires.insert(first_run, fire);
            }
        }
        fires.into_values().collect()
    }
}

/// The jobs of complete fires, each once.
pub fn parent_jobs(fires: &[CompleteFire<'_>]) -> Vec<i64> {
    let jobs: BTreeSet<i64> = fires.iter().map(|fire| fire.job).collect();
    jobs.into_iter().collect()
}

/// An enabled job that runs after another one.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct ChildJob {
    /// The job that it runs after.
    pub parent: i64,
    /// The job.
    pub id: i64,
    /// The version of its definition.
    pub version: i64,
    /// How many runs it has had.
    pub run_count: i64,
}

impl From<(i64, i64, i64, i64)> for ChildJob {
    fn from((parent, id, version, run_count): (i64, i64, i64, i64)) -> Self {
        Self {
            parent,
            id,
            version,
            run_count,
        }
    }
}

/// The runs that the children get. A child without a readable definition gets none.
pub fn child_runs(
    complete: &[CompleteFire<'_>],
    children: &[ChildJob],
    jobs: &JobsById,
    live: &mut LiveExecutors,
    now: Timestamp,
) -> Vec<NewRun> {
    let mut run_counts: HashMap<i64, i64> = children
        .iter()
        .map(|child| (child.id, child.run_count))
        .collect();
    let mut runs = Vec::new();
    for fire in complete {
        for child in children.iter().filter(|child| child.parent == fire.job) {
            let Some(job) = jobs.get(&child.id) else {
                continue;
            };
            let passes_output = job.spec.after.as_ref().is_some_and(|a| a.pass_output);
            let of_child = Fire {
                kind: RunKind::Child,
                key: Some(fire.first_run),
                fire_at: fire.fire_at,
                due_at: now,
                claimed_by: None,
                parent: Some(RunId(fire.run)),
                params: fire.output.filter(|_| passes_output).map(str::to_owned),
            };
            let run_count = run_counts.entry(child.id).or_default();
            let more = NewRun::of_fire(job, *run_count, live, &of_child);
            *run_count += to_i64(more.len());
            runs.extend(more);
        }
    }
    runs
}
