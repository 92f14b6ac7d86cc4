//! Follow-ups of an end: child runs and fixed-delay fire times.

use cueline_model::{
    AttemptEvent, DurationMs, JobSpec, Outcome, OutcomeKind, Route, RunKind, RunState, Schedule,
    Timestamp,
};

use super::fixture::{
    Fixture, actor, attempt, by_hand, child, each_second, job_with, name, report,
};
use crate::{ClaimedRun, IngestSummary, NodeId};

fn shards(mut spec: JobSpec, count: usize) -> JobSpec {
    spec.route = Route::Sharded(vec![String::new(); count]);
    spec
}

/// Claims the runs of a job triggered by hand and publishes them.
async fn out(fixture: &Fixture, node: NodeId, job: &str) -> Vec<ClaimedRun> {
    fixture.trigger(job).await;
    let runs = fixture.claim(node).await;
    for run in &runs {
        fixture.publish(node, run).await;
    }
    runs
}

/// The success of the last shard creates the child run. A repeated report creates no second one.
pub async fn children_run_once_after_all_shards(fixture: &Fixture) {
    let node = fixture.node().await;
    let specs = [
        shards(each_second("a"), 3),
        child("b", "a"),
        shards(child("c", "a"), 2),
    ];
    fixture.apply(&specs).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    fixture.clock.advance(400);
    for run in &runs {
        fixture.publish(node, run).await;
    }
    for run in &runs[..2] {
        let done = fixture.end(attempt(run), OutcomeKind::Succeeded).await;
        assert_eq!((done.ended, done.child_runs), (1, 0));
    }
    assert!(fixture.claim(node).await.is_empty());
    let done = fixture.end(attempt(&runs[2]), OutcomeKind::Succeeded).await;
    assert_eq!((done.ended, done.child_runs), (1, 3));
    assert_eq!(done.next_due_at, Some(fixture.now()));
    for run in &runs {
        let done = fixture.end(attempt(run), OutcomeKind::Succeeded).await;
        assert_eq!((done.ignored, done.child_runs), (1, 0));
    }
    let children = fixture.claim(node).await;
    assert_eq!(children.len(), 3);
    for run in &children {
        assert_eq!(run.kind, RunKind::Child);
        assert_eq!(run.fire_at, runs[0].fire_at, "the parent's fire time");
        assert_eq!(run.due_at, fixture.now());
        assert_eq!(fixture.run(run.id).await.parent, Some(runs[2].id));
    }
    // The next fire of the parent is another one.
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs {
        fixture.publish(node, run).await;
    }
    let ends: Vec<_> = runs
        .iter()
        .map(|run| {
            let outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
            report(attempt(run), AttemptEvent::Ended { outcome })
        })
        .collect();
    assert_eq!(
        fixture.ingest(&ends).await.child_runs,
        3,
        "all in one batch"
    );
}

/// A fire with a failed shard has not succeeded.
pub async fn failed_shard_prevents_children(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[shards(by_hand("a"), 2), child("b", "a")])
        .await;
    let runs = out(fixture, node, "a").await;
    fixture.end(attempt(&runs[0]), OutcomeKind::Failed).await;
    let done = fixture.end(attempt(&runs[1]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 0);
    assert!(fixture.claim(node).await.is_empty());
}

/// The field `pass_output`.
pub async fn children_take_the_output(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut takes = child("takes", "a");
    if let Some(after) = &mut takes.after {
        after.pass_output = true;
    }
    fixture
        .apply(&[by_hand("a"), takes, child("leaves", "a")])
        .await;
    let runs = out(fixture, node, "a").await;
    let mut outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
    outcome.output = Some("42 \"é\"".to_owned());
    fixture
        .ingest(&[report(attempt(&runs[0]), AttemptEvent::Ended { outcome })])
        .await;
    let mut children = fixture.claim(node).await;
    children.sort_by(|a, b| a.job.spec.name.cmp(&b.job.spec.name));
    assert_eq!(children[0].params, None);
    assert_eq!(children[1].params.as_deref(), Some("42 \"é\""));
}

/// A chain of three jobs.
pub async fn children_of_children(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[by_hand("a"), child("b", "a"), child("c", "b")])
        .await;
    let a = out(fixture, node, "a").await.remove(0);
    fixture.end(attempt(&a), OutcomeKind::Succeeded).await;
    let b = fixture.claim(node).await.remove(0);
    assert_eq!(b.job.spec.name.as_str(), "b");
    assert_eq!(fixture.succeed(node, &b).await.child_runs, 1);
    let c = fixture.claim(node).await.remove(0);
    assert_eq!(c.job.spec.name.as_str(), "c");
    assert_eq!(c.fire_at, a.fire_at);
    assert_eq!(fixture.succeed(node, &c).await.child_runs, 0);
}

