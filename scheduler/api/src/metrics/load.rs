//! How long work waits in queues, and how busy the connections to the store are.

use std::collections::BTreeMap;
use std::time::Duration;

use cueline_http::metrics::{Family, Sample, TimeSample};
use cueline_store::PoolUse;
use cueline_store::admin::QueueDepth;

use super::sources::Reading;

/// The most executors whose queues have a series of their own, by name. The others share one.
pub(super) const MAX_EXECUTORS: usize = 1_000;
/// The label of the queues of all other executors. No queue has this name.
pub(super) const OTHER: &str = "other";

/// The age of the oldest queued attempt of each executor that has a queue. The first executors by the names of their
/// queues have series of their own, as their queues do. Without an answer of the store there are no values.
pub(super) fn queued_ages(reading: &Reading) -> Family {
    let mut ages: BTreeMap<String, u64> = BTreeMap::new();
    if let Some(oldest_queued) = &reading.oldest_queued {
        let depths: &[QueueDepth] = reading.queues.as_deref().unwrap_or_default();
        let of_executors = depths.iter().filter(|depth| depth.executor.is_some());
        ages.extend(of_executors.map(|depth| (depth.queue.clone(), 0)));
        ages.extend(oldest_queued.iter().map(|oldest| {
            let executor = &oldest.executor;
            let queue = format!("x.{}.{}", executor.group, executor.name);
            (queue, oldest.age_ms)
        }));
    }
    let sample = |queue: &str, age_ms: u64| {
        TimeSample::with(&[("queue", queue)], Duration::from_millis(age_ms))
    };
    let mut samples: Vec<TimeSample> = ages
        .iter()
        .take(MAX_EXECUTORS)
        .map(|(queue, age_ms)| sample(queue, *age_ms))
        .collect();
    let others = ages.values().skip(MAX_EXECUTORS).max();
    samples.extend(others.map(|age_ms| sample(OTHER, *age_ms)));
    Family::times(
        "oldest_queued_attempt_age",
        "How long the oldest attempt in state queued has been so, by the queue of its executor; 0 if none is. The same on all schedulers.",
        samples,
    )
}

/// The connections of this process to the store.
pub(super) fn pools(pools: &[PoolUse]) -> [Family; 3] {
    let by_pool = |value: fn(&PoolUse) -> u64| -> Vec<Sample> {
        let samples = pools
            .iter()
            .map(|pool| Sample::with(&[("pool", pool.pool)], value(pool)));
        samples.collect()
    };
    let connections = pools.iter().flat_map(|pool| {
        let sample = |state, value: u32| {
            Sample::with(&[("pool", pool.pool), ("state", state)], value.into())
        };
        let used = pool.open.saturating_sub(pool.idle);
        [sample("idle", pool.idle), sample("used", used)]
    });
    [
        Family::gauge(
            "store_connections",
            "Open connections to the store, by pool and by whether a call uses them.",
            connections.collect(),
        ),
        Family::gauge(
            "store_connection_limit",
            "The most connections to the store that a pool opens.",
            by_pool(|pool| pool.limit.into()),
        ),
        Family::counter(
            "store_connection_waits",
            "Calls that found all connections of their pool in use.",
            by_pool(|pool| pool.waits),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use cueline_model::ExecutorId;
    use cueline_store::OldestQueued;

    use super::*;
    use cueline_http::metrics::text;

    fn depth(executor: &str) -> QueueDepth {
        QueueDepth {
            queue: format!("x.default.{executor}"),
            group: Some("default".to_owned()),
            executor: Some(executor.to_owned()),
            ready: None,
            unsettled: None,
        }
    }

    fn oldest(executor: &str, age_ms: u64) -> OldestQueued {
        let executor = ExecutorId {
            group: "default".parse().expect("valid"),
            name: executor.parse().expect("valid"),
        };
        OldestQueued { executor, age_ms }
    }

    #[track_caller]
    fn check(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|l| l == *line), "{line}: {text}");
        }
    }

    #[test]
    fn each_queue_has_an_age_and_those_beyond_the_bound_share_the_highest() {
        let names: Vec<String> = (0..MAX_EXECUTORS + 2).map(|n| format!("e{n:04}")).collect();
        let queues = names.iter().map(|name| depth(name)).collect();
        let late = &names[MAX_EXECUTORS..];
        let waiting = vec![
            oldest("e0001", 2_500),
            oldest(&late[0], 1_000),
            oldest(&late[1], 4_000),
        ];
        let reading = Reading::of(Some(waiting), Some(queues));
        let text = text(vec![queued_ages(&reading)]);
        let series = |line: &&str| line.starts_with("cueline_oldest_queued_attempt_age_seconds{");
        assert_eq!(text.lines().filter(series).count(), MAX_EXECUTORS + 1);
        check(
            &text,
            &[
                "cueline_oldest_queued_attempt_age_seconds{queue=\"x.default.e0000\"} 0.0",
                "cueline_oldest_queued_attempt_age_seconds{queue=\"x.default.e0001\"} 2.5",
                "cueline_oldest_queued_attempt_age_seconds{queue=\"other\"} 4.0",
            ],
        );
    }

    #[test]
    fn ages_need_the_store_and_not_the_broker() {
        let of = |waiting, queues| text(vec![queued_ages(&Reading::of(waiting, queues))]);
        let without_broker = of(Some(vec![oldest("e1", 1_000)]), None);
        let line = "cueline_oldest_queued_attempt_age_seconds{queue=\"x.default.e1\"} 1.0";
        check(&without_broker, &[line]);
        let without_store = of(None, Some(vec![depth("e1")]));
        assert!(!without_store.contains("{queue"), "{without_store}");
    }

    #[test]
    fn used_connections_are_the_open_ones_that_are_not_idle() {
        let pool = PoolUse {
            pool: "writers",
            open: 5,
            idle: 2,
            limit: 8,
            waits: 7,
        };
        check(
            &text(pools(&[pool]).into()),
            &[
                "cueline_store_connections{pool=\"writers\",state=\"idle\"} 2",
                "cueline_store_connections{pool=\"writers\",state=\"used\"} 3",
                "cueline_store_connection_limit{pool=\"writers\"} 8",
                "cueline_store_connection_waits_total{pool=\"writers\"} 7",
            ],
        );
    }
}
