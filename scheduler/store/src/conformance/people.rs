//! What people see: runs, lists, summaries, the ledger, numbers.

use cueline_model::{
    AttemptEvent, DurationMs, ExecutorName, Job, Outcome, OutcomeKind, Route, RunId, RunKind,
    RunState, Schedule, Shard, Timestamp,
};

use super::world::{
    EachFireTime, START, World, ask, attempt, by_hand, each_second, job_with, name, report, runs_at,
};
use crate::{FireDueRequest, LedgerEntry, Plan, PlannedRun, Planner, RunFilter, SkippedFires};

/// All columns of a run that went the whole way.
pub async fn run_tells_everything(w: &World) {
    let node = w.node().await;
    w.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.params = Some("p".to_owned());
    let id = w.store.trigger(&request).await.expect("triggers").runs[0];
    let run = w.claim(node).await.remove(0);
    let created = w.now();
    w.clock.advance(1);
    w.publish(node, &run).await;
    let queued = w.now();
    w.clock.advance(1);
    let outcome = Outcome {
        kind: OutcomeKind::Failed,
        started_at: Some(queued),
        ended_at: w.now(),
        exit_status: Some(-9),
        message: Some("killed".to_owned()),
        output: None,
    };
    w.ingest(&[report(attempt(&run), AttemptEvent::Ended { outcome })])
        .await;
    let seen = w.run(id).await;
    assert_eq!(seen.id, id);
    assert_eq!(seen.job, name("a"));
    assert_eq!(seen.group, name("default"));
    assert_eq!(seen.kind, RunKind::Manual);
    assert_eq!(seen.state, RunState::Failed);
    assert_eq!((seen.attempt, seen.retries), (1, 0));
    assert_eq!(seen.shard, Shard::whole());
    assert_eq!(seen.executor, Some(name("e1")));
    assert_eq!(seen.params.as_deref(), Some("p"));
    assert_eq!(seen.created_at, created);
    assert_eq!(seen.queued_at, Some(queued));
    assert_eq!(seen.started_at, Some(queued));
    assert_eq!(seen.ended_at, Some(w.now()));
    assert_eq!(seen.exit_status, Some(-9));
    assert_eq!(seen.message.as_deref(), Some("killed"));
}

async fn ids(w: &World, filter: RunFilter) -> Vec<RunId> {
    let runs = w.store.runs(&filter).await.expect("lists");
    runs.into_iter().map(|r| r.id).collect()
}

/// Newest first, by job, by state, page by page.
pub async fn runs_are_filtered_and_paged(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b")]).await;
    let mut all = Vec::new();
    for round in 0..4 {
        w.clock.advance(1_000);
        for run in w.fire(node).await.runs {
            if round % 2 == 0 {
                w.succeed(node, &run).await;
            } else if round == 1 {
                w.publish(node, &run).await;
                w.end(attempt(&run), OutcomeKind::Failed).await;
            }
            all.insert(0, (run.id, run.job.spec.name.clone()));
        }
    }
    let everything: Vec<RunId> = all.iter().map(|(id, _)| *id).collect();
    let of_a = |list: &[(RunId, cueline_model::JobName)]| -> Vec<RunId> {
        let a = list.iter().filter(|(_, job)| job.as_str() == "a");
        a.map(|(id, _)| *id).collect()
    };
    let filter = RunFilter {
        limit: 100,
        ..RunFilter::default()
    };
    assert_eq!(ids(w, filter.clone()).await, everything);
    let mut page = filter.clone();
    page.limit = 3;
    page.before = Some(everything[2]);
    assert_eq!(ids(w, page).await, everything[3..6]);
    let mut a = filter.clone();
    a.job = Some(name("a"));
    assert_eq!(ids(w, a.clone()).await, of_a(&all));
    a.before = Some(of_a(&all)[0]);
    a.limit = 2;
    assert_eq!(ids(w, a.clone()).await, of_a(&all)[1..3]);
    a.before = None;
    a.states = vec![RunState::Failed, RunState::Scheduled];
    assert_eq!(ids(w, a).await, of_a(&[&all[..2], &all[4..6]].concat()));
    let mut failed = filter.clone();
    failed.states = vec![RunState::Failed, RunState::Scheduled];
    failed.limit = 3;
    let expected: Vec<RunId> = [&everything[..2], &everything[4..5]].concat();
    assert_eq!(ids(w, failed).await, expected);
    let mut succeeded = filter;
    succeeded.states = vec![RunState::Succeeded, RunState::Failed];
    assert_eq!(ids(w, succeeded).await, everything[2..]);
    w.store.delete_job(&name("b"), "me").await.expect("deletes");
    let b = RunFilter {
        job: Some(name("b")),
        limit: 100,
        ..RunFilter::default()
    };
    assert_eq!(ids(w, b).await.len(), 4, "of a deleted job");
}

