//! Applying, reading and listing jobs.

use cueline_model::{AfterOn, JobSpec, Parents, RunState};

use super::fixture::{
    Fixture, START, actor, after, attempt, by_hand, child, each_second, mark, name, refused,
};
use crate::{Change, ErrorKind, JobFilter, JobList, JobPosition};

pub(super) async fn changes(fixture: &Fixture, specs: &[JobSpec]) -> Vec<Change> {
    let applied = fixture
        .store
        .apply_jobs(specs, false, &actor("a test"))
        .await
        .expect("applies");
    applied.into_iter().map(|a| a.change).collect()
}

/// The answer has the change of each job, in the order given.
pub async fn apply_reports_each_job(fixture: &Fixture) {
    use Change::{Created, Unchanged, Updated};
    let (a, b) = (each_second("a"), each_second("b"));
    assert_eq!(
        changes(fixture, &[b.clone(), a.clone()]).await,
        [Created, Created]
    );
    let mut changed = a.clone();
    changed.description = String::from("new");
    let again = [changed.clone(), b, by_hand("c")];
    assert_eq!(
        changes(fixture, &again).await,
        [Updated, Unchanged, Created]
    );
    let a = fixture.store.job(&name("a")).await.expect("exists");
    assert_eq!((a.job.version, &a.job.spec), (2, &changed));
    let b = fixture.store.job(&name("b")).await.expect("exists");
    assert_eq!(b.job.version, 1);
    assert_eq!(b.next_fire, Some(START.plus_ms(1_000)));
    let c = fixture.store.job(&name("c")).await.expect("exists");
    assert_eq!(c.next_fire, None);
}

/// A dry run gives the same answer.
pub async fn dry_run_changes_nothing(fixture: &Fixture) {
    fixture.apply(&[each_second("a")]).await;
    let mut changed = each_second("a");
    changed.priority = 9;
    let specs = [changed, each_second("b")];
    let applied = fixture
        .store
        .apply_jobs(&specs, true, &actor("a test"))
        .await
        .expect("answers");
    assert_eq!(applied[0].change, Change::Updated);
    assert!(applied[0].id.is_some());
    assert_eq!(applied[1].change, Change::Created);
    assert_eq!(applied[1].id, None);
    let a = fixture.store.job(&name("a")).await.expect("exists");
    assert_eq!(a.job.version, 1);
    assert!(fixture.store.job(&name("b")).await.is_err());
}

/// One bad definition refuses the whole batch.
pub async fn apply_is_all_or_nothing(fixture: &Fixture) {
    let specs = [each_second("a"), child("b", "absent-parent")];
    let applied = fixture
        .store
        .apply_jobs(&specs, false, &actor("a test"))
        .await;
    refused(applied, ErrorKind::Invalid, "absent-parent");
    let twice = [each_second("a"), each_second("a")];
    let applied = fixture
        .store
        .apply_jobs(&twice, false, &actor("a test"))
        .await;
    refused(applied, ErrorKind::Invalid, "\"a\"");
    assert!(fixture.store.job(&name("a")).await.is_err());
}

/// A parent is in the batch or in the store.
pub async fn parents_must_exist(fixture: &Fixture) {
    assert_eq!(
        changes(fixture, &[child("b", "a"), by_hand("a")]).await,
        [Change::Created, Change::Created],
        "the order does not matter"
    );
    fixture.apply(&[child("c", "b")]).await;
    let applied = fixture
        .store
        .apply_jobs(&[child("d", "x")], false, &actor("a test"))
        .await;
    refused(applied, ErrorKind::Invalid, "\"x\"");
    let none = after("e", Parents::Any(Vec::new()), AfterOn::Success);
    let applied = fixture
        .store
        .apply_jobs(&[none], false, &actor("a test"))
        .await;
    refused(applied, ErrorKind::Invalid, "1 to 32");
}

/// A job cannot come after itself, over any number of others.
pub async fn cycles_are_refused(fixture: &Fixture) {
    let applied = fixture
        .store
        .apply_jobs(&[child("a", "a")], false, &actor("a test"))
        .await;
    refused(applied, ErrorKind::Invalid, "cycle");
    fixture
        .apply(&[by_hand("a"), child("b", "a"), child("c", "b")])
        .await;
    let applied = fixture
        .store
        .apply_jobs(&[child("a", "c")], false, &actor("a test"))
        .await;
    refused(applied, ErrorKind::Invalid, "cycle");
    // Reversed as a whole it is a chain again.
    fixture
        .apply(&[by_hand("c"), child("b", "c"), child("a", "b")])
        .await;
}

/// Runs that are not due yet are planned again by the new definition.
pub async fn edit_withdraws_runs_ahead_of_their_fire_time(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_ahead(node, 1_000).await.runs.remove(0);
    let mut changed = each_second("a");
    changed.priority = 7;
    fixture.apply(&[changed]).await;
    refused(
        fixture.store.run(run.id).await,
        ErrorKind::NotFound,
        "no run",
    );
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&run, "e1")])
        .await;
    assert_eq!(taken.expect("answers"), []);
    assert_eq!(fixture.next_fire("a").await, Some(START.plus_ms(1_000)));
    let anew = fixture.fire_ahead(node, 1_000).await.runs.remove(0);
    assert_ne!(anew.id, run.id, "ids are not used again");
    assert_eq!(anew.job.spec.priority, 7);
}

