//! The jobs of each scenario.

use std::time::Duration;

use cueline_model::{JobSpec, OnLost, Route, Schedule};
use serde_json::{Value, json};

use crate::noop::{Work, now_us};

/// A run of `lane-gap` works this long.
const LANE_WORK_MS: u64 = 120;

/// A run of the slow job of `backlog` works this long.
const SLOW_WORK_MS: u64 = 1_000;

/// Jobs to load a scheduler with.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) about: String,
    pub(crate) jobs: Vec<JobSpec>,
    /// Seconds before measuring starts.
    pub(crate) warm_up: u64,
}

impl Load {
    /// The time until the jobs are due, if each is due once.
    pub(crate) fn until_due(&self) -> Option<Duration> {
        match self.jobs.first()?.schedule {
            Schedule::Once { at } => {
                let ms = at.as_millis() - now_us() / 1_000;
                u64::try_from(ms).ok().map(Duration::from_millis)
            }
            _ => None,
        }
    }
}

fn job(index: usize, schedule: &Value, block: &Value) -> JobSpec {
    serde_json::from_value(json!({
        "name": format!("bench-{index}"),
        "group": "default",
        "schedule": schedule,
        "misfire": { "policy": "catch_up", "grace": "1h", "catch_up_limit": 10_000 },
        "block": block,
        "backlog": 1_000_000,
        "handler": { "native": "noop" },
    }))
    .expect("a valid definition")
}

/// With runs that work.
fn working(job: JobSpec, work: Work) -> JobSpec {
    let params = serde_json::to_string(&work).expect("plain values");
    JobSpec {
        params: Some(params),
        ..job
    }
}

fn on_grid(index: usize, every: &str, anchor_ms: usize) -> JobSpec {
    job(
        index,
        &json!({ "every": every, "anchor": anchor_ms }),
        &json!("serial"),
    )
}

impl Load {
    /// `rate` fires a second, evenly spread.
    pub(crate) fn steady(rate: usize) -> Self {
        Self {
            name: "steady",
            about: format!("{rate} fires/s, evenly spread"),
            jobs: (0..rate)
                .map(|i| on_grid(i, "1s", i * 1_000 / rate))
                .collect(),
            warm_up: 3,
        }
    }

    /// `jobs` fires at each instant that is a multiple of `every_s` seconds.
    pub(crate) fn burst(jobs: usize, every_s: usize) -> Self {
        let every = format!("{every_s}s");
        Self {
            name: "burst",
            about: format!("{jobs} jobs due at the same instant, every {every}"),
            jobs: (0..jobs).map(|i| on_grid(i, &every, 0)).collect(),
            warm_up: 3,
        }
    }

    /// `jobs` jobs with ten fires a second each: more than a machine can handle.
    pub(crate) fn throughput(jobs: usize) -> Self {
        Self {
            name: "throughput",
            about: format!("{jobs} jobs due ten times a second, more than can be done"),
            jobs: (0..jobs).map(|i| on_grid(i, "100ms", i % 100)).collect(),
            warm_up: 5,
        }
    }

    /// `jobs` serial jobs whose runs come faster than they end, so that the next run always waits.
    pub(crate) fn lane_gap(jobs: usize) -> Self {
        let work = Work {
            ms: LANE_WORK_MS,
            measures_gap: true,
        };
        let slow = |index: usize| {
            let job = on_grid(index, "100ms", index * 100 / jobs.max(1));
            working(job, work)
        };
        Self {
            name: "lane-gap",
            about: format!(
                "{jobs} serial jobs over all executors, a run of {LANE_WORK_MS} ms each 100 ms"
            ),
            jobs: (0..jobs).map(slow).collect(),
            warm_up: 5,
        }
    }

    /// A fast job, and a slow serial job that is triggered `runs` times. Both have a lane over all executors.
    pub(crate) fn backlog(runs: usize) -> Self {
        let slow = job(1, &json!({ "manual": true }), &json!("serial"));
        let work = Work {
            ms: SLOW_WORK_MS,
            measures_gap: false,
        };
        Self {
            name: "backlog",
            about: format!(
                "a job due each 100 ms, alone and beside {runs} runs of a serial job, of {SLOW_WORK_MS} ms each"
            ),
            jobs: vec![on_grid(0, "100ms", 0), working(slow, work)],
            warm_up: 5,
        }
    }

