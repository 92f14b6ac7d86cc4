//! Pausing, resuming and deleting jobs.

use cueline_model::RunState;

use super::fixture::{Fixture, actor, attempt, by_hand, child, each_second, mark, name, refused};
use crate::ErrorKind;

/// Stop means stop: waiting runs end, runs ahead of their fire time are withdrawn, published ones continue.
pub async fn pause_ends_waiting_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    fixture.publish(node, &runs[0]).await;
    let ahead = fixture.fire_ahead(node, 1_000).await.runs;
    for job in ["a", "b"] {
        let paused = fixture
            .store
            .set_job_enabled(&name(job), false, &actor("ann"))
            .await;
        paused.expect("pauses");
    }
    fixture.expect(runs[0].id, RunState::Queued).await;
    fixture.expect(runs[1].id, RunState::Skipped).await;
    let message = fixture.run(runs[1].id).await.message.expect("says why");
    assert!(message.contains("ann"), "{message}");
    for run in &ahead {
        assert!(fixture.store.run(run.id).await.is_err(), "withdrawn");
        let taken = fixture.store.begin_dispatch(node, &[mark(run, "e1")]).await;
        assert_eq!(taken.expect("answers"), []);
    }
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&runs[1], "e1")])
        .await;
    assert_eq!(taken.expect("answers"), []);
    assert!(fixture.claim(node).await.is_empty());
}

/// A pause counts as an edit; pausing a paused job does not.
pub async fn pause_and_resume_are_versions(fixture: &Fixture) {
    fixture.apply(&[each_second("a")]).await;
    let job = name("a");
    for (enabled, version) in [(true, 1), (false, 2), (false, 2), (true, 3)] {
        let id = fixture
            .store
            .set_job_enabled(&job, enabled, &actor("me"))
            .await;
        let summary = fixture.store.job(&job).await.expect("exists");
        assert_eq!(id.expect("is done"), summary.job.id);
        assert_eq!(summary.job.version, version);
        assert_eq!(summary.job.spec.is_enabled(), enabled);
    }
    let missing = fixture
        .store
        .set_job_enabled(&name("x"), true, &actor("me"))
        .await;
    refused(missing, ErrorKind::NotFound, "\"x\"");
}

