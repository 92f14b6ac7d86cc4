//! Queries: runs, lists, summaries, the ledger, statistics.

use cueline_model::{
    AttemptEvent, DurationMs, ExecutorName, Job, Outcome, OutcomeKind, Route, RunId, RunKind,
    RunState, Schedule, Shard, Timestamp,
};

use super::fixture::{
    EachFireTime, Fixture, START, actor, ask, attempt, by_hand, each_second, executor, job_with,
    mark, name, report, runs_at,
};
use crate::{
    AttemptReport, FireDueRequest, JobFilter, LedgerEntry, Plan, PlannedRun, Planner, RunFilter,
    SkippedFires,
};

/// All columns of a run from its fire time to its end.
pub async fn a_run_has_all_its_fields(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.params = Some("p".to_owned());
    let id = fixture
        .store
        .trigger(&request)
        .await
        .expect("triggers")
        .runs[0];
    let run = fixture.claim(node).await.remove(0);
    let created = fixture.now();
    fixture.clock.advance(1);
    fixture.publish(node, &run).await;
    let queued = fixture.now();
    fixture.clock.advance(1);
    let outcome = Outcome {
        kind: OutcomeKind::Failed,
        started_at: Some(queued),
        ended_at: fixture.now(),
        exit_status: Some(-9),
        message: Some("killed".to_owned()),
        output: None,
    };
    fixture
        .ingest(&[report(attempt(&run), AttemptEvent::Ended { outcome })])
        .await;
    let seen = fixture.run(id).await;
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
    assert_eq!(seen.ended_at, Some(fixture.now()));
    assert_eq!(seen.exit_status, Some(-9));
    assert_eq!(seen.message.as_deref(), Some("killed"));
}

async fn ids(fixture: &Fixture, filter: RunFilter) -> Vec<RunId> {
    let runs = fixture.store.runs(&filter).await.expect("lists");
    runs.into_iter().map(|r| r.id).collect()
}