/// A paused or deleted child does not run, nor does one whose `after` was removed.
pub async fn paused_child_is_left_out(fixture: &Fixture) {
    let node = fixture.node().await;
    let specs = ["paused", "deleted", "moved"].map(|job| child(job, "a"));
    fixture.apply(&[by_hand("a"), child("b", "a")]).await;
    fixture.apply(&specs).await;
    let paused = fixture
        .store
        .set_job_enabled(&name("paused"), false, &actor("me"))
        .await;
    paused.expect("pauses");
    let deleted = fixture
        .store
        .delete_job(&name("deleted"), &actor("me"))
        .await;
    deleted.expect("deletes");
    fixture.apply(&[by_hand("moved")]).await;
    let a = out(fixture, node, "a").await.remove(0);
    let done = fixture.end(attempt(&a), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
}

/// Two triggers of a sharded job at the same instant are two fires.
pub async fn manual_fires_are_distinguished(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[shards(by_hand("a"), 2), child("b", "a")])
        .await;
    let first = out(fixture, node, "a").await;
    let second = out(fixture, node, "a").await;
    assert_eq!((first.len(), second.len()), (2, 2));
    fixture
        .end(attempt(&first[0]), OutcomeKind::Succeeded)
        .await;
    let done = fixture
        .end(attempt(&second[0]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 0, "one shard of each");
    let done = fixture
        .end(attempt(&first[1]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 1);
    let done = fixture.end(attempt(&second[1]), OutcomeKind::Failed).await;
    assert_eq!(done.child_runs, 0);
}

/// A broadcast child has one run for each live executor.
pub async fn broadcast_child_runs_on_all(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut b = child("b", "a");
    b.route = Route::Broadcast;
    fixture.apply(&[by_hand("a"), b]).await;
    fixture.heartbeats(&["e1", "e2", "e3"]).await;
    let a = out(fixture, node, "a").await.remove(0);
    assert_eq!(
        fixture
            .end(attempt(&a), OutcomeKind::Succeeded)
            .await
            .child_runs,
        3
    );
    let pins: Vec<_> = fixture
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

async fn next(fixture: &Fixture) -> Option<Timestamp> {
    fixture.next_fire("d").await
}

/// A live run leaves no next fire time. After its end, whatever the outcome, it is the end plus the delay.
pub async fn fixed_delay_counts_from_the_end(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = fixed_delay("d");
    spec.retry.max = 1;
    fixture.apply(&[spec]).await;
    assert_eq!(next(fixture).await, Some(fixture.now().plus_ms(30_000)));
    for kind in [
        OutcomeKind::Succeeded,
        OutcomeKind::Cancelled,
        OutcomeKind::Discarded,
    ] {
        fixture.clock.advance(30_000);
        let run = fixture.fire(node).await.runs.remove(0);
        assert_eq!(next(fixture).await, None);
        fixture.publish(node, &run).await;
        fixture.clock.advance(7_000);
        let done = fixture.end(attempt(&run), kind).await;
        assert_eq!(next(fixture).await, Some(fixture.now().plus_ms(30_000)));
        assert_eq!(done.next_due_at, next(fixture).await);
    }
    fixture.clock.advance(30_000);
    let run = fixture.fire(node).await.runs.remove(0);
    fixture.publish(node, &run).await;
    fixture.end(attempt(&run), OutcomeKind::Failed).await;
    assert_eq!(next(fixture).await, None, "a retry is still the same run");
    fixture.clock.advance(60_000);
    let run = fixture.claim(node).await.remove(0);
    fixture.publish(node, &run).await;
    fixture.end(attempt(&run), OutcomeKind::Failed).await;
    fixture.expect(run.id, RunState::Failed).await;
    assert_eq!(next(fixture).await, Some(fixture.now().plus_ms(30_000)));
}

/// Shards and manual runs count too.
pub async fn fixed_delay_waits_for_the_last_run(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[shards(fixed_delay("d"), 2)]).await;
    fixture.clock.advance(30_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs {
        fixture.publish(node, run).await;
    }
    fixture.end(attempt(&runs[0]), OutcomeKind::Succeeded).await;
    assert_eq!(next(fixture).await, None);
    fixture.clock.advance(1_000);
    let IngestSummary { next_due_at, .. } =
        fixture.end(attempt(&runs[1]), OutcomeKind::Failed).await;
    assert_eq!(next_due_at, Some(fixture.now().plus_ms(30_000)));
    assert_eq!(next(fixture).await, next_due_at);
    let paused = fixture
        .store
        .set_job_enabled(&name("d"), false, &actor("me"))
        .await;
    paused.expect("pauses");
    let by_hand = out(fixture, node, "d").await;
    for run in &by_hand {
        fixture.end(attempt(run), OutcomeKind::Succeeded).await;
    }
    assert_eq!(next(fixture).await, None, "a paused job stays so");
}

/// A cancelled run counts as ended.
pub async fn fixed_delay_follows_a_cancel(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[fixed_delay("d")]).await;
    fixture.clock.advance(30_000);
    let run = fixture.fire(node).await.runs.remove(0);
    fixture.clock.advance(5_000);
    fixture
        .store
        .cancel_run(run.id, &actor("me"))
        .await
        .expect("cancels");
    assert_eq!(next(fixture).await, Some(fixture.now().plus_ms(30_000)));
}

/// The delay starts at the end of the live run, whatever is edited meanwhile.
pub async fn an_edit_does_not_start_a_fixed_delay(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[fixed_delay("d")]).await;
    fixture.clock.advance(30_000);
    let run = fixture.fire(node).await.runs.remove(0);
    fixture.publish(node, &run).await;
    let mut edited = fixed_delay("d");
    edited.priority = 9;
    fixture.apply(&[edited]).await;
    assert_eq!(next(fixture).await, None);
    for enabled in [false, true] {
        let switched = fixture
            .store
            .set_job_enabled(&name("d"), enabled, &actor("me"))
            .await;
        switched.expect("switches");
        assert_eq!(next(fixture).await, None);
    }
    fixture.clock.advance(60_000);
    assert!(fixture.fire(node).await.runs.is_empty());
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!(next(fixture).await, Some(fixture.now().plus_ms(30_000)));
    // No run is live now: the delay starts with the edit.
    fixture.clock.advance(10_000);
    fixture.apply(&[fixed_delay("d")]).await;
    assert_eq!(next(fixture).await, Some(fixture.now().plus_ms(30_000)));
}
