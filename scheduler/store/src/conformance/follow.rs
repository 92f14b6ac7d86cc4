//! What follows from ends: child runs, each once, and fixed-delay fire times.

use cueline_model::{
    After, AfterOn, AttemptEvent, DurationMs, JobSpec, Outcome, OutcomeKind, Route, RunKind,
    RunState, Schedule, Timestamp,
};

use super::world::{World, attempt, by_hand, each_second, job_with, name, report};
use crate::{ClaimedRun, IngestSummary, NodeId};

fn child(job: &str, parent: &str) -> JobSpec {
    let mut spec = by_hand(job);
    spec.after = Some(After {
        all: vec![name(parent)],
        on: AfterOn::Success,
        pass_output: false,
    });
    spec
}

fn shards(mut spec: JobSpec, count: usize) -> JobSpec {
    spec.route = Route::Sharded(vec![String::new(); count]);
    spec
}

/// Claims the runs of a job triggered by hand and publishes them.
async fn out(w: &World, node: NodeId, job: &str) -> Vec<ClaimedRun> {
    w.trigger(job).await;
    let runs = w.claim(node).await;
    for run in &runs {
        w.publish(node, run).await;
    }
    runs
}

/// The last shard's success makes the child run, and no repetition makes another.
pub async fn children_run_once_after_all_shards(w: &World) {
    let node = w.node().await;
    let specs = [
        shards(each_second("a"), 3),
        child("b", "a"),
        shards(child("c", "a"), 2),
    ];
    w.apply(&specs).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    w.clock.advance(400);
    for run in &runs {
        w.publish(node, run).await;
    }
    for run in &runs[..2] {
        let done = w.end(attempt(run), OutcomeKind::Succeeded).await;
        assert_eq!((done.ended, done.child_runs), (1, 0));
    }
    assert!(w.claim(node).await.is_empty());
    let done = w.end(attempt(&runs[2]), OutcomeKind::Succeeded).await;
    assert_eq!((done.ended, done.child_runs), (1, 3));
    assert_eq!(done.next_due_at, Some(w.now()));
    for run in &runs {
        let done = w.end(attempt(run), OutcomeKind::Succeeded).await;
        assert_eq!((done.ignored, done.child_runs), (1, 0));
    }
    let children = w.claim(node).await;
    assert_eq!(children.len(), 3);
    for run in &children {
        assert_eq!(run.kind, RunKind::Child);
        assert_eq!(run.fire_at, runs[0].fire_at, "the parent's fire time");
        assert_eq!(run.due_at, w.now());
        assert_eq!(w.run(run.id).await.parent, Some(runs[2].id));
    }
    // The next fire of the parent is told apart.
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    for run in &runs {
        w.publish(node, run).await;
    }
    let ends: Vec<_> = runs
        .iter()
        .map(|run| {
            let outcome = Outcome::new(OutcomeKind::Succeeded, w.now());
            report(attempt(run), AttemptEvent::Ended { outcome })
        })
        .collect();
    assert_eq!(w.ingest(&ends).await.child_runs, 3, "all in one batch");
}

