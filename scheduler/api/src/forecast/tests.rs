use std::sync::Arc;

use cueline_model::{Job, JobId, Timestamp};
use serde_json::{Value, json};

use super::compute::{forecast, forecast_within};

/// 2027-01-01T00:00:00Z.
const FROM: i64 = 1_798_761_600_000;

fn job(id: i64, schedule: &Value, group: &str, jitter: &str) -> Arc<Job> {
    let spec = json!({
        "name": format!("job-{id:06}"), "group": group, "schedule": schedule, "jitter": jitter,
        "handler": { "native": "x" },
    });
    Arc::new(Job {
        id: JobId(id),
        version: 1,
        spec: serde_json::from_value(spec).expect("a definition"),
    })
}

fn from() -> Timestamp {
    Timestamp::from_millis(FROM)
}

#[test]
fn fires_are_counted_by_minute_and_group_and_collisions_name_their_jobs() {
    let noon = json!({ "cron": "0 12 * * *" });
    let jobs = [
        job(1, &json!({ "every": "10s" }), "a", "0s"),
        job(2, &noon, "a", "0s"),
        job(3, &noon, "b", "0s"),
        job(4, &json!({ "every": "100ms" }), "b", "0s"),
        job(5, &json!({ "manual": true }), "b", "0s"),
        job(6, &json!({ "at": "2027-01-02T00:00:00Z" }), "b", "0s"),
    ];
    let found = forecast(&jobs, from());
    assert_eq!(found.jobs, 6);
    assert_eq!(found.left_out, 0);
    assert_eq!(found.fires, 8_640 + 1 + 1 + 864_000);
    assert_eq!(found.minutes.len(), 1_440);
    assert_eq!(found.minutes[0], 6 + 600);
    assert_eq!(found.minutes[720], 6 + 600 + 2);
    let groups: Vec<_> = found
        .groups
        .iter()
        .map(|g| (g.group.as_str(), g.fires))
        .collect();
    assert_eq!(groups, [("b", 864_001), ("a", 8_641)]);
    assert_eq!(found.busiest[0].at, from().plus_ms(43_200_000));
    assert_eq!(found.busiest[0].fires, 608);
    let first = &found.collisions[0];
    assert_eq!((first.at, first.jobs), (from().plus_ms(43_200_000), 4));
    let names: Vec<_> = first
        .names
        .iter()
        .map(cueline_model::JobName::as_str)
        .collect();
    assert_eq!(
        names,
        ["job-000001", "job-000002", "job-000003", "job-000004"]
    );
}

#[test]
fn jitter_moves_the_fires_of_each_job_to_its_own_time() {
    let noon = json!({ "cron": "0 12 * * *" });
    let jobs: Vec<_> = (1..=200).map(|id| job(id, &noon, "a", "1h")).collect();
    let found = forecast(&jobs, from());
    assert_eq!(found.fires, 200);
    let within = &found.minutes[720..=780];
    assert_eq!(within.iter().sum::<u64>(), 200);
    assert!(within.iter().all(|fires| *fires < 20), "{within:?}");
    for collision in &found.collisions {
        assert_eq!(
            collision.names.len() as u64,
            collision.jobs,
            "{collision:?}"
        );
    }
}

#[test]
fn beyond_the_bound_jobs_are_left_out_and_counted() {
    let jobs: Vec<_> = (1..=10)
        .map(|id| job(id, &json!({ "every": format!("{id}m") }), "a", "0s"))
        .collect();
    let all = forecast_within(&jobs, from(), usize::MAX);
    assert_eq!(all.left_out, 0);
    let some = forecast_within(&jobs, from(), 4_000);
    assert!(some.left_out > 0 && some.left_out < 10, "{}", some.left_out);
    assert!(some.fires < all.fires);
}

#[test]
fn a_hundred_thousand_jobs_of_few_schedules_are_counted_together() {
    let jobs: Vec<_> = (1..=100_000)
        .map(|id| {
            job(
                id,
                &json!({ "every": format!("{}m", 1 + id % 60) }),
                "a",
                "0s",
            )
        })
        .collect();
    let found = forecast(&jobs, from());
    assert_eq!(found.left_out, 0);
    // Jobs of a period meet at each multiple of it: look at each minute of the day.
    let first = FROM / 60_000;
    let met = |minute: i64| {
        (1..=100_000)
            .filter(|id| minute % (1 + id % 60) == 0)
            .count()
    };
    let by_period: Vec<usize> = (first..first + 1_440)
        .map(|minute| (1..=60).filter(|period| minute % period == 0).count())
        .collect();
    let most = by_period.iter().max().expect("a minute");
    let busiest = (first..first + 1_440)
        .zip(&by_period)
        .filter(|(_, periods)| *periods == most)
        .map(|(minute, _)| met(minute) as u64)
        .max();
    assert_eq!(Some(found.collisions[0].jobs), busiest);
}
