//! Turns due jobs into new runs.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use cueline_model::exclusion::Due;
use cueline_model::{FireRules, Job, Namespace, Route, Shard, Timestamp};
use serde::Deserialize;

use super::definitions::JobsById;
use super::jobs::is_fixed_delay;
use super::live_executors::LiveExecutors;
use super::new_run::{NewRun, silent_note};
use crate::{ClaimedRun, FireDueRequest, Plan, PlannedRun, Planner, SkippedFires, WaitingQuota};

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
    /// The revision of the fire rules that it needs at least; 0 if no rule is about it.
    pub rules: i64,
    /// The first excluded fire time that is not accounted for.
    pub excluded_from: Option<i64>,
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
    /// The first excluded fire time that is not accounted for.
    pub excluded_from: Option<Timestamp>,
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
    /// Namespaces with fires beyond their quota of waiting runs, and the numbers of those fires.
    pub skipped_by_quota: Vec<(Namespace, u64)>,
}

/// Plans due jobs, as far as the limits of `request` allow. A job whose definition cannot be read stays due and does
/// not stop the others. So does a job that the planner holds. `rules` are at least as new as each of the jobs needs.
pub fn plan_due_jobs(
    due: &[DueJob],
    (jobs, rules): (&JobsById, &FireRules),
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
        skipped_by_quota,
    } = &mut planned_jobs;
    let mut waiting = PlannedWaiting::default();
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
        let stored = Due {
            at: Timestamp::from_millis(due.next_fire_at),
            excluded_from: due.excluded_from.map(Timestamp::from_millis),
        };
        let (mut plan, excluded_from) = if due.rules == 0 && stored.excluded_from.is_none() {
            (planner.plan(job, stored.at, now, &candidates), None)
        } else {
            let exclusions = rules.of(&job.spec);
            planner.plan_excluding(job, stored, &exclusions, now, &candidates)
        };
        if let Some(quota) = planner.waiting_quota(job) {
            let skipped = waiting.limit(&mut plan, job, quota, now);
            if skipped > 0 {
                skipped_by_quota.push((job.spec.name.namespace(), skipped));
            }
        }
        let mut run_count = due.run_count;
        for planned in plan.runs {
            // A skipped run takes no sequence number, so that `round` passes over no executor.
            let counts = planned.skipped.is_none();
            let is_first = counts && planned.shard.index == 0;
            let mut run = NewRun::planned(job, run_count, request.node, planned);
            run.left_out = note.clone().filter(|_| is_first);
            runs.push(run);
            run_count += i64::from(counts);
        }
        advances.push(Advance {
            id: due.id,
            next_fire_at: plan.next_fire,
            run_count,
            excluded_from,
        });
    }
    planned_jobs
}

/// The runs that one call plans for each namespace with a quota of waiting runs.
#[derive(Debug, Default)]
struct PlannedWaiting(HashMap<Namespace, u64>);

impl PlannedWaiting {
    /// Replaces the fires of a plan that are beyond the quota with one `skipped` run, so that the ledger stays whole (G1).
    /// The shards of a fire are kept or skipped together. The plan has its fires in the order of their fire times. Returns
    /// the number of skipped fires.
    fn limit(&mut self, plan: &mut Plan, job: &Job, quota: WaitingQuota, now: Timestamp) -> u64 {
        let namespace = job.spec.name.namespace();
        let planned = self.0.entry(namespace.clone()).or_default();
        let mut room = quota
            .limit
            .saturating_sub(quota.waiting.saturating_add(*planned));
        let mut kept = 0;
        for fire in plan.runs.chunk_by(|a, b| a.fire_at == b.fire_at) {
            let size = fire.iter().filter(|run| run.skipped.is_none()).count() as u64;
            if size > room {
                break;
            }
            room -= size;
            *planned += size;
            kept += fire.len();
        }
        let beyond = plan.runs.split_off(kept);
        let (Some(first), Some(last)) = (beyond.first(), beyond.last()) else {
            return 0;
        };
        let (since, fire_at) = (first.fire_at, last.fire_at);
        let count = beyond.chunk_by(|a, b| a.fire_at == b.fire_at).count() as u64;
        plan.runs.push(PlannedRun {
            fire_at,
            due_at: fire_at,
            shard: Shard::whole(),
            executor: None,
            skipped: Some(SkippedFires {
                missed: false,
                reason: format!(
                    "quota max_waiting_runs of namespace {namespace} ({}) is reached",
                    quota.limit
                ),
                count,
                since,
            }),
        });
        if plan.next_fire.is_none() && is_fixed_delay(&job.spec) {
            // No run is left whose end would set it.
            plan.next_fire = job.spec.next_fire(now);
        }
        count
    }
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

#[cfg(test)]
mod tests {
    use cueline_model::{JobId, JobSpec};

