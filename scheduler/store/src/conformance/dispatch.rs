//! The guarded steps around a publication.

use cueline_model::{AttemptEvent, AttemptId, OutcomeKind, RunKind, RunState};

use super::world::{World, attempt, by_hand, each_second, mark, name, report};
use crate::adapter::timeline::STOPPED_MEANWHILE;

/// `scheduled` → `dispatching` → `queued`.
pub async fn begin_takes_scheduled_runs(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    let marks = [mark(&runs[1], "e2"), mark(&runs[0], "e1")];
    let taken = w.store.begin_dispatch(node, &marks).await.expect("begins");
    assert_eq!(taken, [attempt(&runs[1]), attempt(&runs[0])], "in order");
    let seen = w.run(runs[1].id).await;
    assert_eq!(seen.state, RunState::Dispatching);
    assert_eq!(seen.executor, Some(name("e2")));
    w.clock.advance(5);
    w.store.confirm_dispatch(&taken).await.expect("confirms");
    let seen = w.run(runs[1].id).await;
    assert_eq!(seen.state, RunState::Queued);
    assert_eq!(seen.queued_at, Some(w.now()));
    assert!(
        w.store
            .begin_dispatch(node, &[])
            .await
            .expect("ok")
            .is_empty()
    );
    w.store.confirm_dispatch(&[]).await.expect("nothing to do");
}

/// A node may ask again for what it is publishing.
pub async fn begin_is_repeatable(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    w.begin(node, &runs[0]).await;
    let marks = [mark(&runs[0], "e1"), mark(&runs[1], "e1")];
    let taken = w.store.begin_dispatch(node, &marks).await.expect("begins");
    assert_eq!(taken, [attempt(&runs[0]), attempt(&runs[1])]);
    let other = w.store.begin_dispatch(node, &[mark(&runs[0], "e2")]).await;
    assert_eq!(other.expect("answers"), [], "another executor");
}

/// Another node, another attempt, a run that is further: not taken, and the rest of the batch is.
pub async fn begin_refuses_others(w: &World) {
    let (node, other) = (w.node().await, w.node().await);
    w.apply(&[each_second("a"), each_second("b"), each_second("c")])
        .await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    w.publish(node, &runs[0]).await;
    let mut newer = mark(&runs[1], "e1");
    newer.attempt.attempt = 2;
    let mut unknown = mark(&runs[1], "e1");
    unknown.attempt.run.0 += 1_000;
    let marks = [mark(&runs[0], "e1"), newer, unknown, mark(&runs[2], "e1")];
    let taken = w.store.begin_dispatch(node, &marks).await.expect("begins");
    assert_eq!(taken, [attempt(&runs[2])]);
    let taken = w.store.begin_dispatch(other, &[mark(&runs[1], "e1")]).await;
    assert_eq!(taken.expect("answers"), []);
    w.expect(runs[1].id, RunState::Scheduled).await;
}

/// Stop means stop: a trigger made from an older definition is not published.
pub async fn begin_refuses_an_older_version(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    let mut wrong = mark(&run, "e1");
    wrong.job_version += 1;
    let taken = w.store.begin_dispatch(node, &[wrong]).await;
    assert_eq!(taken.expect("answers"), []);
    w.begin(node, &run).await;
}

/// A confirmation that comes last changes nothing.
pub async fn confirm_leaves_alone_what_went_further(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b"), each_second("c")])
        .await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    for run in &runs {
        w.begin(node, run).await;
    }
    let started = AttemptEvent::Started { at: w.now() };
    w.ingest(&[report(attempt(&runs[0]), started)]).await;
    w.end(attempt(&runs[1]), OutcomeKind::Succeeded).await;
    let mut ids: Vec<AttemptId> = runs.iter().map(attempt).collect();
    ids.push(AttemptId {
        run: runs[2].id,
        attempt: 7,
    });
    w.store.confirm_dispatch(&ids).await.expect("confirms");
    w.expect(runs[0].id, RunState::Running).await;
    w.expect(runs[1].id, RunState::Succeeded).await;
    w.expect(runs[2].id, RunState::Queued).await;
    let older = [AttemptId {
        run: runs[2].id,
        attempt: 7,
    }];
    w.store
        .confirm_dispatch(&older)
        .await
        .expect("does nothing");
    w.expect(runs[2].id, RunState::Queued).await;
}