/// One failed shard, and the fire has not succeeded.
pub async fn failed_shard_holds_children_back(w: &World) {
    let node = w.node().await;
    w.apply(&[shards(by_hand("a"), 2), child("b", "a")]).await;
    let runs = out(w, node, "a").await;
    w.end(attempt(&runs[0]), OutcomeKind::Failed).await;
    let done = w.end(attempt(&runs[1]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 0);
    assert!(w.claim(node).await.is_empty());
}

/// `pass_output`.
pub async fn children_take_the_output(w: &World) {
    let node = w.node().await;
    let mut takes = child("takes", "a");
    if let Some(after) = &mut takes.after {
        after.pass_output = true;
    }
    w.apply(&[by_hand("a"), takes, child("leaves", "a")]).await;
    let runs = out(w, node, "a").await;
    let mut outcome = Outcome::new(OutcomeKind::Succeeded, w.now());
    outcome.output = Some("42 \"é\"".to_owned());
    w.ingest(&[report(attempt(&runs[0]), AttemptEvent::Ended { outcome })])
        .await;
    let mut children = w.claim(node).await;
    children.sort_by(|a, b| a.job.spec.name.cmp(&b.job.spec.name));
    assert_eq!(children[0].params, None);
    assert_eq!(children[1].params.as_deref(), Some("42 \"é\""));
}

/// A chain goes on.
pub async fn children_of_children(w: &World) {
    let node = w.node().await;
    w.apply(&[by_hand("a"), child("b", "a"), child("c", "b")])
        .await;
    let a = out(w, node, "a").await.remove(0);
    w.end(attempt(&a), OutcomeKind::Succeeded).await;
    let b = w.claim(node).await.remove(0);
    assert_eq!(b.job.spec.name.as_str(), "b");
    assert_eq!(w.succeed(node, &b).await.child_runs, 1);
    let c = w.claim(node).await.remove(0);
    assert_eq!(c.job.spec.name.as_str(), "c");
    assert_eq!(c.fire_at, a.fire_at);
    assert_eq!(w.succeed(node, &c).await.child_runs, 0);
}

/// A paused or deleted child does not run; one that is let go of by an edit neither.
pub async fn paused_child_is_left_out(w: &World) {
    let node = w.node().await;
    let specs = ["paused", "deleted", "moved"].map(|job| child(job, "a"));
    w.apply(&[by_hand("a"), child("b", "a")]).await;
    w.apply(&specs).await;
    let paused = w.store.set_job_enabled(&name("paused"), false, "me").await;
    paused.expect("pauses");
    let deleted = w.store.delete_job(&name("deleted"), "me").await;
    deleted.expect("deletes");
    w.apply(&[by_hand("moved")]).await;
    let a = out(w, node, "a").await.remove(0);
    let done = w.end(attempt(&a), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
}

/// Two triggers of a sharded job at the same instant are two fires.
pub async fn manual_fires_are_told_apart(w: &World) {
    let node = w.node().await;
    w.apply(&[shards(by_hand("a"), 2), child("b", "a")]).await;
    let first = out(w, node, "a").await;
    let second = out(w, node, "a").await;
    assert_eq!((first.len(), second.len()), (2, 2));
    w.end(attempt(&first[0]), OutcomeKind::Succeeded).await;
    let done = w.end(attempt(&second[0]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 0, "one shard of each");
    let done = w.end(attempt(&first[1]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
    let done = w.end(attempt(&second[1]), OutcomeKind::Failed).await;
    assert_eq!(done.child_runs, 0);
}

/// A broadcast child has one run for each live executor.
pub async fn broadcast_child_runs_on_all(w: &World) {
    let node = w.node().await;
    let mut b = child("b", "a");
    b.route = Route::Broadcast;
    w.apply(&[by_hand("a"), b]).await;
    w.heartbeats(&["e1", "e2", "e3"]).await;
    let a = out(w, node, "a").await.remove(0);
    assert_eq!(
        w.end(attempt(&a), OutcomeKind::Succeeded).await.child_runs,
        3
    );
    let pins: Vec<_> = w
        .claim(node)
        .await
        .into_iter()
        .map(|r| r.executor)
        .collect();
    assert_eq!(pins, ["e1", "e2", "e3"].map(|e| Some(name(e))));
}

fn fixed_delay(job: &str) -> JobSpec {
    let after = DurationMs::secs(30);
    job_with(job, Schedule::FixedDelay { after })
}

async fn next(w: &World) -> Option<Timestamp> {
    w.next_fire("d").await
}

/// While a run is live there is no next fire time; afterwards it is the end plus the delay, however the run ended.
pub async fn fixed_delay_counts_from_the_end(w: &World) {
    let node = w.node().await;
    let mut spec = fixed_delay("d");
    spec.retry.max = 1;
    w.apply(&[spec]).await;
    assert_eq!(next(w).await, Some(w.now().plus_ms(30_000)));
    for kind in [
        OutcomeKind::Succeeded,
        OutcomeKind::Cancelled,
        OutcomeKind::Discarded,
    ] {
        w.clock.advance(30_000);
        let run = w.fire(node).await.runs.remove(0);
        assert_eq!(next(w).await, None);
        w.publish(node, &run).await;
        w.clock.advance(7_000);
        let done = w.end(attempt(&run), kind).await;
        assert_eq!(next(w).await, Some(w.now().plus_ms(30_000)));
        assert_eq!(done.next_due_at, next(w).await);
    }
    w.clock.advance(30_000);
    let run = w.fire(node).await.runs.remove(0);
    w.publish(node, &run).await;
    w.end(attempt(&run), OutcomeKind::Failed).await;
    assert_eq!(next(w).await, None, "a retry is still the same run");
    w.clock.advance(60_000);
    let run = w.claim(node).await.remove(0);
    w.publish(node, &run).await;
    w.end(attempt(&run), OutcomeKind::Failed).await;
    w.expect(run.id, RunState::Failed).await;
    assert_eq!(next(w).await, Some(w.now().plus_ms(30_000)));
}

/// All shards, and runs by hand too.
pub async fn fixed_delay_waits_for_the_last_run(w: &World) {
    let node = w.node().await;
    w.apply(&[shards(fixed_delay("d"), 2)]).await;
    w.clock.advance(30_000);
    let runs = w.fire(node).await.runs;
    for run in &runs {
        w.publish(node, run).await;
    }
    w.end(attempt(&runs[0]), OutcomeKind::Succeeded).await;
    assert_eq!(next(w).await, None);
    w.clock.advance(1_000);
    let IngestSummary { next_due_at, .. } = w.end(attempt(&runs[1]), OutcomeKind::Failed).await;
    assert_eq!(next_due_at, Some(w.now().plus_ms(30_000)));
    assert_eq!(next(w).await, next_due_at);
    let paused = w.store.set_job_enabled(&name("d"), false, "me").await;
    paused.expect("pauses");
    let by_hand = out(w, node, "d").await;
    for run in &by_hand {
        w.end(attempt(run), OutcomeKind::Succeeded).await;
    }
    assert_eq!(next(w).await, None, "a paused job stays so");
}

/// An end is an end.
pub async fn fixed_delay_follows_a_cancel(w: &World) {
    let node = w.node().await;
    w.apply(&[fixed_delay("d")]).await;
    w.clock.advance(30_000);
    let run = w.fire(node).await.runs.remove(0);
    w.clock.advance(5_000);
    w.store.cancel_run(run.id, "me").await.expect("cancels");
    assert_eq!(next(w).await, Some(w.now().plus_ms(30_000)));
}

/// Its delay begins at the end of the run that is out, whatever people do meanwhile.
pub async fn an_edit_does_not_begin_a_fixed_delay(w: &World) {
    let node = w.node().await;
    w.apply(&[fixed_delay("d")]).await;
    w.clock.advance(30_000);
    let run = w.fire(node).await.runs.remove(0);
    w.publish(node, &run).await;
    let mut edited = fixed_delay("d");
    edited.priority = 9;
    w.apply(&[edited]).await;
    assert_eq!(next(w).await, None);
    for enabled in [false, true] {
        let switched = w.store.set_job_enabled(&name("d"), enabled, "me").await;
        switched.expect("switches");
        assert_eq!(next(w).await, None);
    }
    w.clock.advance(60_000);
    assert!(w.fire(node).await.runs.is_empty());
    w.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!(next(w).await, Some(w.now().plus_ms(30_000)));
    // Nothing is out now: it begins with the edit.
    w.clock.advance(10_000);
    w.apply(&[fixed_delay("d")]).await;
    assert_eq!(next(w).await, Some(w.now().plus_ms(30_000)));
}
