//! Effects of the end of runs: the next fire time of fixed-delay jobs, and child runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cueline_model::{RunId, RunKind, Timestamp};
use serde::Deserialize;

use super::convert::to_i64;
use super::definitions::JobsById;
use super::live_executors::LiveExecutors;
use super::new_run::{Fire, NewRun};
use super::report_batch::BatchWrites;

/// The latest end time of any ended run, per job.
pub fn latest_ends(ended: &[(i64, Timestamp)]) -> BTreeMap<i64, Timestamp> {
    let mut latest: BTreeMap<i64, Timestamp> = BTreeMap::new();
    for &(job, at) in ended {
        let last = latest.entry(job).or_insert(at);
        *last = at.max(*last);
    }
    latest
}

/// Next fire times of idle fixed-delay jobs, counted from the end of their last run. `None` if the schedule is
/// exhausted. `idle` are job ids with versions. Jobs whose definition cannot be read are left out.
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
pub struct SucceededFire<'a> {
    /// The job that fired.
    pub job: i64,
    /// The run that becomes the parent of the child runs.
    pub run: i64,
    /// The first run of the fire. Its id identifies the fire. As the fire key of the child runs, it prevents a second
    /// set.
    pub first_run: i64,
    /// The fire time.
    pub fire_at: Timestamp,
    /// What the parent run returned.
    pub output: Option<&'a str>,
}

/// A successful run of the batch whose fire has succeeded as a whole.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct FoundFire {
    /// The run.
    pub run: i64,
    /// The first run of its fire.
    pub first_run: i64,
    /// The fire time, in milliseconds.
    pub fire_at: i64,
}

impl From<(i64, i64, i64)> for FoundFire {
    fn from((run, first_run, fire_at): (i64, i64, i64)) -> Self {
        Self {
            run,
            first_run,
            fire_at,
        }
    }
}

impl<'a> SucceededFire<'a> {
    /// The fires that succeeded with this batch, each once. If the batch ended several runs of a fire, the one with the
    /// highest id becomes the parent.
    pub fn in_batch(found: &[FoundFire], writes: &'a BatchWrites) -> Vec<Self> {
        let by_run: HashMap<i64, &FoundFire> = found.iter().map(|fire| (fire.run, fire)).collect();
        let mut fires = BTreeMap::new();
        for (run, end) in writes.parents() {
            if let Some(found) = by_run.get(&run.id) {
                let fire = Self {
                    job: run.job_id,
                    run: run.id,
                    first_run: found.first_run,
                    fire_at: Timestamp::from_millis(found.fire_at),
                    output: end.output.as_deref(),
                };
                // `parents()` is ordered by run id, so the highest id overwrites the others.
                fires.insert(found.first_run, fire);
            }
        }
        fires.into_values().collect()
    }
}

/// The jobs of these fires, each once.
pub fn parent_jobs(fires: &[SucceededFire<'_>]) -> Vec<i64> {
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
    /// Number of its runs so far.
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

/// Plans the runs of child jobs. Skips children whose definition cannot be read.
pub fn plan_child_runs(
    fires: &[SucceededFire<'_>],
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
    for fire in fires {
        for child in children.iter().filter(|child| child.parent == fire.job) {
            let Some(job) = jobs.get(&child.id) else {
                continue;
            };
            let passes_output = job.spec.after.as_ref().is_some_and(|a| a.pass_output);
            let child_fire = Fire {
                kind: RunKind::Child,
                key: Some(fire.first_run),
                fire_at: fire.fire_at,
                due_at: now,
                claimed_by: None,
                parent: Some(RunId(fire.run)),
                params: fire.output.filter(|_| passes_output).map(str::to_owned),
            };
            let run_count = run_counts.entry(child.id).or_default();
            let new_runs = NewRun::of_fire(job, *run_count, live, &child_fire);
            *run_count += to_i64(new_runs.len());
            runs.extend(new_runs);
        }
    }
    runs
}
