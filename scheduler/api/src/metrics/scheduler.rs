//! The metrics of a scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use cueline_http::metrics::{Family, Histogram, Sample, TimeSample};
use cueline_model::RunState;
use cueline_store::admin::{QueueDepth, SinceStart};
use cueline_store::{QuotaRefusals, SchedulerCounts, StoreStats, TimeDistribution};

use super::load::{self, MAX_EXECUTORS, OTHER};
use super::sources::Reading;

/// What a scheduler shows.
#[derive(Debug)]
pub(crate) struct Numbers<'a> {
    pub(crate) uptime: Duration,
    pub(crate) timeouts_paused: bool,
    pub(crate) claims_paused: bool,
    pub(crate) since_start: SinceStart,
    pub(crate) counts: SchedulerCounts,
    pub(crate) reading: &'a Reading,
}

/// Each family is there even if it has no values.
pub(crate) fn families(numbers: &Numbers<'_>) -> Vec<Family> {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let mut families = vec![
        Family::gauge(
            "build_info",
            "1, with the version of this process.",
            vec![Sample::with(&version, 1)],
        ),
        Family::seconds(
            "uptime",
            "Time since the start of this process.",
            numbers.uptime,
        ),
    ];
    families.extend(held(&numbers.counts));
    families.extend(times(&numbers.counts));
    families.extend(pipeline(&numbers.counts, &numbers.since_start));
    families.extend(liveness(&numbers.since_start));
    families.extend(paused(numbers));
    families.push(quota_refusals(&numbers.counts.quota_refusals));
    families.extend(store(numbers.reading.store.as_ref()));
    families.extend(queues(
        numbers.reading.queues.as_deref().unwrap_or_default(),
    ));
    families.push(load::queued_ages(numbers.reading));
    families.push(sources(numbers.reading));
    families
}

fn pipeline(counts: &SchedulerCounts, since_start: &SinceStart) -> [Family; 8] {
    let ended = counts.ended.iter();
    let ended = ended.map(|(state, count)| Sample::with(&[("state", state.as_str())], *count));
    let counter = |name, help, value| Family::counter(name, help, Sample::only(value));
    [
        counter(
            "fires",
            "Runs that this scheduler created for fire times, without skipped ones.",
            counts.fires,
        ),
        counter(
            "claimed_runs",
            "Runs that this scheduler claimed, those of fire times included and those of manual triggers left out.",
            counts.claimed_runs,
        ),
        counter(
            "published_triggers",
            "Triggers that the broker has confirmed, repeated ones included.",
            since_start.published,
        ),
        counter(
            "ingested_messages",
            "Messages with results that this scheduler has ingested.",
            counts.ingested_messages,
        ),
        counter(
            "redelivered_messages",
            "Messages with results that the broker may have delivered before.",
            counts.redelivered_messages,
        ),
        Family::counter(
            "ended_runs",
            "Runs that ended by a report which this scheduler applied, by terminal state.",
            ended.collect(),
        ),
        counter(
            "stored_heartbeats",
            "Heartbeats of executors that this scheduler has stored.",
            counts.stored_heartbeats,
        ),
        counter(
            "dead_letters",
            "Dead letters that this scheduler has stored, repeated deliveries included.",
            counts.dead_letters,
        ),
    ]
}

/// The steps of a run that a scheduler sees.
fn times(counts: &SchedulerCounts) -> [Family; 4] {
    [
        Family::histogram(
            "dispatch_lateness",
            "Time from the due time of a run until the store had it as dispatching; 0 if that was ahead of the due time.",
            histogram(&counts.dispatch_lateness),
        ),
        Family::histogram(
            "trigger_lateness",
            "Time from the due time of a run until the broker had its trigger.",
            histogram(&counts.trigger_lateness),
        ),
        Family::histogram(
            "attempt_duration",
            "Time from the start to the end of attempts in reports that this scheduler applied, by the executor's clock.",
            histogram(&counts.attempt_duration),
        ),
        Family::histogram(
            "report_delay",
            "Time from the end of an attempt, by the executor's clock, until the store had its outcome.",
            histogram(&counts.report_delay),
        ),
    ]
}

fn histogram(times: &TimeDistribution) -> Histogram {
    let buckets = times.buckets.iter();
    Histogram {
        buckets: buckets
            .map(|(bound_ms, count)| (Duration::from_millis(*bound_ms), *count))
            .collect(),
        above: times.above,
        sum: Duration::from_millis(times.sum_ms),
    }
}

