//! Scripts, their versions, and the jobs that use them.

use cueline_model::handler::Interpreter;
use cueline_model::{HandlerSpec, Job, JobSpec, ScriptName, ScriptSpec};
use serde_json::json;

use super::fixture::{Fixture, actor, each_second, mark, name};
use crate::{
    AuditFilter, Change, DispatchRequest, ErrorKind, MAX_SCRIPT_VERSIONS, Order, Precondition,
    Revision, StoreError,
};

fn script(script: &str, text: &str) -> ScriptSpec {
    ScriptSpec {
        name: name(script),
        language: Interpreter::Sh,
        text: text.to_owned(),
        remark: format!("says {text}"),
    }
}

fn handler(script: &str, version: Option<i64>) -> HandlerSpec {
    let reference = json!({ "script": { "name": script, "version": version } });
    serde_json::from_value(reference).expect("a handler")
}

/// A job that fires each second and runs the newest version.
fn follower(job: &str, script: &str) -> JobSpec {
    JobSpec {
        handler: handler(script, None),
        ..each_second(job)
    }
}

fn pinned(job: &str, script: &str, version: i64) -> JobSpec {
    JobSpec {
        handler: handler(script, Some(version)),
        ..each_second(job)
    }
}

/// The text that a run of the job would get.
fn text(job: &Job) -> String {
    match job.spec.handler.for_worker() {
        HandlerSpec::Shell(shell) => shell.script,
        other => panic!("the text is not loaded: {other:?}"),
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) -> StoreError {
    result.expect_err("is refused")
}

/// The names of the jobs that get a new version.
async fn save(fixture: &Fixture, spec: &ScriptSpec) -> Vec<String> {
    let ann = actor("ann");
    let put = fixture
        .store
        .put_script(spec, &Precondition::None, false, &ann);
    let (_, jobs) = put.await.expect("saves");
    let jobs = fixture.store.definitions(&jobs).await.expect("reads");
    jobs.iter().map(|job| job.spec.name.to_string()).collect()
}

async fn job(fixture: &Fixture, job: &str) -> (i64, String) {
    let summary = fixture.store.job(&name(job)).await.expect("reads");
    let found = fixture.store.definitions(&[summary.job.id]).await;
    let found = found.expect("reads").remove(0);
    (found.version, text(&found))
}

/// A save with another language or text is a version; a remark alone is none.
pub async fn scripts_are_kept_in_versions(fixture: &Fixture) {
    let (store, ann) = (&fixture.store, actor("ann"));
    let first = script("team/backup", "echo 1");
    let put = |spec: ScriptSpec, condition: Precondition, dry_run: bool| {
        let ann = ann.clone();
        async move { store.put_script(&spec, &condition, dry_run, &ann).await }
    };
    let (dry, _) = put(first.clone(), Precondition::None, true)
        .await
        .expect("compares");
    assert_eq!((dry.change, dry.revision), (Change::Created, None));
    let (created, _) = put(first.clone(), Precondition::Absent, false)
        .await
        .expect("creates");
    let id = created.revision.expect("is stored").id;
    assert_eq!(created.revision, Some(Revision { id, version: 1 }));
    let remark_only = ScriptSpec {
        remark: "other".to_owned(),
        ..first.clone()
    };
    let (same, _) = put(remark_only, Precondition::None, false)
        .await
        .expect("compares");
    assert_eq!(
        (same.change, same.revision),
        (Change::Unchanged, created.revision)
    );
    fixture.clock.advance(1_000);
    let second = ScriptSpec {
        language: Interpreter::Python3,
        ..script("team/backup", "print(2)")
    };
    let stale = Precondition::OneOf(vec![Revision { id, version: 9 }]);
    let error = refused(put(second.clone(), stale, false).await);
    assert_eq!(error.kind(), ErrorKind::Precondition);
    let (updated, _) = put(second, Precondition::Exists, false)
        .await
        .expect("saves");
    assert_eq!(updated.change, Change::Updated);
    let backup: ScriptName = name("team/backup");
    let found = store.script(&backup).await.expect("reads");
    assert_eq!(found.revision, Revision { id, version: 2 });
    let newest = &found.newest;
    assert_eq!(
        (
            newest.language,
            newest.text.as_deref(),
            newest.bytes,
            newest.by.as_str()
        ),
        (Interpreter::Python3, Some("print(2)"), 8, "user ann")
    );
    assert_eq!(newest.at, fixture.now());
    let versions = store.script_versions(&backup).await.expect("lists");
    let listed: Vec<_> = versions
        .iter()
        .map(|v| (v.version, v.remark.as_str(), v.text.as_deref()))
        .collect();
    assert_eq!(
        listed,
        [(2, "says print(2)", None), (1, "says echo 1", None)]
    );
    let old = store.script_version(&backup, 1).await.expect("reads");
    assert_eq!(old.and_then(|old| old.text).as_deref(), Some("echo 1"));
    assert_eq!(store.script_version(&backup, 3).await.expect("reads"), None);
    let missing = refused(store.script_versions(&name("team/other")).await);
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

/// G18.
pub async fn scripts_belong_to_one_namespace(fixture: &Fixture) {
    for one in ["b", "a", "team/a"] {
        save(fixture, &script(one, "true")).await;
    }
    fixture.apply(&[follower("team/j", "a")]).await;
    for (namespace, expected) in [("default", vec!["a", "b"]), ("team", vec!["team/a"])] {
        let found = fixture.store.scripts(&name(namespace)).await;
        let found = found.expect("lists");
        let names: Vec<&str> = found.iter().map(|script| script.name.as_str()).collect();
        assert_eq!(names, expected);
        assert!(found.iter().all(|script| script.newest.text.is_none()));
    }
    let of_team = fixture.store.script(&name("team/a")).await.expect("reads");
    assert_eq!(of_team.jobs, [(name("team/j"), None)]);
    let of_default = fixture.store.script(&name("a")).await.expect("reads");
    assert_eq!(of_default.jobs, []);
    let other = follower("other/j", "a");
    let ann = actor("ann");
    let applied = fixture.store.apply_jobs(&[other], false, &ann).await;
    let error = refused(applied);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().contains("there is no script \"other/a\""),
        "{error}"
    );
}

/// G3: what was claimed with the text before is not published.
pub async fn a_save_reaches_the_jobs_that_follow(fixture: &Fixture) {
    let node = fixture.node().await;
    save(fixture, &script("s", "echo 1")).await;
    let jobs = [
        follower("a", "s"),
        follower("b", "s"),
        pinned("c", "s", 1),
        each_second("d"),
    ];
    fixture.apply(&jobs).await;
    fixture.clock.advance(1_000);
    let claimed = fixture.fire(node).await.runs;
    assert_eq!(claimed.len(), 4);
    assert_eq!(save(fixture, &script("s", "echo 2")).await, ["a", "b"]);
    assert_eq!(job(fixture, "a").await, (2, "echo 2".to_owned()));
    assert_eq!(job(fixture, "c").await, (1, "echo 1".to_owned()));
    let marks: Vec<DispatchRequest> = claimed.iter().map(|run| mark(run, "e1")).collect();
    let taken = fixture.store.begin_dispatch(node, &marks).await;
    let taken = taken.expect("answers");
    let of = |id| claimed.iter().find(|run| run.attempt_id() == id);
    let names = taken
        .iter()
        .filter_map(|id| Some(of(*id)?.job.spec.name.as_str()));
    assert_eq!(names.collect::<Vec<_>>(), ["c", "d"]);
    let again = fixture.claim(node).await;
    let texts: Vec<(&str, String)> = again
        .iter()
        .map(|run| (run.job.spec.name.as_str(), text(&run.job)))
        .collect();
    assert_eq!(
        texts,
        [("a", "echo 2".to_owned()), ("b", "echo 2".to_owned())]
    );
    let marks: Vec<DispatchRequest> = again.iter().map(|run| mark(run, "e1")).collect();
    let taken = fixture.store.begin_dispatch(node, &marks).await;
    assert_eq!(taken.expect("answers").len(), 2);
    let a = name("a");
    let versions = fixture.store.job_versions(&a, Order::Descending, None, 10);
    let versions = versions.await.expect("lists");
    let by: Vec<(u64, &str)> = versions
        .iter()
        .map(|v| (v.version, v.by.as_str()))
        .collect();
    assert_eq!(by, [(2, "user ann"), (1, "user a test")]);
}

/// A node with the text in memory reads the new one.
pub async fn a_save_reaches_every_node(fixture: &Fixture) {
    let other = fixture.harness.open().await;
    save(fixture, &script("s", "echo 1")).await;
    fixture.apply(&[follower("a", "s")]).await;
    let id = fixture.store.job(&name("a")).await.expect("reads").job.id;
    let read = other.definitions(&[id]).await.expect("reads");
    assert_eq!(text(&read[0]), "echo 1");
    save(fixture, &script("s", "echo 2")).await;
    let read = other.definitions(&[id]).await.expect("reads");
    assert_eq!((read[0].version, text(&read[0])), (2, "echo 2".to_owned()));
    let node = fixture.node().await;
    fixture.clock.advance(1_000);
    let fired = fixture.fire(node).await.runs;
    assert_eq!(text(&fired[0].job), "echo 2");
}

/// A job changes to another script or version, and to none.
pub async fn an_edit_changes_the_script_of_a_job(fixture: &Fixture) {
    for (one, says) in [("s", "echo 1"), ("t", "echo t")] {
        save(fixture, &script(one, says)).await;
    }
    save(fixture, &script("s", "echo 2")).await;
    fixture.apply(&[follower("a", "s")]).await;
    fixture.apply(&[follower("a", "s")]).await;
    assert_eq!(job(fixture, "a").await, (1, "echo 2".to_owned()));
    fixture.apply(&[pinned("a", "s", 1)]).await;
    assert_eq!(job(fixture, "a").await, (2, "echo 1".to_owned()));
    fixture.apply(&[follower("a", "t")]).await;
    assert_eq!(job(fixture, "a").await, (3, "echo t".to_owned()));
    let missing = pinned("a", "s", 7);
    let error = refused(
        fixture
            .store
            .apply_jobs(&[missing], true, &actor("ann"))
            .await,
    );
    assert!(
        error.to_string().contains("has no version 7; it has 1-2"),
        "{error}"
    );
    fixture.apply(&[each_second("a")]).await;
    let unused = fixture.store.script(&name("t")).await.expect("reads");
    assert_eq!(unused.jobs, []);
    assert_eq!(
        save(fixture, &script("t", "echo u")).await,
        Vec::<String>::new()
    );
}

/// So is one that a job is pinned to.
pub async fn the_last_versions_are_kept(fixture: &Fixture) {
    for n in 1..=2 {
        save(fixture, &script("s", &format!("echo {n}"))).await;
    }
    fixture.apply(&[pinned("a", "s", 2)]).await;
    let last = MAX_SCRIPT_VERSIONS + 4;
    for n in 3..=last {
        save(fixture, &script("s", &format!("echo {n}"))).await;
    }
    let kept = fixture.store.script_versions(&name("s")).await;
    let mut kept: Vec<i64> = kept.expect("lists").iter().map(|v| v.version).collect();
    kept.reverse();
    let newest = (5..=last).map(|n| i64::try_from(n).expect("small"));
    let expected: Vec<i64> = std::iter::once(2).chain(newest).collect();
    assert_eq!(kept, expected);
    assert_eq!(job(fixture, "a").await, (1, "echo 2".to_owned()));
}

/// A deleted job uses none.
pub async fn a_script_that_jobs_use_is_not_deleted(fixture: &Fixture) {
    let (store, ann) = (&fixture.store, actor("ann"));
    let s: ScriptName = name("s");
    save(fixture, &script("s", "true")).await;
    fixture
        .apply(&[follower("a", "s"), pinned("b", "s", 1)])
        .await;
    let error = refused(store.delete_script(&s, &Precondition::None, &ann).await);
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("it is used by a, b"), "{error}");
    let a = store.job(&name("a")).await.expect("reads").job.id;
    for job in ["a", "b"] {
        store.delete_job(&name(job), &ann).await.expect("deletes");
    }
    let stale = Precondition::OneOf(vec![Revision { id: 99, version: 1 }]);
    let error = refused(store.delete_script(&s, &stale, &ann).await);
    assert_eq!(error.kind(), ErrorKind::Precondition);
    let deleted = store.delete_script(&s, &Precondition::Exists, &ann).await;
    deleted.expect("deletes");
    let error = refused(store.delete_script(&s, &Precondition::None, &ann).await);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let deleted = store.definitions(&[a]).await.expect("reads");
    assert_eq!(
        deleted[0].spec.name.as_str(),
        "a",
        "a deleted job keeps its definition"
    );
    assert_eq!(
        save(fixture, &script("s", "false")).await,
        Vec::<String>::new()
    );
}