/// Lists runs newest first, by job, by state, and page by page.
pub async fn runs_are_filtered_and_paged(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    let mut all = Vec::new();
    for round in 0..4 {
        fixture.clock.advance(1_000);
        for run in fixture.fire(node).await.runs {
            if round % 2 == 0 {
                fixture.succeed(node, &run).await;
            } else if round == 1 {
                fixture.publish(node, &run).await;
                fixture.end(attempt(&run), OutcomeKind::Failed).await;
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
    assert_eq!(ids(fixture, filter.clone()).await, everything);
    let mut page = filter.clone();
    page.limit = 3;
    page.after = Some(everything[2]);
    assert_eq!(ids(fixture, page).await, everything[3..6]);
    let mut a = filter.clone();
    a.jobs = vec![name("a")];
    assert_eq!(ids(fixture, a.clone()).await, of_a(&all));
    a.after = Some(of_a(&all)[0]);
    a.limit = 2;
    assert_eq!(ids(fixture, a.clone()).await, of_a(&all)[1..3]);
    a.after = None;
    a.states = vec![RunState::Failed, RunState::Scheduled];
    assert_eq!(
        ids(fixture, a).await,
        of_a(&[&all[..2], &all[4..6]].concat())
    );
    let mut failed = filter.clone();
    failed.states = vec![RunState::Failed, RunState::Scheduled];
    failed.limit = 3;
    let expected: Vec<RunId> = [&everything[..2], &everything[4..5]].concat();
    assert_eq!(ids(fixture, failed).await, expected);
    let mut succeeded = filter;
    succeeded.states = vec![RunState::Succeeded, RunState::Failed];
    assert_eq!(ids(fixture, succeeded).await, everything[2..]);
    fixture
        .store
        .delete_job(&name("b"), &actor("me"))
        .await
        .expect("deletes");
    let b = RunFilter {
        jobs: vec![name("b")],
        limit: 100,
        ..RunFilter::default()
    };
    assert_eq!(ids(fixture, b).await.len(), 4, "of a deleted job");
}

/// Lists the runs of one namespace, whatever their states.
pub async fn runs_are_listed_by_namespace(fixture: &Fixture) {
    let node = fixture.node().await;
    let jobs = ["a", "team/a", "team-b/a"];
    fixture.apply(&jobs.map(each_second)).await;
    fixture.clock.advance(1_000);
    for run in fixture.fire(node).await.runs {
        fixture.publish(node, &run).await;
        let outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
        let ended = AttemptReport {
            executor: Some(executor(run.job.spec.group.as_str(), "e1")),
            ..report(attempt(&run), AttemptEvent::Ended { outcome })
        };
        assert_eq!(fixture.ingest(&[ended]).await.ended, 1);
    }
    fixture.clock.advance(1_000);
    fixture.fire(node).await;
    let list = async |namespace: Option<&str>, states: &[RunState]| {
        let filter = RunFilter {
            namespace: namespace.map(name),
            states: states.to_vec(),
            limit: 100,
            ..RunFilter::default()
        };
        let runs = fixture.store.runs(&filter).await.expect("lists");
        let names = runs.iter().map(|run| run.job.to_string());
        names.collect::<Vec<_>>()
    };
    for (namespace, job) in [("default", "a"), ("team", "team/a"), ("team-b", "team-b/a")] {
        assert_eq!(list(Some(namespace), &[]).await, [job, job]);
        for states in [
            &[RunState::Succeeded][..],
            &[RunState::Scheduled],
            &[RunState::Scheduled, RunState::Failed],
        ] {
            assert_eq!(list(Some(namespace), states).await, [job], "{states:?}");
        }
    }
    assert!(list(Some("other"), &[]).await.is_empty());
    assert_eq!(list(None, &[]).await.len(), 6);
}

/// The newest run that has started, and the counts of the last day.
pub async fn summaries_show_last_and_day(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), by_hand("b")]).await;
    let old = fixture.fire_one(node).await;
    fixture.succeed(node, &old).await;
    fixture.clock.advance(24 * 3_600_000);
    let run = fixture.fire_one(node).await;
    fixture.succeed(node, &run).await;
    let waits = fixture.fire_one(node).await;
    let summary = fixture.store.job(&name("a")).await.expect("exists");
    assert_eq!(summary.last.as_ref().map(|r| r.id), Some(run.id));
    assert_eq!(
        summary.day,
        [(RunState::Scheduled, 1), (RunState::Succeeded, 1)],
        "one of them was before"
    );
    assert_eq!(summary.next_fire, fixture.next_fire("a").await);
    let filter = JobFilter {
        limit: 10,
        ..JobFilter::default()
    };
    let listed = fixture.store.list_jobs(&filter).await.expect("lists").jobs;
    assert_eq!(listed[0], summary);
    assert_eq!(listed[1].last, None);
    assert!(listed[1].day.is_empty());
    fixture.publish(node, &waits).await;
    let started = AttemptEvent::Started { at: fixture.now() };
    fixture.ingest(&[report(attempt(&waits), started)]).await;
    let summary = fixture.store.job(&name("a")).await.expect("exists");
    assert_eq!(summary.last.map(|r| r.id), Some(waits.id));
}

/// Skips all fire times but the newest, in one run.
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
                    missed: true,
                    reason: "missed".to_owned(),
                    count,
                    since: due,
                }),
            });
        }
        plan
    }
}

async fn ledger(fixture: &Fixture, job: &str, to: Timestamp, limit: usize) -> Vec<LedgerEntry> {
    let found = fixture.store.ledger(&name(job), START, to, limit).await;
    found.expect("lists")
}

/// Each expected fire time has its run, or the skipped run that stands for it, or none.
pub async fn ledger_accounts_for_each_fire_time(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let first = fixture.fire_one(node).await;
    fixture.succeed(node, &first).await;
    fixture.clock.advance(5_000);
    let request = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 10,
        max_runs: usize::MAX,
    };
    let fired = fixture
        .store
        .fire_due(request, &SkipsOld)
        .await
        .expect("fires");
    fixture.clock.advance(1_000);
    let entries = ledger(fixture, "a", START.plus_ms(8_000), 100).await;
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
    assert_eq!(
        ledger(fixture, "a", START.plus_ms(7_000), 100).await.len(),
        6
    );
    assert_eq!(ledger(fixture, "a", START.plus_ms(8_000), 3).await.len(), 3);
}

