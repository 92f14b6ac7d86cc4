//! Applying, pausing and deleting jobs.

use cueline_model::{After, AfterOn, JobSpec, RunState};

use super::world::{START, World, attempt, by_hand, each_second, mark, name, refused};
use crate::{Change, ErrorKind};

fn child(job: &str, parent: &str) -> JobSpec {
    let mut spec = by_hand(job);
    spec.after = Some(After {
        all: vec![name(parent)],
        on: AfterOn::Success,
        pass_output: false,
    });
    spec
}

async fn changes(w: &World, specs: &[JobSpec]) -> Vec<Change> {
    let applied = w.store.apply_jobs(specs, false).await.expect("applies");
    applied.into_iter().map(|a| a.change).collect()
}

/// The answer says what happened to each, in the order given.
pub async fn apply_creates_updates_and_leaves_alone(w: &World) {
    use Change::{Created, Unchanged, Updated};
    let (a, b) = (each_second("a"), each_second("b"));
    assert_eq!(
        changes(w, &[b.clone(), a.clone()]).await,
        [Created, Created]
    );
    let mut changed = a.clone();
    changed.description = String::from("new");
    let again = [changed.clone(), b, by_hand("c")];
    assert_eq!(changes(w, &again).await, [Updated, Unchanged, Created]);
    let a = w.store.job(&name("a")).await.expect("exists");
    assert_eq!((a.job.version, &a.job.spec), (2, &changed));
    let b = w.store.job(&name("b")).await.expect("exists");
    assert_eq!(b.job.version, 1);
    assert_eq!(b.next_fire, Some(START.plus_ms(1_000)));
    let c = w.store.job(&name("c")).await.expect("exists");
    assert_eq!(c.next_fire, None);
}

/// A dry run answers the same and does nothing.
pub async fn dry_run_changes_nothing(w: &World) {
    w.apply(&[each_second("a")]).await;
    let mut changed = each_second("a");
    changed.priority = 9;
    let specs = [changed, each_second("b")];
    let applied = w.store.apply_jobs(&specs, true).await.expect("answers");
    assert_eq!(applied[0].change, Change::Updated);
    assert!(applied[0].id.is_some());
    assert_eq!(applied[1].change, Change::Created);
    assert_eq!(applied[1].id, None);
    let a = w.store.job(&name("a")).await.expect("exists");
    assert_eq!(a.job.version, 1);
    assert!(w.store.job(&name("b")).await.is_err());
}

/// One bad definition, and none is applied.
pub async fn apply_is_all_or_nothing(w: &World) {
    let specs = [each_second("a"), child("b", "nobody")];
    let applied = w.store.apply_jobs(&specs, false).await;
    refused(applied, ErrorKind::Invalid, "nobody");
    let twice = [each_second("a"), each_second("a")];
    let applied = w.store.apply_jobs(&twice, false).await;
    refused(applied, ErrorKind::Invalid, "\"a\"");
    assert!(w.store.job(&name("a")).await.is_err());
}

/// A parent is among the jobs given or in the store already.
pub async fn parents_must_exist(w: &World) {
    assert_eq!(
        changes(w, &[child("b", "a"), by_hand("a")]).await,
        [Change::Created, Change::Created],
        "the order does not matter"
    );
    w.apply(&[child("c", "b")]).await;
    let applied = w.store.apply_jobs(&[child("d", "x")], false).await;
    refused(applied, ErrorKind::Invalid, "\"x\"");
    let mut two = child("e", "a");
    if let Some(after) = &mut two.after {
        after.all.push(name("b"));
    }
    let applied = w.store.apply_jobs(&[two], false).await;
    refused(applied, ErrorKind::Invalid, "exactly one");
}

/// A job cannot come after itself, over any number of others.
pub async fn circles_are_refused(w: &World) {
    let applied = w.store.apply_jobs(&[child("a", "a")], false).await;
    refused(applied, ErrorKind::Invalid, "circle");
    w.apply(&[by_hand("a"), child("b", "a"), child("c", "b")])
        .await;
    let applied = w.store.apply_jobs(&[child("a", "c")], false).await;
    refused(applied, ErrorKind::Invalid, "circle");
    // Turned round as a whole it is a line again.
    w.apply(&[by_hand("c"), child("b", "c"), child("a", "b")])
        .await;
}