/// G19.
pub async fn changes_of_scripts_are_in_the_audit_log(fixture: &Fixture) {
    save(fixture, &script("team/s", "echo 1")).await;
    fixture.apply(&[follower("team/a", "s")]).await;
    save(fixture, &script("team/s", "echo 2")).await;
    save(fixture, &script("team/s", "echo 2")).await;
    let ann = actor("ann");
    let script_name: ScriptName = name("team/s");
    let delete = || {
        fixture
            .store
            .delete_script(&script_name, &Precondition::None, &ann)
    };
    let used = delete();
    refused(used.await);
    fixture
        .store
        .delete_job(&name("team/a"), &ann)
        .await
        .expect("deletes");
    let deleted = delete();
    deleted.await.expect("deletes");
    let filter = AuditFilter {
        actions: vec!["script".to_owned()],
        order: Order::Ascending,
        limit: 100,
        ..AuditFilter::default()
    };
    let entries = fixture.store.audit_entries(&filter).await.expect("lists");
    let text = |value: &Option<String>| {
        let value: serde_json::Value = serde_json::from_str(value.as_deref()?).ok()?;
        Some(value["text"].as_str()?.to_owned())
    };
    let found: Vec<_> = entries
        .iter()
        .map(|entry| {
            let entry = &entry.entry;
            let namespace = entry.namespace.as_ref().map(ToString::to_string);
            assert_eq!(
                (namespace.as_deref(), entry.object.as_str()),
                (Some("team"), "team/s")
            );
            (
                entry.action.as_str(),
                text(&entry.before),
                text(&entry.after),
                entry.detail.as_str(),
            )
        })
        .collect();
    let echo = |n: u32| Some(format!("echo {n}"));
    assert_eq!(
        found,
        [
            ("script.create", None, echo(1), ""),
            ("script.update", echo(1), echo(2), "new versions of jobs: 1"),
            ("script.delete", echo(2), None, ""),
        ]
    );
}