/// Released runs are found again, at their time.
pub async fn release_gives_the_claim_up(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    w.begin(node, &runs[0]).await;
    let ids: Vec<AttemptId> = runs.iter().map(attempt).collect();
    let later = w.now().plus_ms(2_000);
    let released = w.store.release_claims(node, &ids, Some(later)).await;
    released.expect("releases");
    w.expect(runs[0].id, RunState::Scheduled).await;
    assert!(w.claim(node).await.is_empty(), "not before its time");
    w.clock.advance(2_000);
    let claimed = w.claim(node).await;
    assert_eq!(claimed.len(), 2);
    assert!(
        claimed
            .iter()
            .all(|r| !r.maybe_published && r.executor.is_none())
    );
    w.store
        .release_claims(node, &ids, None)
        .await
        .expect("releases");
    assert_eq!(w.claim(node).await.len(), 2, "at once");
    let other = w.node().await;
    w.store
        .release_claims(other, &ids, None)
        .await
        .expect("does nothing");
    assert!(w.claim(other).await.is_empty(), "only its own");
}

/// What may be in an executor's queue already does not go back to `scheduled`: it could be routed elsewhere and run twice.
pub async fn release_keeps_what_may_be_published(w: &World) {
    let dies = w.node_for(10_000).await;
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(dies).await;
    w.begin(dies, &run).await;
    w.clock.advance(10_000);
    let claimed = w.claim(node).await;
    let ids = [attempt(&claimed[0])];
    w.store
        .release_claims(node, &ids, None)
        .await
        .expect("releases");
    w.expect(run.id, RunState::Dispatching).await;
    let claimed = w.claim(node).await;
    assert!(claimed[0].maybe_published);
    assert_eq!(claimed[0].executor, Some(name("e1")));
}

/// Cancelled while it was being published, and then not published: there is nobody to ask.
pub async fn released_cancelled_run_ends(w: &World) {
    let node = w.node().await;
    w.apply(&[by_hand("a")]).await;
    w.trigger("a").await;
    let run = w.claim(node).await.remove(0);
    w.begin(node, &run).await;
    w.store.cancel_run(run.id, "me").await.expect("is asked");
    let ids = [attempt(&run)];
    w.store
        .release_claims(node, &ids, None)
        .await
        .expect("releases");
    w.expect(run.id, RunState::Cancelled).await;
    assert!(w.claim(node).await.is_empty());
}

/// Its job was paused, or deleted, while it was being published, and then it was not: whoever paused it waits for no more than that.
pub async fn released_run_of_a_stopped_job_ends(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("paused"), each_second("deleted")])
        .await;
    w.clock.advance(1_000);
    let mut runs = w.fire(node).await.runs;
    w.trigger("paused").await;
    w.trigger("deleted").await;
    runs.extend(w.claim(node).await);
    assert_eq!(runs.len(), 4);
    for run in &runs {
        w.begin(node, run).await;
    }
    let paused = w.store.set_job_enabled(&name("paused"), false, "me").await;
    let deleted = w.store.delete_job(&name("deleted"), "me").await;
    let stopped = [paused.expect("pauses"), deleted.expect("deletes")];
    assert_eq!(w.dispatching_count(&stopped).await, 4);
    let ids: Vec<AttemptId> = runs.iter().map(attempt).collect();
    let released = w.store.release_claims(node, &ids, None).await;
    released.expect("releases");
    assert_eq!(w.dispatching_count(&stopped).await, 0);
    for run in &runs {
        if run.job.spec.name == name("paused") && run.kind == RunKind::Manual {
            w.expect(run.id, RunState::Scheduled).await;
            continue;
        }
        w.expect(run.id, RunState::Skipped).await;
        let message = w.run(run.id).await.message;
        assert_eq!(message.as_deref(), Some(STOPPED_MEANWHILE));
        let timeline = w.timeline(run.id).await;
        assert_eq!(timeline.last().map(String::as_str), Some("skipped"));
    }
    let again = w.claim(node).await;
    assert_eq!(again.len(), 1, "triggered by hand, and its job is there");
    w.begin(node, &again[0]).await;
}