    /// `jobs` jobs that are due once, at the same instant. The instant is late enough to apply them first.
    pub(crate) fn due(jobs: usize) -> Self {
        let at = json!({ "at": instant(now_us() / 1_000 + applying_ms(jobs)) });
        Self {
            name: "due",
            about: format!(
                "{jobs} jobs due at once, from the start of the scheduler until the last outcome is in the store"
            ),
            jobs: (0..jobs).map(|i| job(i, &at, &json!("serial"))).collect(),
            warm_up: 0,
        }
    }

    /// `jobs` jobs that are due once, `rate` of them in a second, at random executors.
    pub(crate) fn fleet(jobs: usize, rate: usize) -> Self {
        let first_ms = now_us() / 1_000 + applying_ms(jobs);
        let due_once = |i: usize| {
            let later_ms = i64::try_from(i * 1_000 / rate).unwrap_or(i64::MAX);
            let at = json!({ "at": instant(first_ms.saturating_add(later_ms)) });
            JobSpec {
                route: Route::Random,
                ..job(i, &at, &json!("serial"))
            }
        };
        Self {
            name: "fleet load",
            about: format!("{jobs} jobs due once, {rate} of them in a second"),
            jobs: (0..jobs).map(due_once).collect(),
            warm_up: 0,
        }
    }

    /// `jobs` jobs with a shard for each of the first `executors` executors, due together after `lead`. A shard whose
    /// executor is lost runs again.
    pub(crate) fn sharded(jobs: usize, executors: usize, lead: Duration) -> Self {
        let lead_ms = i64::try_from(lead.as_millis()).unwrap_or(i64::MAX);
        let at = json!({ "at": instant((now_us() / 1_000).saturating_add(lead_ms)) });
        let sharded = |i: usize| {
            let job = job(i, &at, &json!("serial"));
            JobSpec {
                name: format!("failover-{i}").parse().expect("a valid name"),
                route: Route::Sharded(vec![String::new(); executors]),
                on_lost: OnLost::Rerun,
                ..job
            }
        };
        Self {
            name: "failover",
            about: format!(
                "{} triggers queued at {executors} frozen executors",
                jobs * executors
            ),
            jobs: (0..jobs).map(sharded).collect(),
            warm_up: 0,
        }
    }

    /// A job that only the API triggers.
    pub(crate) fn manual() -> Self {
        let block = json!({ "parallel": 100 });
        Self {
            name: "trigger",
            about: "a manual trigger, from the request to the API to the start of the handler"
                .to_owned(),
            jobs: vec![job(0, &json!({ "manual": true }), &block)],
            warm_up: 0,
        }
    }
}

/// The longest time that applying `jobs` jobs takes.
fn applying_ms(jobs: usize) -> i64 {
    10_000 + i64::try_from(jobs).unwrap_or(i64::MAX) / 5
}

fn instant(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| String::new(), |t| t.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due_ms(job: &JobSpec) -> i64 {
        match job.schedule {
            Schedule::Once { at } => at.as_millis(),
            _ => panic!("{} is due more than once", job.name),
        }
    }

    #[test]
    fn the_jobs_of_a_fleet_fall_due_at_the_given_rate_and_not_before_they_are_applied() {
        let load = Load::fleet(11, 5);
        let first = due_ms(&load.jobs[0]);
        let later: Vec<i64> = load.jobs.iter().map(|job| due_ms(job) - first).collect();
        let expected: Vec<i64> = (0..11).map(|i| i * 200).collect();
        assert_eq!(later, expected);
        assert!(load.until_due().unwrap() > Duration::from_secs(5));
    }

    #[test]
    fn sharded_jobs_have_a_shard_for_each_executor_and_run_again_when_lost() {
        let load = Load::sharded(3, 2, Duration::from_mins(1));
        assert_eq!(load.jobs.len(), 3);
        let names: std::collections::BTreeSet<_> =
            load.jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names.len(), 3);
        for job in &load.jobs {
            assert_eq!(job.route, Route::Sharded(vec![String::new(); 2]));
            assert_eq!(job.on_lost, OnLost::Rerun);
        }
        assert!(load.until_due().unwrap() > Duration::from_secs(30));
    }
}