/// Runs that are not due yet are planned anew by the new definition.
pub async fn edit_withdraws_what_was_written_ahead(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_ahead(node, 1_000).await.runs.remove(0);
    let mut changed = each_second("a");
    changed.priority = 7;
    w.apply(&[changed]).await;
    refused(w.store.run(run.id).await, ErrorKind::NotFound, "no run");
    let taken = w.store.begin_dispatch(node, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("answers"), []);
    assert_eq!(w.next_fire("a").await, Some(START.plus_ms(1_000)));
    let anew = w.fire_ahead(node, 1_000).await.runs.remove(0);
    assert_ne!(anew.id, run.id, "ids are not used again");
    assert_eq!(anew.job.spec.priority, 7);
}

/// Runs past their fire time stay; the claim on them is released, so that somebody takes them by the new definition.
pub async fn edit_lets_waiting_runs_go_out_anew(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    let mut changed = each_second("a");
    changed.priority = 7;
    w.apply(&[changed]).await;
    w.expect(run.id, RunState::Scheduled).await;
    let taken = w.store.begin_dispatch(node, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("answers"), []);
    let claimed = w.claim(node).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, run.id);
    assert_eq!(claimed[0].job.version, 2);
    let taken = w.store.begin_dispatch(node, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("answers"), [], "the old mark stays refused");
    w.begin(node, &claimed[0]).await;
}

/// Stop means stop: what waits ends, what was written ahead is withdrawn, what is out goes on.
pub async fn pause_ends_what_waits(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    w.publish(node, &runs[0]).await;
    let ahead = w.fire_ahead(node, 1_000).await.runs;
    for job in ["a", "b"] {
        let paused = w.store.set_job_enabled(&name(job), false, "ann").await;
        paused.expect("pauses");
    }
    w.expect(runs[0].id, RunState::Queued).await;
    w.expect(runs[1].id, RunState::Skipped).await;
    let message = w.run(runs[1].id).await.message.expect("says why");
    assert!(message.contains("ann"), "{message}");
    for run in &ahead {
        assert!(w.store.run(run.id).await.is_err(), "withdrawn");
        let taken = w.store.begin_dispatch(node, &[mark(run, "e1")]).await;
        assert_eq!(taken.expect("answers"), []);
    }
    let taken = w.store.begin_dispatch(node, &[mark(&runs[1], "e1")]).await;
    assert_eq!(taken.expect("answers"), []);
    assert!(w.claim(node).await.is_empty());
}

/// A pause counts as an edit; pausing a paused job does not.
pub async fn pause_and_resume_are_versions(w: &World) {
    w.apply(&[each_second("a")]).await;
    let job = name("a");
    for (enabled, version) in [(true, 1), (false, 2), (false, 2), (true, 3)] {
        let id = w.store.set_job_enabled(&job, enabled, "me").await;
        let summary = w.store.job(&job).await.expect("exists");
        assert_eq!(id.expect("is done"), summary.job.id);
        assert_eq!(summary.job.version, version);
        assert_eq!(summary.job.spec.is_enabled(), enabled);
    }
    let missing = w.store.set_job_enabled(&name("x"), true, "me").await;
    refused(missing, ErrorKind::NotFound, "\"x\"");
}

/// `enabled: false` in a job file is a pause; a retry that waits ends cancelled.
pub async fn pause_by_edit_ends_what_waits(w: &World) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 1;
    w.apply(&[spec.clone()]).await;
    let retried = w.fire_one(node).await;
    w.publish(node, &retried).await;
    w.end(attempt(&retried), cueline_model::OutcomeKind::Failed)
        .await;
    let waits = w.fire_one(node).await;
    spec.enabled = Some(false);
    w.apply(&[spec]).await;
    w.expect(waits.id, RunState::Skipped).await;
    w.expect(retried.id, RunState::Cancelled).await;
    assert_eq!(w.next_fire("a").await, None);
}

/// A definition that does not say whether it is enabled leaves that as it is.
pub async fn apply_does_not_resume(w: &World) {
    let mut spec = each_second("a");
    spec.enabled = None;
    w.apply(std::slice::from_ref(&spec)).await;
    assert!(w.next_fire("a").await.is_some());
    w.store
        .set_job_enabled(&name("a"), false, "me")
        .await
        .expect("pauses");
    let again = w
        .store
        .apply_jobs(std::slice::from_ref(&spec), false)
        .await
        .expect("applies");
    assert_eq!(again[0].change, crate::Change::Unchanged);
    assert_eq!(w.next_fire("a").await, None);
    "edited".clone_into(&mut spec.description);
    w.apply(std::slice::from_ref(&spec)).await;
    assert_eq!(w.next_fire("a").await, None);
    spec.enabled = Some(true);
    w.apply(&[spec]).await;
    assert!(w.next_fire("a").await.is_some());
}