/// One line for each shard.
pub async fn ledger_of_shards(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.route = Route::Sharded(vec![String::new(); 2]);
    fixture.apply(&[spec]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    let entries = ledger(fixture, "a", START.plus_ms(5_000), 10).await;
    let seen: Vec<_> = entries.iter().map(|e| (e.run, e.shard)).collect();
    assert_eq!(
        seen,
        [(Some(runs[0].id), Some(0)), (Some(runs[1].id), Some(1))]
    );
}

/// The fire times follow from the runs.
pub async fn ledger_of_fixed_delay(fixture: &Fixture) {
    let node = fixture.node().await;
    let after = DurationMs::secs(10);
    fixture
        .apply(&[job_with("d", Schedule::FixedDelay { after })])
        .await;
    let mut fired = Vec::new();
    for _ in 0..3 {
        fixture.clock.advance(10_000);
        let run = fixture.fire(node).await.runs.remove(0);
        fixture.succeed(node, &run).await;
        fired.push(Some(run.id));
    }
    let entries = ledger(fixture, "d", fixture.now(), 10).await;
    let seen: Vec<_> = entries.iter().map(|e| e.run).collect();
    assert_eq!(seen, fired[..2], "the end of the window is left out");
}

/// Existing jobs, live runs, and the delay of the oldest.
pub async fn stats_count_jobs_and_live_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&["a", "b", "c"].map(each_second)).await;
    fixture
        .store
        .delete_job(&name("c"), &actor("me"))
        .await
        .expect("deletes");
    let stats = fixture.store.stats().await.expect("counts");
    assert_eq!((stats.jobs, stats.live.len()), (2, 0));
    assert_eq!(stats.oldest_due_ms, None);
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    fixture.publish(node, &runs[0]).await;
    let live = runs_at(&runs[0].job, fixture.now(), &[]);
    assert_eq!(live.len(), 1);
    fixture.clock.advance(2_500);
    let stats = fixture.store.stats().await.expect("counts");
    assert_eq!(
        stats.live,
        [(RunState::Scheduled, 1), (RunState::Queued, 1)]
    );
    assert_eq!(stats.oldest_due_ms, Some(2_500));
    fixture.end(attempt(&runs[0]), OutcomeKind::Succeeded).await;
    let stats = fixture.store.stats().await.expect("counts");
    assert_eq!(stats.live, [(RunState::Scheduled, 1)]);
}

/// Attempts that run, or are not confirmed, are not queued. The group is that of the publication.
pub async fn the_oldest_queued_attempt_of_each_executor_is_found(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut moved = by_hand("a");
    fixture.apply(&[moved.clone()]).await;
    let store = &fixture.store;
    let found = store.oldest_queued_attempts().await.expect("finds");
    assert!(found.is_empty(), "{found:?}");
    let mut attempts = Vec::new();
    for target in ["e1", "e1", "e2", "e1"] {
        fixture.trigger("a").await;
        let run = fixture.claim(node).await.remove(0);
        let taken = store.begin_dispatch(node, &[mark(&run, target)]).await;
        attempts.extend(taken.expect("begins"));
        let confirmed = store.confirm_dispatch(&attempts[..attempts.len().min(3)]);
        confirmed.await.expect("confirms");
        fixture.clock.advance(1_000);
    }
    // The first begins to run, and the last was not confirmed.
    let at = fixture.now();
    let started = report(attempts[0], AttemptEvent::Started { at });
    fixture.ingest(&[started]).await;
    moved.group = name("elsewhere");
    fixture.apply(&[moved]).await;
    let oldest = store.oldest_queued_attempts().await.expect("finds");
    let mut ages: Vec<_> = oldest
        .iter()
        .map(|oldest| (oldest.executor.to_string(), oldest.age_ms))
        .collect();
    ages.sort();
    let expected = [("default/e1", 3_000), ("default/e2", 2_000)];
    assert_eq!(ages, expected.map(|(name, age)| (name.to_owned(), age)));
}

/// Calls at the same time open no more connections than the limit.
pub async fn pools_stay_within_their_limits(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let calls = (0..50).map(|_| {
        let store = fixture.store.clone();
        tokio::spawn(async move { store.stats().await.map(drop) })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        call.await.expect("ends").expect("counts");
    }
    let pools = fixture.store.pool_use();
    assert!(pools.iter().any(|pool| pool.open > 0), "{pools:?}");
    for pool in &pools {
        let fits = pool.idle <= pool.open && pool.open <= pool.limit;
        assert!(fits && pool.limit > 0, "{pool:?}");
    }
}
