//! Calendars, maintenance windows and time zones.

use std::collections::BTreeSet;

use cueline_model::exclusion::{Due, NextDue, Passed, next_due};
use cueline_model::schedule::zones::ZoneDigest;
use cueline_model::{
    CalendarName, CalendarSpec, Exclusions, ExecutorName, Job, JobId, JobSpec, Namespace, RunState,
    Shard, Timestamp, WindowSpec,
};
use serde_json::json;

use super::fixture::{EachFireTime, Fixture, START, actor, each_second, job_with, name};
use crate::{
    AuditFilter, Change, ErrorKind, FireDueRequest, FiredRuns, LedgerEntry, NodeId, Plan,
    PlannedRun, Planner, Precondition, RunFilter, SkippedFires, Store, StoreError,
};

pub(super) const AHEAD_MS: u64 = 1_500;

/// Leaves out excluded fire times, and accounts for those that have passed in one run.
struct Excluding;

impl Planner for Excluding {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        EachFireTime.plan(job, due, now, live)
    }

    fn plan_excluding(
        &self,
        job: &Job,
        due: Due,
        exclusions: &Exclusions,
        now: Timestamp,
        live: &[ExecutorName],
    ) -> (Plan, Option<Timestamp>) {
        let mut plan = Plan::default();
        let (mut passed, mut pending) = (Vec::new(), None);
        let mut next = Some(due.excluded_from.unwrap_or(due.at));
        while let Some(at) = next.filter(|at| *at <= now.plus_ms(AHEAD_MS)) {
            if !exclusions.exclude(at) {
                if at >= due.at {
                    plan.runs.extend(self.plan(job, at, now, live).runs);
                }
            } else if at <= now {
                passed.push(at);
            } else {
                pending.get_or_insert(at);
            }
            next = job.spec.next_fire(at);
        }
        let noted = !passed.is_empty();
        let NextDue { at, excluded_from } =
            next_due(&job.spec, exclusions, next, pending, noted, AHEAD_MS);
        plan.next_fire = at;
        if let Some(passed) = Passed::of(exclusions, passed) {
            plan.runs.push(PlannedRun {
                fire_at: passed.last,
                due_at: passed.last,
                shard: Shard::whole(),
                executor: None,
                skipped: Some(SkippedFires {
                    missed: false,
                    reason: passed.reason(),
                    count: passed.count,
                    since: passed.since,
                }),
            });
        }
        (plan, excluded_from)
    }
}

/// Adds a window or a pause, and changes the plans of its jobs, some at a time.
pub(super) async fn add(store: &dyn Store, spec: &WindowSpec) -> (i64, Vec<JobId>) {
    let id = store.add_window(spec, &actor("ann")).await.expect("adds");
    (id, replan(store, id).await)
}

/// Ends a window or a pause, and changes the plans of its jobs.
pub(super) async fn end(store: &dyn Store, id: i64) -> Vec<JobId> {
    store.end_window(id, &actor("ann")).await.expect("ends");
    replan(store, id).await
}

