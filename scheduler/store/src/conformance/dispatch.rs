//! The guarded transitions around a publication.

use cueline_model::{AttemptEvent, AttemptId, OutcomeKind, RunKind, RunState};

use super::fixture::{Fixture, actor, attempt, by_hand, each_second, mark, name, report};
use crate::adapter::timeline::STOPPED_MEANWHILE;

/// `scheduled` → `dispatching` → `queued`.
pub async fn begin_marks_scheduled_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    let marks = [mark(&runs[1], "e2"), mark(&runs[0], "e1")];
    let taken = fixture
        .store
        .begin_dispatch(node, &marks)
        .await
        .expect("begins");
    assert_eq!(taken, [attempt(&runs[1]), attempt(&runs[0])], "in order");
    let seen = fixture.run(runs[1].id).await;
    assert_eq!(seen.state, RunState::Dispatching);
    assert_eq!(seen.executor, Some(name("e2")));
    fixture.clock.advance(5);
    fixture
        .store
        .confirm_dispatch(&taken)
        .await
        .expect("confirms");
    let seen = fixture.run(runs[1].id).await;
    assert_eq!(seen.state, RunState::Queued);
    assert_eq!(seen.queued_at, Some(fixture.now()));
    assert!(
        fixture
            .store
            .begin_dispatch(node, &[])
            .await
            .expect("ok")
            .is_empty()
    );
    fixture
        .store
        .confirm_dispatch(&[])
        .await
        .expect("nothing to do");
}

/// A node may mark runs again that it is publishing.
pub async fn begin_is_repeatable(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    fixture.begin(node, &runs[0]).await;
    let marks = [mark(&runs[0], "e1"), mark(&runs[1], "e1")];
    let taken = fixture
        .store
        .begin_dispatch(node, &marks)
        .await
        .expect("begins");
    assert_eq!(taken, [attempt(&runs[0]), attempt(&runs[1])]);
    let other = fixture
        .store
        .begin_dispatch(node, &[mark(&runs[0], "e2")])
        .await;
    assert_eq!(other.expect("answers"), [], "another executor");
}

/// Marks of another node, of another attempt or of a later state are refused; the rest of the batch is accepted.
pub async fn begin_refuses_others(fixture: &Fixture) {
    let (node, other) = (fixture.node().await, fixture.node().await);
    fixture
        .apply(&[each_second("a"), each_second("b"), each_second("c")])
        .await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    fixture.publish(node, &runs[0]).await;
    let mut newer = mark(&runs[1], "e1");
    newer.attempt.attempt = 2;
    let mut unknown = mark(&runs[1], "e1");
    unknown.attempt.run.0 += 1_000;
    let marks = [mark(&runs[0], "e1"), newer, unknown, mark(&runs[2], "e1")];
    let taken = fixture
        .store
        .begin_dispatch(node, &marks)
        .await
        .expect("begins");
    assert_eq!(taken, [attempt(&runs[2])]);
    let taken = fixture
        .store
        .begin_dispatch(other, &[mark(&runs[1], "e1")])
        .await;
    assert_eq!(taken.expect("answers"), []);
    fixture.expect(runs[1].id, RunState::Scheduled).await;
}

/// Stop means stop: a trigger of an older definition is not published.
pub async fn begin_refuses_an_older_version(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    let mut wrong = mark(&run, "e1");
    wrong.job_version += 1;
    let taken = fixture.store.begin_dispatch(node, &[wrong]).await;
    assert_eq!(taken.expect("answers"), []);
    fixture.begin(node, &run).await;
}

/// The run has left `dispatching` before its confirmation comes.
pub async fn late_confirmation_changes_nothing(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[each_second("a"), each_second("b"), each_second("c")])
        .await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs {
        fixture.begin(node, run).await;
    }
    let started = AttemptEvent::Started { at: fixture.now() };
    fixture.ingest(&[report(attempt(&runs[0]), started)]).await;
    fixture.end(attempt(&runs[1]), OutcomeKind::Succeeded).await;
    let mut ids: Vec<AttemptId> = runs.iter().map(attempt).collect();
    ids.push(AttemptId {
        run: runs[2].id,
        attempt: 7,
    });
    fixture
        .store
        .confirm_dispatch(&ids)
        .await
        .expect("confirms");
    fixture.expect(runs[0].id, RunState::Running).await;
    fixture.expect(runs[1].id, RunState::Succeeded).await;
    fixture.expect(runs[2].id, RunState::Queued).await;
    let older = [AttemptId {
        run: runs[2].id,
        attempt: 7,
    }];
    fixture
        .store
        .confirm_dispatch(&older)
        .await
        .expect("does nothing");
    fixture.expect(runs[2].id, RunState::Queued).await;
}