/// A newer program's field stays when this one pauses or resumes the job.
pub async fn pause_keeps_what_it_does_not_know(fixture: &Fixture) {
    fixture.apply(&[each_second("a")]).await;
    let (job, harness) = (name("a"), &fixture.harness);
    harness
        .sql(r#"UPDATE job SET definition = replace(definition, '"name":', '"later":{"deep":[1,"x"]},"name":')"#)
        .await;
    // A process that has not cached the definition.
    let other = harness.open().await;
    for enabled in [false, true] {
        let set = other.set_job_enabled(&job, enabled, &actor("me")).await;
        set.expect("is done");
        let text = harness.sql("SELECT definition FROM job").await;
        assert!(text.contains(r#""later":{"deep":[1,"x"]}"#), "{text}");
        let summary = fixture.store.job(&job).await.expect("exists");
        assert_eq!(summary.job.spec.enabled, Some(enabled));
        assert_eq!(summary.next_fire.is_some(), enabled);
    }
}

/// A pause and a deletion do not need the definition. A resume does, for the next fire time.
pub async fn an_unreadable_job_can_be_paused_and_deleted(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("p"), child("a", "p")]).await;
    let run = fixture.trigger("a").await.remove(0);
    let harness = &fixture.harness;
    harness
        .sql(r#"UPDATE job SET definition = replace(definition, '"native"', '"later"') WHERE name = 'a'"#)
        .await;
    let older = harness.open().await;
    let paused = older
        .set_job_enabled(&name("a"), false, &actor("ann"))
        .await;
    paused.expect("pauses");
    fixture.expect(run, RunState::Skipped).await;
    assert!(fixture.claim(node).await.is_empty());
    let resumed = older.set_job_enabled(&name("a"), true, &actor("ann")).await;
    refused(resumed, ErrorKind::Broken, "failed to read job");
    older
        .delete_job(&name("a"), &actor("ann"))
        .await
        .expect("deletes");
    older
        .delete_job(&name("p"), &actor("ann"))
        .await
        .expect("it has no children any more");
}

/// `enabled: false` in a job file is a pause; a waiting retry ends `cancelled`.
pub async fn pause_by_edit_ends_waiting_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 1;
    fixture.apply(&[spec.clone()]).await;
    let retried = fixture.fire_one(node).await;
    fixture.publish(node, &retried).await;
    fixture
        .end(attempt(&retried), cueline_model::OutcomeKind::Failed)
        .await;
    let waits = fixture.fire_one(node).await;
    spec.enabled = Some(false);
    fixture.apply(&[spec]).await;
    fixture.expect(waits.id, RunState::Skipped).await;
    fixture.expect(retried.id, RunState::Cancelled).await;
    assert_eq!(fixture.next_fire("a").await, None);
}

/// A definition without `enabled` keeps the present value.
pub async fn apply_does_not_resume(fixture: &Fixture) {
    let mut spec = each_second("a");
    spec.enabled = None;
    fixture.apply(std::slice::from_ref(&spec)).await;
    assert!(fixture.next_fire("a").await.is_some());
    fixture
        .store
        .set_job_enabled(&name("a"), false, &actor("me"))
        .await
        .expect("pauses");
    let again = fixture
        .store
        .apply_jobs(std::slice::from_ref(&spec), false, &actor("a test"))
        .await
        .expect("applies");
    assert_eq!(again[0].change, crate::Change::Unchanged);
    assert_eq!(fixture.next_fire("a").await, None);
    "edited".clone_into(&mut spec.description);
    fixture.apply(std::slice::from_ref(&spec)).await;
    assert_eq!(fixture.next_fire("a").await, None);
    spec.enabled = Some(true);
    fixture.apply(&[spec]).await;
    assert!(fixture.next_fire("a").await.is_some());
}

/// The runs of a deleted job stay; another job may have its name.
pub async fn delete_keeps_runs_and_frees_the_name(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let out = fixture.fire_one(node).await;
    fixture.publish(node, &out).await;
    let waits = fixture.fire_one(node).await;
    let id = fixture
        .store
        .delete_job(&name("a"), &actor("me"))
        .await
        .expect("deletes");
    fixture.expect(waits.id, RunState::Skipped).await;
    fixture.expect(out.id, RunState::Queued).await;
    refused(
        fixture.store.job(&name("a")).await,
        ErrorKind::NotFound,
        "\"a\"",
    );
    refused(
        fixture.store.delete_job(&name("a"), &actor("me")).await,
        ErrorKind::NotFound,
        "\"a\"",
    );
    fixture.clock.advance(5_000);
    assert_eq!(fixture.fire(node).await.due_jobs, 0);
    fixture
        .end(attempt(&out), cueline_model::OutcomeKind::Succeeded)
        .await;
    fixture.expect(out.id, RunState::Succeeded).await;
    fixture.apply(&[each_second("a")]).await;
    let again = fixture.store.job(&name("a")).await.expect("exists");
    assert_ne!(again.job.id, id, "ids are not used again");
}

/// Its children would never run again.
pub async fn parent_cannot_be_deleted(fixture: &Fixture) {
    fixture.apply(&[by_hand("a"), child("b", "a")]).await;
    let deleted = fixture.store.delete_job(&name("a"), &actor("me")).await;
    refused(deleted, ErrorKind::Conflict, "b");
    fixture
        .store
        .delete_job(&name("b"), &actor("me"))
        .await
        .expect("deletes");
    fixture
        .store
        .delete_job(&name("a"), &actor("me"))
        .await
        .expect("deletes");
}
