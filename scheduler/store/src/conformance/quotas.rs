//! Quotas of namespaces.

use cueline_model::{JobSpec, Namespace, RunState};

use super::fixture::{Fixture, actor, by_hand, each_second, name, refused};
use crate::{
    ErrorKind, FireDueRequest, MAX_QUOTA, NamespaceFilter, NamespaceSummary, Planner, Quotas,
    WaitingQuota,
};

fn team() -> Namespace {
    name("team-a")
}

fn in_team(job: &str) -> JobSpec {
    by_hand(&format!("team-a/{job}"))
}

fn max_jobs(most: u64) -> Quotas {
    Quotas {
        max_jobs: Some(most),
        ..Quotas::default()
    }
}

async fn set(fixture: &Fixture, namespace: &Namespace, quotas: &Quotas) -> u64 {
    let set = fixture
        .store
        .set_quotas(namespace, quotas, None, &actor("ann"))
        .await;
    set.expect("sets")
}

async fn all(fixture: &Fixture) -> Vec<NamespaceSummary> {
    let filter = NamespaceFilter {
        limit: 100,
        ..NamespaceFilter::default()
    };
    fixture.store.namespaces(&filter).await.expect("lists")
}

/// A namespace has quotas from the first call that sets them to the one that deletes them.
pub async fn quotas_are_kept_until_they_are_deleted(fixture: &Fixture) {
    assert!(fixture.store.quota_loads().await.expect("reads").is_empty());
    let whole = Quotas {
        max_jobs: Some(0),
        max_waiting_runs: Some(MAX_QUOTA),
        max_triggers_per_minute: Some(60),
    };
    assert_eq!(set(fixture, &team(), &whole).await, 1);
    assert_eq!(
        set(fixture, &team(), &whole).await,
        1,
        "nothing has changed"
    );
    assert_eq!(set(fixture, &Namespace::default(), &max_jobs(5)).await, 1);
    assert_eq!(set(fixture, &team(), &max_jobs(3)).await, 2);
    let again = fixture.harness.open().await;
    let loads = again.quota_loads().await.expect("reads");
    let names: Vec<&str> = loads.iter().map(|load| load.namespace.as_str()).collect();
    assert_eq!(names, ["default", "team-a"]);
    assert_eq!(loads[1].quotas, max_jobs(3));
    assert_eq!(set(fixture, &team(), &Quotas::default()).await, 0);
    assert_eq!(set(fixture, &team(), &Quotas::default()).await, 0);
    let loads = fixture.store.quota_loads().await.expect("reads");
    assert_eq!(loads.len(), 1);
}