/// A deleted job leaves its runs behind; its name is free for another job.
pub async fn delete_keeps_runs_and_frees_the_name(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let out = w.fire_one(node).await;
    w.publish(node, &out).await;
    let waits = w.fire_one(node).await;
    let id = w.store.delete_job(&name("a"), "me").await.expect("deletes");
    w.expect(waits.id, RunState::Skipped).await;
    w.expect(out.id, RunState::Queued).await;
    refused(w.store.job(&name("a")).await, ErrorKind::NotFound, "\"a\"");
    refused(
        w.store.delete_job(&name("a"), "me").await,
        ErrorKind::NotFound,
        "\"a\"",
    );
    w.clock.advance(5_000);
    assert_eq!(w.fire(node).await.due_jobs, 0);
    w.end(attempt(&out), cueline_model::OutcomeKind::Succeeded)
        .await;
    w.expect(out.id, RunState::Succeeded).await;
    w.apply(&[each_second("a")]).await;
    let again = w.store.job(&name("a")).await.expect("exists");
    assert_ne!(again.job.id, id, "ids are not used again");
}

/// Children would never run again.
pub async fn parent_cannot_be_deleted(w: &World) {
    w.apply(&[by_hand("a"), child("b", "a")]).await;
    let deleted = w.store.delete_job(&name("a"), "me").await;
    refused(deleted, ErrorKind::Conflict, "b");
    w.store.delete_job(&name("b"), "me").await.expect("deletes");
    w.store.delete_job(&name("a"), "me").await.expect("deletes");
}

/// Whoever changes a job can wait until nothing of the old definition is on its way.
pub async fn publishing_counts(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), by_hand("b")]).await;
    let run = w.fire_one(node).await;
    let jobs = [run.job.id];
    assert_eq!(w.dispatching_count(&jobs).await, 0);
    w.begin(node, &run).await;
    assert_eq!(w.dispatching_count(&jobs).await, 1);
    let b = w.store.job(&name("b")).await.expect("exists").job.id;
    assert_eq!(w.dispatching_count(&[b]).await, 0);
    let confirmed = w.store.confirm_dispatch(&[attempt(&run)]).await;
    confirmed.expect("confirms");
    assert_eq!(w.dispatching_count(&jobs).await, 0);
}

/// Runs of deleted jobs can still be told about.
pub async fn definitions_of_deleted_jobs_remain(w: &World) {
    w.apply(&[by_hand("a"), by_hand("b")]).await;
    let a = w.store.delete_job(&name("a"), "me").await.expect("deletes");
    let b = w.store.job(&name("b")).await.expect("exists").job.id;
    let missing = cueline_model::JobId(b.0 + 1_000);
    let found = w.store.definitions(&[b, missing, a]).await.expect("reads");
    let mut names: Vec<_> = found.iter().map(|j| j.spec.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
}

/// Pages follow each other without gaps.
pub async fn jobs_are_listed_by_name(w: &World) {
    w.apply(&["c", "a", "d", "b", "Z", "é"].map(by_hand)).await;
    let page = w.store.jobs(None, 4).await.expect("lists");
    let names: Vec<_> = page.iter().map(|s| s.job.spec.name.as_str()).collect();
    assert_eq!(names, ["Z", "a", "b", "c"], "by their bytes");
    let last = &page[3].job.spec.name;
    let page = w.store.jobs(Some(last), 4).await.expect("lists");
    let names: Vec<_> = page.iter().map(|s| s.job.spec.name.as_str()).collect();
    assert_eq!(names, ["d", "é"]);
}

/// Each refusal names the job.
pub async fn missing_jobs_are_named(w: &World) {
    let x = name("x");
    refused(w.store.job(&x).await, ErrorKind::NotFound, "\"x\"");
    let ledger = w.store.ledger(&x, START, START, 1).await;
    refused(ledger, ErrorKind::NotFound, "\"x\"");
    let filter = crate::RunFilter {
        job: Some(x),
        limit: 1,
        ..crate::RunFilter::default()
    };
    refused(w.store.runs(&filter).await, ErrorKind::NotFound, "\"x\"");
}