/// What a scheduler has in memory now.
fn held(counts: &SchedulerCounts) -> [Family; 4] {
    let sample = |state, value| Sample::with(&[("state", state)], value);
    let (claims, executors) = (counts.held_claims, counts.executors);
    [
        Family::gauge(
            "held_claims",
            "Runs that this scheduler has claimed and not published, by state: before their trigger is written, with it, or without a live executor.",
            vec![
                sample("waiting", claims.waiting),
                sample("prepared", claims.prepared),
                sample("unroutable", claims.unroutable),
            ],
        ),
        Family::gauge(
            "room_for_fires",
            "Runs that this scheduler may fire before others start or end. While it is small, it fires no faster than that.",
            Sample::only(counts.room_for_fires),
        ),
        Family::gauge(
            "executors",
            "Executors whose heartbeats reach this scheduler, by whether they take triggers.",
            vec![
                sample("ready", executors.ready),
                sample("not_ready", executors.not_ready),
            ],
        ),
        Family::times(
            "clock_offset",
            "The database's clock minus the clock of this scheduler, as it was last measured.",
            vec![TimeSample::difference(counts.clock_offset_ms)],
        ),
    ]
}

fn liveness(counts: &SinceStart) -> [Family; 5] {
    let counter = |name, help, value| Family::counter(name, help, Sample::only(value));
    let forged = [
        ("reports", counts.forged_reports),
        ("heartbeats", counts.forged_heartbeats),
        ("answers", counts.forged_answers),
        ("dead_letters", counts.forged_letters),
    ];
    let forged = forged.map(|(kind, count)| Sample::with(&[("kind", kind)], count));
    [
        counter(
            "reconciled_attempts",
            "Attempts that were lost on the way to their executor and published again.",
            counts.reconciled,
        ),
        counter(
            "failovers",
            "Silent executors whose work was moved to others.",
            counts.failovers,
        ),
        counter(
            "failed_over_attempts",
            "Attempts taken from silent executors: routed again, or ended lost.",
            counts.failed_over,
        ),
        Family::counter(
            "forged_messages",
            "Messages that no enrolled worker has sealed, by kind.",
            forged.into(),
        ),
        counter(
            "foreign_reports",
            "Reports that became dead letters, because their attempt was given to another executor.",
            counts.foreign_reports,
        ),
    ]
}

fn paused(numbers: &Numbers<'_>) -> [Family; 2] {
    [
        Family::gauge(
            "executor_timeouts_paused",
            "1 while this scheduler declares no executor dead.",
            Sample::only(numbers.timeouts_paused.into()),
        ),
        Family::gauge(
            "claims_paused",
            "1 while this scheduler claims no runs, because it does not reach the broker and another one does.",
            Sample::only(numbers.claims_paused.into()),
        ),
    ]
}

/// The most namespaces whose refusals have series of their own, by name. The others share one for each quota.
const MAX_NAMESPACES: usize = 1_000;
/// The label of all other namespaces. No namespace has this name.
const OTHER_NAMESPACES: &str = "";

/// `refusals` are sorted by namespace.
fn quota_refusals(refusals: &[QuotaRefusals]) -> Family {
    let mut samples = Vec::with_capacity(refusals.len());
    let mut others: BTreeMap<&str, u64> = BTreeMap::new();
    let sample = |namespace: &str, quota: &str, count| {
        Sample::with(&[("namespace", namespace), ("quota", quota)], count)
    };
    let of_namespaces = refusals.chunk_by(|one, next| one.namespace == next.namespace);
    for (position, of_namespace) in of_namespaces.enumerate() {
        for refusal in of_namespace {
            if position < MAX_NAMESPACES {
                let namespace = refusal.namespace.as_str();
                samples.push(sample(namespace, refusal.quota, refusal.count));
            } else {
                let sum = others.entry(refusal.quota).or_default();
                *sum = sum.saturating_add(refusal.count);
            }
        }
    }
    samples.extend(
        others
            .into_iter()
            .map(|(quota, count)| sample(OTHER_NAMESPACES, quota, count)),
    );
    Family::counter(
        "quota_refused",
        "Fires that were skipped and triggers that were refused because of a quota, by namespace with quotas.",
        samples,
    )
}

fn store(stats: Option<&StoreStats>) -> [Family; 3] {
    let jobs = stats.map(|stats| Sample::with(&[], stats.jobs));
    let oldest_due_ms = stats.and_then(|stats| stats.oldest_due_ms).unwrap_or(0);
    [
        Family::gauge(
            "jobs",
            "Jobs in the store. The same on all schedulers.",
            jobs.into_iter().collect(),
        ),
        Family::gauge(
            "runs",
            "Runs in the store that have not ended, by state. The same on all schedulers.",
            stats.map(live_runs).unwrap_or_default(),
        ),
        Family::seconds(
            "oldest_due_run_age",
            "How long the oldest scheduled run has been due; 0 if none is. The same on all schedulers.",
            Duration::from_millis(oldest_due_ms),
        ),
    ]
}