    use super::*;

    fn job(schedule: &serde_json::Value) -> Job {
        let spec: JobSpec = serde_json::from_value(serde_json::json!({
            "name": "j", "namespace": "team-a", "group": "default", "schedule": schedule, "handler": { "native": "noop" },
        }))
        .expect("a valid definition");
        Job {
            id: JobId(1),
            version: 1,
            spec,
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// Fires with two shards each.
    fn plan_of(fires: &[i64]) -> Plan {
        let runs = fires.iter().flat_map(|ms| [*ms; 2]).map(|ms| PlannedRun {
            fire_at: at(ms),
            due_at: at(ms),
            shard: Shard::whole(),
            executor: None,
            skipped: None,
        });
        Plan {
            runs: runs.collect(),
            next_fire: None,
        }
    }

    #[test]
    fn fires_beyond_the_quota_are_one_skipped_run() {
        let job = job(&serde_json::json!({ "every": "1s" }));
        let mut waiting = PlannedWaiting::default();
        let quota = WaitingQuota {
            limit: 10,
            waiting: 5,
        };
        let mut plan = plan_of(&[1, 2, 3, 4]);
        assert_eq!(waiting.limit(&mut plan, &job, quota, at(9)), 2);
        // Five may wait further: two whole fires.
        assert_eq!(plan.runs.len(), 5);
        assert!(plan.runs[..4].iter().all(|run| run.skipped.is_none()));
        let last = &plan.runs[4];
        assert_eq!((last.fire_at, last.due_at), (at(4), at(4)));
        let skipped = last.skipped.as_ref().expect("is skipped");
        assert_eq!((skipped.since, skipped.count), (at(3), 2));
        assert_eq!(
            skipped.reason,
            "quota max_waiting_runs of namespace team-a (10) is reached"
        );
        // The runs of the call count: there is room for one run, and none for a fire of two.
        let mut plan = plan_of(&[7]);
        assert_eq!(waiting.limit(&mut plan, &job, quota, at(9)), 1);
        assert_eq!(plan.runs.len(), 1);
        assert!(plan.runs[0].skipped.is_some());
        assert_eq!(plan.next_fire, None);
    }

    #[test]
    fn a_skipped_fixed_delay_job_goes_on() {
        let job = job(&serde_json::json!({ "after": "5s" }));
        let quota = WaitingQuota {
            limit: 0,
            waiting: 0,
        };
        let mut plan = plan_of(&[1]);
        PlannedWaiting::default().limit(&mut plan, &job, quota, at(9_000));
        assert_eq!(plan.next_fire, Some(at(14_000)));
    }

    #[test]
    fn a_plan_within_the_quota_stays_as_it_is() {
        let job = job(&serde_json::json!({ "every": "1s" }));
        let quota = WaitingQuota {
            limit: 4,
            waiting: 0,
        };
        let mut plan = plan_of(&[1, 2]);
        let skipped = PlannedWaiting::default().limit(&mut plan, &job, quota, at(9));
        assert_eq!(skipped, 0);
        assert_eq!(plan, plan_of(&[1, 2]));
    }
}