async fn replan(store: &dyn Store, id: i64) -> Vec<JobId> {
    let mut jobs = Vec::new();
    loop {
        let replanned = store.replan_window(Some(id), 2).await.expect("plans");
        assert!(replanned.jobs.len() <= 2, "{replanned:?}");
        jobs.extend(replanned.jobs);
        if replanned.is_done {
            return jobs;
        }
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) -> StoreError {
    result.expect_err("is refused")
}

pub(super) async fn fire(store: &dyn Store, node: NodeId) -> FiredRuns {
    let request = FireDueRequest {
        node,
        horizon_ms: AHEAD_MS,
        limit: 100,
        max_runs: 10_000,
    };
    store.fire_due(request, &Excluding).await.expect("fires")
}

fn calendar(calendar: &str, from_s: u64, to_s: u64) -> CalendarSpec {
    let at = |s: u64| START.plus_ms(s * 1_000).to_string();
    serde_json::from_value(json!({
        "name": calendar, "periods": [{ "start": at(from_s), "end": at(to_s) }],
    }))
    .expect("a calendar")
}

fn window(fields: &serde_json::Value, from_s: u64, to_s: u64) -> WindowSpec {
    let at = |s: u64| START.plus_ms(s * 1_000).to_string();
    let mut whole =
        json!({ "start": at(from_s), "end": at(to_s), "reason": "upgrade", "owner": "ann" });
    for (key, value) in fields.as_object().expect("a table") {
        whole[key] = value.clone();
    }
    serde_json::from_value(whole).expect("a window")
}

fn with_calendar(job: &str) -> JobSpec {
    JobSpec {
        calendars: vec!["c".to_owned()],
        ..each_second(job)
    }
}

async fn put(fixture: &Fixture, spec: &CalendarSpec) -> Vec<i64> {
    let specs = std::slice::from_ref(spec);
    let (_, jobs) = fixture
        .store
        .put_calendars(specs, &Precondition::None, false, &actor("ann"))
        .await
        .expect("puts");
    jobs.into_iter().map(|id| id.0).collect()
}

pub(super) async fn actions(fixture: &Fixture) -> Vec<String> {
    let filter = AuditFilter {
        limit: 100,
        ..AuditFilter::default()
    };
    let entries = fixture.store.audit_entries(&filter).await.expect("lists");
    let mut actions: Vec<String> = entries
        .into_iter()
        .map(|entry| entry.entry.action)
        .collect();
    actions.reverse();
    actions
}

/// The states of the fire times in a window, each second one.
pub(super) async fn ledger(
    fixture: &Fixture,
    job: &str,
    from_s: u64,
    to_s: u64,
) -> Vec<LedgerEntry> {
    let (from, to) = (START.plus_ms(from_s * 1_000), START.plus_ms(to_s * 1_000));
    let job = name(job);
    let read = fixture.store.ledger(&job, from, to, 1_000);
    read.await.expect("reads")
}

/// Start and number of fire times of each skipped run, with its message, oldest first.
pub(super) async fn skipped(fixture: &Fixture, job: &str) -> Vec<(i64, String)> {
    let filter = RunFilter {
        jobs: vec![name(job)],
        states: vec![RunState::Skipped],
        limit: 100,
        ..RunFilter::default()
    };
    let mut runs = fixture.store.list_runs(&filter).await.expect("lists").runs;
    runs.sort_by_key(|run| run.fire_at);
    let seconds = |run: &crate::Run| run.fire_at.since_ms(START) / 1_000;
    runs.iter()
        .map(|run| (seconds(run), run.message.clone().unwrap_or_default()))
        .collect()
}

/// A calendar has a version, and each change an entry of the audit log.
pub async fn calendars_are_kept_in_versions(fixture: &Fixture) {
    let (first, second) = (calendar("c", 0, 10), calendar("c", 0, 20));
    let by = actor("ann");
    let store = &fixture.store;
    let both = [first.clone(), calendar("d", 0, 1)];
    let (dry, _) = store
        .put_calendars(&both, &Precondition::None, true, &by)
        .await
        .expect("compares");
    assert!(
        dry.iter()
            .all(|c| c.change == Change::Created && c.revision.is_none())
    );
    assert_eq!(store.fire_rules().await.expect("reads").calendars.len(), 0);
    put(fixture, &first).await;
    assert!(put(fixture, &first).await.is_empty(), "nothing has changed");
    put(fixture, &second).await;
    let again = fixture.harness.open().await;
    let found = again
        .calendars(&Namespace::default(), None)
        .await
        .expect("lists");
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].spec, found[0].revision.version), (&second, 2));
    let outdated = Precondition::Version(1);
    let refused_put = store.put_calendars(&[first], &outdated, false, &by).await;
    assert_eq!(refused(refused_put).kind(), ErrorKind::Precondition);
    let named: CalendarName = name("c");
    let refused_delete = store.delete_calendar(&named, &outdated, &by).await;
    assert_eq!(refused(refused_delete).kind(), ErrorKind::Precondition);
    store
        .delete_calendar(&named, &Precondition::Version(2), &by)
        .await
        .expect("deletes");
    let missing = store
        .delete_calendar(&named, &Precondition::None, &by)
        .await;
    assert_eq!(refused(missing).kind(), ErrorKind::NotFound);
    assert_eq!(
        actions(fixture).await,
        ["calendar.create", "calendar.update", "calendar.delete"]
    );
    let team: Namespace = name("team-a");
    put(fixture, &calendar("e", 0, 1)).await;
    assert!(
        store
            .calendars(&team, None)
            .await
            .expect("lists")
            .is_empty()
    );
}

/// A job names calendars of its namespace that exist, and a calendar that a job names stays.
pub async fn jobs_keep_their_calendars(fixture: &Fixture) {
    let by = actor("ann");
    let unknown = fixture
        .store
        .apply_jobs(&[with_calendar("a")], false, &by)
        .await;
    let error = refused(unknown);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().contains("there is no calendar \"c\""),
        "{error}"
    );
    put(fixture, &calendar("c", 0, 10)).await;
    fixture.apply(&[with_calendar("a")]).await;
    let found = fixture
        .store
        .calendars(&Namespace::default(), Some(&name("c")))
        .await;
    assert_eq!(found.expect("lists")[0].jobs, [name("a")]);
    let used = fixture
        .store
        .delete_calendar(&name("c"), &Precondition::None, &by)
        .await;
    let error = refused(used);
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().ends_with("it is used by a"), "{error}");
    fixture
        .store
        .delete_job(&name("a"), &by)
        .await
        .expect("deletes");
    let free = fixture
        .store
        .delete_calendar(&name("c"), &Precondition::None, &by)
        .await;
    free.expect("deletes");
}