/// The store leaves out states without runs. A series that comes and goes is hard to query.
fn live_runs(stats: &StoreStats) -> Vec<Sample> {
    let live: BTreeMap<RunState, u64> = stats.live.iter().copied().collect();
    let of_state = |state: RunState| {
        let count = live.get(&state).copied().unwrap_or(0);
        Sample::with(&[("state", state.as_str())], count)
    };
    let open = RunState::ALL.into_iter().filter(|s| !s.is_terminal());
    open.map(of_state).collect()
}

/// `queues` are sorted by name.
fn queues(queues: &[QueueDepth]) -> [Family; 2] {
    let (mut samples, mut unanswered, mut executors) = (Vec::new(), 0, 0);
    let mut others: Option<(u64, u64)> = None;
    for queue in queues {
        let (Some(ready), Some(unsettled)) = (queue.ready, queue.unsettled) else {
            unanswered += 1;
            continue;
        };
        executors += usize::from(queue.executor.is_some());
        if queue.executor.is_some() && executors > MAX_EXECUTORS {
            let (all_ready, all_unsettled) = others.unwrap_or_default();
            others = Some((
                all_ready.saturating_add(ready),
                all_unsettled.saturating_add(unsettled),
            ));
        } else {
            samples.extend(depth(&queue.queue, ready, unsettled));
        }
    }
    if let Some((ready, unsettled)) = others {
        samples.extend(depth(OTHER, ready, unsettled));
    }
    [
        Family::gauge(
            "queue_messages",
            "Messages in a queue of the broker: ready to be delivered, or delivered and unsettled.",
            samples,
        ),
        Family::gauge(
            "unanswered_queues",
            "Queues for which the broker had no answer.",
            Sample::only(unanswered),
        ),
    ]
}

fn depth(queue: &str, ready: u64, unsettled: u64) -> [Sample; 2] {
    let sample = |state, value| Sample::with(&[("queue", queue), ("state", state)], value);
    [sample("ready", ready), sample("unsettled", unsettled)]
}

fn sources(reading: &Reading) -> Family {
    let sources = [
        ("store", reading.store.is_some()),
        ("broker", reading.queues.is_some()),
    ];
    let samples = sources.map(|(source, up)| Sample::with(&[("source", source)], up.into()));
    Family::gauge(
        "source_up",
        "Whether the store and the broker answered the last reading; without it, their metrics have no values.",
        samples.into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cueline_http::metrics::text;

    fn executor(n: usize) -> QueueDepth {
        QueueDepth {
            queue: format!("x.default.e{n:04}"),
            group: Some("default".to_owned()),
            executor: Some(format!("e{n:04}")),
            ready: Some(2),
            unsettled: Some(1),
        }
    }

    #[test]
    fn the_queues_of_executors_beyond_the_bound_are_summed_up() {
        let mut depths: Vec<QueueDepth> = (0..MAX_EXECUTORS + 50).map(executor).collect();
        depths[3].ready = None;
        depths.insert(
            0,
            QueueDepth {
                queue: "results".to_owned(),
                group: None,
                executor: None,
                ready: Some(9),
                unsettled: Some(0),
            },
        );
        let text = text(queues(&depths).into());
        let ready =
            |line: &&str| line.starts_with("cueline_queue_messages{") && line.contains("\"ready\"");
        assert_eq!(text.lines().filter(ready).count(), MAX_EXECUTORS + 2);
        for line in [
            "cueline_queue_messages{queue=\"results\",state=\"ready\"} 9",
            "cueline_queue_messages{queue=\"x.default.e0000\",state=\"unsettled\"} 1",
            "cueline_queue_messages{queue=\"other\",state=\"ready\"} 98",
            "cueline_queue_messages{queue=\"other\",state=\"unsettled\"} 49",
            "cueline_unanswered_queues 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }

    #[test]
    fn the_refusals_of_namespaces_beyond_the_bound_are_summed_up() {
        let of = |n: usize| QuotaRefusals {
            namespace: format!("n{n:04}").parse().expect("a namespace"),
            quota: "max_waiting_runs",
            count: 2,
        };
        let refusals: Vec<_> = (0..MAX_NAMESPACES + 3).map(of).collect();
        let text = text(vec![quota_refusals(&refusals)]);
        for line in [
            "cueline_quota_refused_total{namespace=\"n0000\",quota=\"max_waiting_runs\"} 2",
            "cueline_quota_refused_total{namespace=\"\",quota=\"max_waiting_runs\"} 6",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}");
        }
        assert!(!text.contains("\"n1000\""));
    }

    #[test]
    fn without_an_answer_of_the_store_its_counts_have_no_values() {
        let text = text(store(None).into());
        assert!(!text.contains("\ncueline_runs{"), "{text}");
        assert!(text.contains("# TYPE cueline_runs gauge"), "{text}");
    }
}