/// The newest run that began, and the last day's counts.
pub async fn summaries_show_last_and_day(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), by_hand("b")]).await;
    let old = w.fire_one(node).await;
    w.succeed(node, &old).await;
    w.clock.advance(24 * 3_600_000);
    let run = w.fire_one(node).await;
    w.succeed(node, &run).await;
    let waits = w.fire_one(node).await;
    let summary = w.store.job(&name("a")).await.expect("exists");
    assert_eq!(summary.last.as_ref().map(|r| r.id), Some(run.id));
    assert_eq!(
        summary.day,
        [(RunState::Scheduled, 1), (RunState::Succeeded, 1)],
        "one of them was before"
    );
    assert_eq!(summary.next_fire, w.next_fire("a").await);
    let listed = w.store.jobs(None, 10).await.expect("lists");
    assert_eq!(listed[0], summary);
    assert_eq!(listed[1].last, None);
    assert!(listed[1].day.is_empty());
    w.publish(node, &waits).await;
    let started = AttemptEvent::Started { at: w.now() };
    w.ingest(&[report(attempt(&waits), started)]).await;
    let summary = w.store.job(&name("a")).await.expect("exists");
    assert_eq!(summary.last.map(|r| r.id), Some(waits.id));
}

/// Skips all fire times but the newest, as one run.
struct SkipsOld;

impl Planner for SkipsOld {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        let mut plan = EachFireTime.plan(job, now, now, live);
        let count = u64::try_from(now.since_ms(due) / 1_000).expect("late");
        if count > 0 {
            let before = now.minus_ms(1_000);
            plan.runs.push(PlannedRun {
                fire_at: before,
                due_at: before,
                shard: Shard::whole(),
                executor: None,
                skipped: Some(SkippedFires {
                    reason: "missed".to_owned(),
                    count,
                    since: due,
                }),
            });
        }
        plan
    }
}

async fn ledger(w: &World, job: &str, to: Timestamp, limit: usize) -> Vec<LedgerEntry> {
    let found = w.store.ledger(&name(job), START, to, limit).await;
    found.expect("lists")
}

/// Each expected fire time, with its run, or the skipped run that stands for it, or nothing.
pub async fn ledger_accounts_for_each_fire_time(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let first = w.fire_one(node).await;
    w.succeed(node, &first).await;
    w.clock.advance(5_000);
    let request = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 10,
    };
    let fired = w.store.fire_due(request, &SkipsOld).await.expect("fires");
    w.clock.advance(1_000);
    let entries = ledger(w, "a", START.plus_ms(8_000), 100).await;
    let seen: Vec<_> = entries
        .iter()
        .map(|e| (e.fire_at.since_ms(START), e.state))
        .collect();
    let skipped = Some(RunState::Skipped);
    assert_eq!(
        seen,
        [
            (1_000, Some(RunState::Succeeded)),
            (2_000, skipped),
            (3_000, skipped),
            (4_000, skipped),
            (5_000, skipped),
            (6_000, Some(RunState::Scheduled)),
            (7_000, None),
        ]
    );
    assert_eq!(entries[0].run, Some(first.id));
    assert_eq!(entries[5].run, Some(fired.runs[0].id));
    assert_eq!(entries[1].run, entries[4].run);
    assert_eq!(ledger(w, "a", START.plus_ms(7_000), 100).await.len(), 6);
    assert_eq!(ledger(w, "a", START.plus_ms(8_000), 3).await.len(), 3);
}

/// One line for each shard.
pub async fn ledger_of_shards(w: &World) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.route = Route::Sharded(vec![String::new(); 2]);
    w.apply(&[spec]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    let entries = ledger(w, "a", START.plus_ms(5_000), 10).await;
    let seen: Vec<_> = entries.iter().map(|e| (e.run, e.shard)).collect();
    assert_eq!(
        seen,
        [(Some(runs[0].id), Some(0)), (Some(runs[1].id), Some(1))]
    );
}

/// There the fire times follow from the runs.
pub async fn ledger_of_fixed_delay(w: &World) {
    let node = w.node().await;
    let after = DurationMs::secs(10);
    w.apply(&[job_with("d", Schedule::FixedDelay { after })])
        .await;
    let mut fired = Vec::new();
    for _ in 0..3 {
        w.clock.advance(10_000);
        let run = w.fire(node).await.runs.remove(0);
        w.succeed(node, &run).await;
        fired.push(Some(run.id));
    }
    let entries = ledger(w, "d", w.now(), 10).await;
    let seen: Vec<_> = entries.iter().map(|e| e.run).collect();
    assert_eq!(seen, fired[..2], "the end of the window is left out");
}

/// Jobs that exist, runs that live, and how far behind the oldest is.
pub async fn stats_count(w: &World) {
    let node = w.node().await;
    w.apply(&["a", "b", "c"].map(each_second)).await;
    w.store.delete_job(&name("c"), "me").await.expect("deletes");
    let stats = w.store.stats().await.expect("counts");
    assert_eq!((stats.jobs, stats.live.len()), (2, 0));
    assert_eq!(stats.oldest_due_ms, None);
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    w.publish(node, &runs[0]).await;
    let live = runs_at(&runs[0].job, w.now(), &[]);
    assert_eq!(live.len(), 1);
    w.clock.advance(2_500);
    let stats = w.store.stats().await.expect("counts");
    assert_eq!(
        stats.live,
        [(RunState::Scheduled, 1), (RunState::Queued, 1)]
    );
    assert_eq!(stats.oldest_due_ms, Some(2_500));
    w.end(attempt(&runs[0]), OutcomeKind::Succeeded).await;
    let stats = w.store.stats().await.expect("counts");
    assert_eq!(stats.live, [(RunState::Scheduled, 1)]);
}