/// G1: each excluded fire time is accounted for by a run that says why, and a long stretch has few of them.
pub async fn excluded_fire_times_are_accounted_for(fixture: &Fixture) {
    let node = fixture.node().await;
    put(fixture, &calendar("c", 3, 603)).await;
    fixture.apply(&[with_calendar("a")]).await;
    let mut fired = BTreeSet::new();
    for _ in 0..1_300 {
        let runs = fire(&*fixture.store, node).await.runs;
        fired.extend(runs.iter().map(|run| run.fire_at.since_ms(START) / 1_000));
        fixture.clock.advance(500);
    }
    let expected: BTreeSet<i64> = (1..3).chain(603..=651).collect();
    assert_eq!(fired, expected);
    let runs = skipped(fixture, "a").await;
    assert!(runs.len() <= 3, "{runs:?}");
    assert!(
        runs[0].1.starts_with("excluded by calendar \"c\""),
        "{runs:?}"
    );
    let entries = ledger(fixture, "a", 1, 650).await;
    assert_eq!(entries.len(), 649);
    for entry in entries {
        let second = entry.fire_at.since_ms(START) / 1_000;
        let is_skipped = entry.state == Some(RunState::Skipped);
        assert_eq!(is_skipped, (3..603).contains(&second), "{entry:?}");
        assert!(entry.run.is_some(), "{entry:?}");
    }
}

/// Before their run is written, the ledger knows that fire times are excluded. A change of the job writes it.
pub async fn a_change_accounts_for_excluded_fire_times(fixture: &Fixture) {
    let node = fixture.node().await;
    put(fixture, &calendar("c", 0, 600)).await;
    let by = actor("ann");
    fixture
        .apply(&[
            with_calendar("paused"),
            with_calendar("edited"),
            with_calendar("deleted"),
        ])
        .await;
    for _ in 0..20 {
        fire(&*fixture.store, node).await;
        fixture.clock.advance(1_000);
    }
    let entries = ledger(fixture, "paused", 1, 21).await;
    assert_eq!(entries.len(), 20);
    assert!(
        entries
            .iter()
            .all(|entry| entry.state == Some(RunState::Skipped))
    );
    let store = &fixture.store;
    store
        .set_job_enabled(&name("paused"), false, &by)
        .await
        .expect("pauses");
    let edited = JobSpec {
        priority: 9,
        ..with_calendar("edited")
    };
    store
        .apply_jobs(&[edited], false, &by)
        .await
        .expect("applies");
    store
        .delete_job(&name("deleted"), &by)
        .await
        .expect("deletes");
    for job in ["paused", "edited", "deleted"] {
        let runs = skipped(fixture, job).await;
        let last = runs.last().expect("a run");
        assert_eq!(last.0, 20, "{job}: {runs:?}");
        assert!(last.1.contains("stands for"), "{job}: {runs:?}");
    }
    let entries = ledger(fixture, "paused", 1, 21).await;
    assert!(entries.iter().all(|entry| entry.run.is_some()));
}

/// G3: once a change has returned, no run that was written ahead is left, and no node plans by the old rules.
pub async fn a_change_withdraws_runs_ahead_at_every_node(fixture: &Fixture) {
    let node = fixture.node().await;
    put(fixture, &calendar("c", 900, 901)).await;
    fixture.apply(&[with_calendar("a"), each_second("b")]).await;
    fixture.clock.advance(500);
    let ahead = fire(&*fixture.store, node).await.runs;
    let of_a = ahead.iter().filter(|run| run.job.spec.name.as_str() == "a");
    assert_eq!(of_a.count(), 2, "{ahead:?}");
    // Another node changes the calendar. This one has the old rules in its memory.
    let other = fixture.harness.open().await;
    let (_, jobs) = other
        .put_calendars(
            &[calendar("c", 0, 10)],
            &Precondition::None,
            false,
            &actor("ann"),
        )
        .await
        .expect("puts");
    let changed = fixture.store.job(&name("a")).await.expect("reads");
    assert_eq!(jobs, [changed.job.id]);
    let left = RunFilter {
        jobs: vec![name("a")],
        limit: 10,
        ..RunFilter::default()
    };
    let left = fixture.store.list_runs(&left).await.expect("lists").runs;
    assert!(left.is_empty(), "{left:?}");
    for _ in 0..8 {
        let fired = fire(&*fixture.store, node).await.runs;
        assert!(
            fired.iter().all(|run| run.job.spec.name.as_str() == "b"),
            "{fired:?}"
        );
        fixture.clock.advance(1_000);
    }
    // The calendar ends early.
    other
        .put_calendars(
            &[calendar("c", 0, 1)],
            &Precondition::None,
            false,
            &actor("ann"),
        )
        .await
        .expect("puts");
    let fired = fire(&*fixture.store, node).await.runs;
    let names: BTreeSet<&str> = fired.iter().map(|run| run.job.spec.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["a", "b"]));
    let states: Vec<_> = ledger(fixture, "a", 1, 9)
        .await
        .into_iter()
        .map(|e| e.state)
        .collect();
    assert_eq!(states, vec![Some(RunState::Skipped); 8]);
}