/// Each change leaves one entry of the audit log, with the quotas before and after.
pub async fn changes_of_quotas_are_in_the_audit_log(fixture: &Fixture) {
    for quotas in [max_jobs(3), max_jobs(3), max_jobs(4), Quotas::default()] {
        set(fixture, &team(), &quotas).await;
    }
    let filter = crate::AuditFilter {
        actions: vec!["quota".to_owned()],
        limit: 10,
        ..crate::AuditFilter::default()
    };
    let entries = fixture.store.audit_entries(&filter).await.expect("reads");
    let rows: Vec<_> = entries
        .iter()
        .rev()
        .map(|one| {
            let entry = &one.entry;
            assert_eq!(
                (entry.namespace.as_ref(), &*entry.object),
                (Some(&team()), "team-a")
            );
            (
                entry.action.as_str(),
                entry.before.as_deref(),
                entry.after.as_deref(),
            )
        })
        .collect();
    let (three, four) = (r#"{"max_jobs":3}"#, r#"{"max_jobs":4}"#);
    assert_eq!(
        rows,
        [
            ("quota.set", None, Some(three)),
            ("quota.set", Some(three), Some(four)),
            ("quota.delete", Some(four), None),
        ]
    );
}

/// Two administrators do not undo each other's changes.
pub async fn quotas_are_changed_by_version(fixture: &Fixture) {
    let store = &fixture.store;
    let (by, team) = (actor("ann"), team());
    let set =
        async |quotas: Quotas, version| store.set_quotas(&team, &quotas, Some(version), &by).await;
    assert_eq!(set(max_jobs(3), 0).await.expect("sets"), 1);
    refused(set(max_jobs(4), 0).await, ErrorKind::Conflict, "version 1");
    assert_eq!(set(max_jobs(4), 1).await.expect("sets"), 2);
    let huge = max_jobs(MAX_QUOTA + 1);
    refused(set(huge, 2).await, ErrorKind::Invalid, "max_jobs");
}

/// New jobs beyond the quota are refused as a whole. What exists stays, and may be changed.
pub async fn max_jobs_bounds_new_jobs(fixture: &Fixture) {
    let store = &fixture.store;
    let by = actor("ann");
    set(fixture, &team(), &max_jobs(2)).await;
    fixture.apply(&[in_team("a")]).await;
    let three = [in_team("a"), in_team("b"), in_team("c")];
    for dry_run in [true, false] {
        let result = store.apply_jobs(&three, dry_run, &by).await;
        refused(
            result,
            ErrorKind::Conflict,
            "max_jobs of namespace team-a is 2; it has 1 jobs",
        );
    }
    fixture.apply(&three[..2]).await;
    // Another namespace, with a name that begins alike, and the default one.
    let others = [by_hand("team-a-b/x"), by_hand("y"), by_hand("z")];
    fixture.apply(&others).await;
    set(fixture, &Namespace::default(), &max_jobs(2)).await;
    let result = store.apply_jobs(&[by_hand("w")], false, &by).await;
    refused(
        result,
        ErrorKind::Conflict,
        "namespace default is 2; it has 2 jobs",
    );
    // A quota below the present number stops new jobs only.
    set(fixture, &team(), &max_jobs(1)).await;
    fixture.apply(&[in_team("b")]).await;
    let result = store.apply_jobs(&[in_team("c")], false, &by).await;
    refused(result, ErrorKind::Conflict, "it has 2 jobs");
    for job in ["team-a/a", "team-a/b"] {
        store.delete_job(&name(job), &by).await.expect("deletes");
    }
    fixture.apply(&[in_team("c")]).await;
}

/// Calls at the same time never exceed the quota together.
pub async fn max_jobs_is_exact_under_concurrent_applies(fixture: &Fixture) {
    set(fixture, &team(), &max_jobs(5)).await;
    let mut calls = tokio::task::JoinSet::new();
    for caller in 0..12 {
        let store = std::sync::Arc::clone(&fixture.store);
        calls.spawn(async move {
            let specs = [in_team(&format!("job-{caller}"))];
            store.apply_jobs(&specs, false, &actor("ann")).await
        });
    }
    let mut accepted = 0;
    while let Some(ended) = calls.join_next().await {
        match ended.expect("no panic") {
            Ok(_) => accepted += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
    }
    assert_eq!(accepted, 5);
    let filter = crate::JobFilter {
        namespace: Some(team()),
        limit: 100,
        ..crate::JobFilter::default()
    };
    let found = fixture.store.list_jobs(&filter).await.expect("lists");
    assert_eq!(found.jobs.len(), 5);
}

/// The numbers of a namespace: its jobs, and its runs that have not started.
pub async fn namespaces_are_listed_with_their_numbers(fixture: &Fixture) {
    fixture
        .apply(&[by_hand("a"), in_team("a"), in_team("b")])
        .await;
    set(fixture, &name("with-quota"), &max_jobs(1)).await;
    let waiting = Quotas {
        max_waiting_runs: Some(9),
        ..Quotas::default()
    };
    let node = fixture.node().await;
    fixture.trigger("a").await;
    for _ in 0..2 {
        fixture.trigger("team-a/a").await;
    }
    let of_team = |run: &&crate::ClaimedRun| run.job.spec.name.is_in(&team());
    let claimed = fixture.claim(node).await;
    let published = claimed.iter().find(of_team).expect("a run of the team");
    let other = claimed.iter().rfind(of_team).expect("a run of the team");
    fixture.publish(node, published).await;
    let numbers = async || -> Vec<(String, u64, u64)> {
        let found = all(fixture).await;
        let row = |one: NamespaceSummary| (one.namespace.to_string(), one.jobs, one.waiting_runs);
        found.into_iter().map(row).collect()
    };
    let row = |name: &str, jobs, waiting| (name.to_owned(), jobs, waiting);
    // Scheduled, dispatching and queued runs wait.
    assert_eq!(
        numbers().await,
        [
            row("default", 1, 1),
            row("team-a", 2, 2),
            row("with-quota", 0, 0)
        ]
    );
    // Schedulers read the numbers of namespaces with such a quota only.
    let read = async || {
        let loads = fixture.store.quota_loads().await.expect("reads");
        let of_team = loads.iter().find(|load| load.namespace == team());
        of_team.map(|load| load.waiting_runs)
    };
    assert_eq!(read().await, None);
    set(fixture, &team(), &waiting).await;
    assert_eq!(read().await, Some(2));
    let cancelled = fixture.store.cancel_run(other.id, &actor("ann")).await;
    cancelled.expect("cancels");
    assert_eq!(read().await, Some(1));
    assert_eq!(numbers().await[1], row("team-a", 2, 1));
}

/// Pages are ordered by name, and a caller may ask for some names only.
pub async fn namespaces_are_paged_and_filtered(fixture: &Fixture) {
    for namespace in ["c", "a-b", "a", "b"] {
        fixture.apply(&[by_hand(&format!("{namespace}/x"))]).await;
    }
    let list = async |names: Option<&[&str]>, after: Option<&str>, limit| -> Vec<String> {
        let filter = NamespaceFilter {
            names: names.map(|names| names.iter().map(|text| name(text)).collect()),
            after: after.map(name),
            limit,
        };
        let found = fixture.store.namespaces(&filter).await.expect("lists");
        found
            .into_iter()
            .map(|one| one.namespace.to_string())
            .collect()
    };
    assert_eq!(list(None, None, 3).await, ["a", "a-b", "b"]);
    assert_eq!(list(None, Some("b"), 3).await, ["c"]);
    assert_eq!(list(Some(&["c", "a", "none"]), None, 9).await, ["a", "c"]);
    assert_eq!(list(Some(&["c", "a"]), Some("a"), 9).await, ["c"]);
    assert!(list(Some(&[]), None, 9).await.is_empty());
}

/// A planner with a quota of one waiting run in `team-a`.
struct OneWaiting;

impl Planner for OneWaiting {
    fn plan(
        &self,
        job: &cueline_model::Job,
        due: cueline_model::Timestamp,
        now: cueline_model::Timestamp,
        live: &[cueline_model::ExecutorName],
    ) -> crate::Plan {
        super::fixture::EachFireTime.plan(job, due, now, live)
    }

    fn waiting_quota(&self, job: &cueline_model::Job) -> Option<WaitingQuota> {
        job.spec.name.is_in(&team()).then_some(WaitingQuota {
            limit: 1,
            waiting: 0,
        })
    }
}

/// A fire beyond the quota is in the ledger, and the job goes on. Other namespaces are not concerned.
pub async fn fires_beyond_the_quota_are_skipped(fixture: &Fixture) {
    let jobs = [
        each_second("team-a/one"),
        each_second("team-a/two"),
        each_second("other"),
    ];
    fixture.apply(&jobs).await;
    let node = fixture.node().await;
    fixture.clock.advance(1_000);
    let request = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 10,
        max_runs: 10,
    };
    let fired = fixture.store.fire_due(request, &OneWaiting).await;
    let fired = fired.expect("fires");
    assert_eq!(fired.runs.len(), 2);
    assert_eq!(fired.skipped_by_quota, [(team(), 1)]);
    let filter = crate::RunFilter {
        states: vec![RunState::Skipped],
        limit: 9,
        ..crate::RunFilter::default()
    };
    let skipped = fixture.store.runs(&filter).await.expect("lists");
    assert_eq!(skipped.len(), 1);
    assert!(skipped[0].job.is_in(&team()));
    let message = skipped[0].message.as_deref().expect("a message");
    let words = "quota max_waiting_runs of namespace team-a (1) is reached";
    assert!(message.contains(words), "{message}");
    for job in ["team-a/one", "team-a/two"] {
        let next = fixture.next_fire(job).await.expect("goes on");
        assert!(next > fixture.now(), "{job}");
        let from = fixture.now().minus_ms(10_000);
        let to = fixture.now().plus_ms(1);
        let ledger = fixture.store.ledger(&name(job), from, to, 100).await;
        let ledger = ledger.expect("reads");
        assert!(!ledger.is_empty(), "{job}");
        assert!(ledger.iter().all(|entry| entry.run.is_some()), "{ledger:?}");
    }
}