/// Released runs are claimed again at their due time.
pub async fn released_runs_are_claimable(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    fixture.begin(node, &runs[0]).await;
    let ids: Vec<AttemptId> = runs.iter().map(attempt).collect();
    let later = fixture.now().plus_ms(2_000);
    let released = fixture.store.release_claims(node, &ids, Some(later)).await;
    released.expect("releases");
    fixture.expect(runs[0].id, RunState::Scheduled).await;
    assert!(fixture.claim(node).await.is_empty(), "not before its time");
    fixture.clock.advance(2_000);
    let claimed = fixture.claim(node).await;
    assert_eq!(claimed.len(), 2);
    assert!(
        claimed
            .iter()
            .all(|r| !r.maybe_published && r.executor.is_none())
    );
    fixture
        .store
        .release_claims(node, &ids, None)
        .await
        .expect("releases");
    assert_eq!(fixture.claim(node).await.len(), 2, "at once");
    let other = fixture.node().await;
    fixture
        .store
        .release_claims(other, &ids, None)
        .await
        .expect("does nothing");
    assert!(fixture.claim(other).await.is_empty(), "only its own");
}

/// A trigger that may be in a queue does not return to `scheduled`: another executor could run it as well.
pub async fn release_keeps_possibly_published_runs(fixture: &Fixture) {
    let dies = fixture.node_for(10_000).await;
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(dies).await;
    fixture.begin(dies, &run).await;
    fixture.clock.advance(10_000);
    let claimed = fixture.claim(node).await;
    let ids = [attempt(&claimed[0])];
    fixture
        .store
        .release_claims(node, &ids, None)
        .await
        .expect("releases");
    fixture.expect(run.id, RunState::Dispatching).await;
    let claimed = fixture.claim(node).await;
    assert!(claimed[0].maybe_published);
    assert_eq!(claimed[0].executor, Some(name("e1")));
}

/// A run is cancelled during its publication, which then fails. No executor can end it, so the release does.
pub async fn released_cancelled_run_ends(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    fixture.trigger("a").await;
    let run = fixture.claim(node).await.remove(0);
    fixture.begin(node, &run).await;
    fixture
        .store
        .cancel_run(run.id, &actor("me"))
        .await
        .expect("is asked");
    let ids = [attempt(&run)];
    fixture
        .store
        .release_claims(node, &ids, None)
        .await
        .expect("releases");
    fixture.expect(run.id, RunState::Cancelled).await;
    assert!(fixture.claim(node).await.is_empty());
}

/// The job is paused or deleted during the publication of its run, which then fails. The release ends the run, so that
/// the pause need not wait longer.
pub async fn released_run_of_a_stopped_job_ends(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[each_second("paused"), each_second("deleted")])
        .await;
    fixture.clock.advance(1_000);
    let mut runs = fixture.fire(node).await.runs;
    fixture.trigger("paused").await;
    fixture.trigger("deleted").await;
    runs.extend(fixture.claim(node).await);
    assert_eq!(runs.len(), 4);
    for run in &runs {
        fixture.begin(node, run).await;
    }
    let paused = fixture
        .store
        .set_job_enabled(&name("paused"), false, &actor("me"))
        .await;
    let deleted = fixture
        .store
        .delete_job(&name("deleted"), &actor("me"))
        .await;
    let stopped = [paused.expect("pauses"), deleted.expect("deletes")];
    assert_eq!(fixture.dispatching_count(&stopped).await, 4);
    let ids: Vec<AttemptId> = runs.iter().map(attempt).collect();
    let released = fixture.store.release_claims(node, &ids, None).await;
    released.expect("releases");
    assert_eq!(fixture.dispatching_count(&stopped).await, 0);
    for run in &runs {
        if run.job.spec.name == name("paused") && run.kind == RunKind::Manual {
            fixture.expect(run.id, RunState::Scheduled).await;
            continue;
        }
        fixture.expect(run.id, RunState::Skipped).await;
        let message = fixture.run(run.id).await.message;
        assert_eq!(message.as_deref(), Some(STOPPED_MEANWHILE));
        let timeline = fixture.timeline(run.id).await;
        assert_eq!(timeline.last().map(String::as_str), Some("skipped"));
    }
    let again = fixture.claim(node).await;
    assert_eq!(again.len(), 1, "triggered by hand, and its job is there");
    fixture.begin(node, &again[0]).await;
}