/// A window is about the jobs in its scope, also about those that come later, and ends by itself.
pub async fn a_window_stops_the_jobs_in_its_scope(fixture: &Fixture) {
    let node = fixture.node().await;
    let labelled = |job: &str| JobSpec {
        labels: [("tier".to_owned(), "1".to_owned())].into(),
        ..each_second(job)
    };
    let elsewhere = JobSpec {
        labels: labelled("a").labels,
        ..each_second("team-a/a")
    };
    fixture
        .apply(&[labelled("a"), each_second("b"), elsewhere])
        .await;
    let scope = json!({ "namespace": "default", "labels": { "tier": "1" } });
    let store = &*fixture.store;
    let (id, jobs) = add(store, &window(&scope, 0, 5)).await;
    assert_eq!(jobs.len(), 1);
    fixture.apply(&[labelled("later")]).await;
    let mut early = BTreeSet::new();
    let mut late = BTreeSet::new();
    for second in 0..8 {
        for run in fire(&*fixture.store, node).await.runs {
            let names = if second < 3 { &mut early } else { &mut late };
            names.insert(run.job.spec.name.to_string());
        }
        fixture.clock.advance(1_000);
    }
    assert_eq!(
        early,
        BTreeSet::from(["b".to_owned(), "team-a/a".to_owned()])
    );
    assert_eq!(late.len(), 4, "{late:?}");
    let runs = skipped(fixture, "a").await;
    let reason = format!("in maintenance window {id} of ann: upgrade");
    assert!(runs[0].1.starts_with(&reason), "{runs:?}");
    assert_eq!(end(store, id).await.len(), 2);
    let missing = store.end_window(id, &actor("ann")).await;
    assert_eq!(refused(missing).kind(), ErrorKind::NotFound);
    let actions = actions(fixture).await;
    assert!(actions.contains(&"window.add".to_owned()), "{actions:?}");
    assert!(actions.contains(&"window.delete".to_owned()), "{actions:?}");
}

/// A deleted window stops nothing any more.
pub async fn a_deleted_window_lets_jobs_fire_again(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let everything = window(&json!({}), 0, 86_400);
    let (id, _) = add(&*fixture.store, &everything).await;
    for _ in 0..3 {
        assert!(fire(&*fixture.store, node).await.runs.is_empty());
        fixture.clock.advance(1_000);
    }
    let summary = fixture.store.job(&name("a")).await.expect("reads");
    assert_eq!(summary.next_fire, Some(START.plus_ms(86_400_000)));
    end(&*fixture.store, id).await;
    assert_eq!(fixture.next_fire("a").await, Some(START.plus_ms(4_000)));
    assert_eq!(fire(&*fixture.store, node).await.runs.len(), 1);
    assert_eq!(
        ledger(fixture, "a", 1, 4)
            .await
            .iter()
            .filter(|e| e.run.is_some())
            .count(),
        3
    );
}

/// Other rules of a time zone change the next fire times of the jobs that depend on it.
pub async fn a_changed_time_zone_replans_its_jobs(fixture: &Fixture) {
    let cron = |job: &str, zone: &str| {
        let schedule = json!({ "cron": "0 2 * * *", "timezone": zone });
        job_with(job, serde_json::from_value(schedule).expect("a schedule"))
    };
    fixture
        .apply(&[
            cron("a", "Europe/Berlin"),
            cron("b", "Europe/Paris"),
            each_second("c"),
        ])
        .await;
    let zone = |name: &str, digest| ZoneDigest {
        name: name.to_owned(),
        digest,
    };
    let store = &fixture.store;
    let first = [zone("Europe/Berlin", 1), zone("Europe/Paris", 1)];
    assert_eq!(
        store.note_zones(&first).await.expect("notes"),
        0,
        "they are new"
    );
    assert_eq!(store.known_zones().await.expect("reads"), first);
    let next = fixture.next_fire("a").await;
    assert_eq!(
        store
            .note_zones(&[zone("Europe/Berlin", 2)])
            .await
            .expect("notes"),
        1
    );
    assert_eq!(
        fixture.next_fire("a").await,
        next,
        "the rules are the same here"
    );
    let known = store.known_zones().await.expect("reads");
    assert_eq!(known, [zone("Europe/Berlin", 2), zone("Europe/Paris", 1)]);
}