/// Runs past their fire time stay. Their claim is released, so that they are published by the new definition.
pub async fn edit_releases_waiting_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    let mut changed = each_second("a");
    changed.priority = 7;
    fixture.apply(&[changed]).await;
    fixture.expect(run.id, RunState::Scheduled).await;
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&run, "e1")])
        .await;
    assert_eq!(taken.expect("answers"), []);
    let claimed = fixture.claim(node).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, run.id);
    assert_eq!(claimed[0].job.version, 2);
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&run, "e1")])
        .await;
    assert_eq!(taken.expect("answers"), [], "the old mark stays refused");
    fixture.begin(node, &claimed[0]).await;
}

/// The caller of an edit can wait until no trigger of the old definition is on its way.
pub async fn dispatching_attempts_are_listed(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), by_hand("b")]).await;
    let run = fixture.fire_one(node).await;
    let jobs = [run.job.id];
    assert_eq!(fixture.dispatching_count(&jobs).await, 0);
    fixture.begin(node, &run).await;
    assert_eq!(fixture.dispatching_count(&jobs).await, 1);
    let b = fixture.store.job(&name("b")).await.expect("exists").job.id;
    assert_eq!(fixture.dispatching_count(&[b]).await, 0);
    let confirmed = fixture.store.confirm_dispatch(&[attempt(&run)]).await;
    confirmed.expect("confirms");
    assert_eq!(fixture.dispatching_count(&jobs).await, 0);
}

/// Runs of deleted jobs still need their definition.
pub async fn definitions_of_deleted_jobs_remain(fixture: &Fixture) {
    fixture.apply(&[by_hand("a"), by_hand("b")]).await;
    let a = fixture
        .store
        .delete_job(&name("a"), &actor("me"))
        .await
        .expect("deletes");
    let b = fixture.store.job(&name("b")).await.expect("exists").job.id;
    let missing = cueline_model::JobId(b.0 + 1_000);
    let found = fixture
        .store
        .definitions(&[b, missing, a])
        .await
        .expect("reads");
    let mut names: Vec<_> = found.iter().map(|j| j.spec.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
}

/// Pages follow each other without gaps.
pub async fn jobs_are_listed_by_name(fixture: &Fixture) {
    fixture
        .apply(&["c", "a", "d", "b", "Z", "é"].map(by_hand))
        .await;
    let mut filter = JobFilter {
        limit: 4,
        ..JobFilter::default()
    };
    let page = fixture.store.list_jobs(&filter).await.expect("lists");
    let names = |page: &JobList| -> Vec<String> {
        let jobs = page.jobs.iter();
        jobs.map(|s| s.job.spec.name.to_string()).collect()
    };
    assert_eq!(names(&page), ["Z", "a", "b", "c"], "by their bytes");
    filter.after = page.next;
    let page = fixture.store.list_jobs(&filter).await.expect("lists");
    assert_eq!(names(&page), ["d", "é"]);
    assert_eq!(page.next, None);
}

/// A name in one namespace is not the same name in another, and a list has the jobs of its namespace only.
pub async fn jobs_are_listed_by_namespace(fixture: &Fixture) {
    let all = ["a", "b", "team/a", "team/b", "team-b/a", "team.b/a", "z"];
    fixture.apply(&all.map(by_hand)).await;
    let list = async |namespace: Option<&str>, after: Option<&str>, limit| {
        let mut filter = JobFilter {
            namespace: namespace.map(name),
            limit,
            ..JobFilter::default()
        };
        if let Some(after) = after {
            let after = fixture.store.job(&name(after)).await.expect("exists");
            filter.after = Some(JobPosition {
                next_fire: None,
                id: after.job.id,
            });
        }
        let page = fixture.store.list_jobs(&filter).await.expect("lists");
        let names = page.jobs.iter().map(|s| s.job.spec.name.to_string());
        names.collect::<Vec<_>>()
    };
    assert_eq!(list(Some("default"), None, 10).await, ["a", "b", "z"]);
    assert_eq!(list(Some("default"), Some("a"), 1).await, ["b"]);
    assert_eq!(list(Some("team"), None, 10).await, ["team/a", "team/b"]);
    assert_eq!(list(Some("team"), Some("team/a"), 10).await, ["team/b"]);
    assert_eq!(list(Some("team-b"), None, 10).await, ["team-b/a"]);
    assert!(list(Some("other"), None, 10).await.is_empty());
    assert_eq!(list(None, None, 10).await.len(), all.len());
    let one = fixture.store.job(&name("team/a")).await.expect("exists");
    assert_eq!(one.job.spec.group, name("team/default"));
    fixture
        .store
        .delete_job(&name("team/a"), &actor("me"))
        .await
        .expect("deletes");
    assert!(fixture.store.job(&name("a")).await.is_ok());
}

/// The group and the parent of a job are in its namespace.
pub async fn a_job_stays_in_its_namespace(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let mut group = by_hand("team/b");
    group.group = name("default");
    for spec in [group, child("team/b", "a")] {
        let applied = fixture.store.apply_jobs(&[spec], false, &actor("me")).await;
        refused(applied, ErrorKind::Invalid, "namespace");
    }
    let inside = [by_hand("team/a"), child("team/b", "team/a")];
    fixture.apply(&inside).await;
}

/// Each error names the job.
pub async fn missing_jobs_are_named(fixture: &Fixture) {
    let x = name("x");
    refused(fixture.store.job(&x).await, ErrorKind::NotFound, "\"x\"");
    let ledger = fixture.store.ledger(&x, START, START, 1).await;
    refused(ledger, ErrorKind::NotFound, "\"x\"");
    let filter = crate::RunFilter {
        jobs: vec![x],
        limit: 1,
        ..crate::RunFilter::default()
    };
    refused(
        fixture.store.runs(&filter).await,
        ErrorKind::NotFound,
        "\"x\"",
    );
}
