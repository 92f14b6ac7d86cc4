//! Flow runs: jobs after several others, after failures, after stops.

use cueline_model::{
    AfterOn, AttemptEvent, DurationMs, JobSpec, Outcome, OutcomeKind, Parents, Route, RunKind,
    RunState,
};

use super::fixture::{Fixture, actor, after, attempt, by_hand, name, refused, report};
use crate::{AttemptReport, ClaimedRun, ErrorKind, NodeId, PruneRequest};

/// A job after all of these.
fn all(job: &str, parents: &[&str], on: AfterOn) -> JobSpec {
    after(
        job,
        Parents::All(parents.iter().map(|p| name(p)).collect()),
        on,
    )
}

/// A job after one of these.
fn any(job: &str, parents: &[&str], on: AfterOn) -> JobSpec {
    after(
        job,
        Parents::Any(parents.iter().map(|p| name(p)).collect()),
        on,
    )
}

/// `a`, then `b` and `c`, then `d`.
fn diamond() -> Vec<JobSpec> {
    vec![
        by_hand("a"),
        all("b", &["a"], AfterOn::Success),
        all("c", &["a"], AfterOn::Success),
        all("d", &["b", "c"], AfterOn::Success),
    ]
}

/// Claims and publishes what waits, sorted by job and shard.
async fn out(fixture: &Fixture, node: NodeId) -> Vec<ClaimedRun> {
    let mut runs = fixture.claim(node).await;
    runs.sort_by_key(|run| (run.job.spec.name.clone(), run.shard.index, run.id));
    for run in &runs {
        fixture.publish(node, run).await;
    }
    runs
}

async fn started(fixture: &Fixture, node: NodeId, job: &str) -> Vec<ClaimedRun> {
    fixture.trigger(job).await;
    out(fixture, node).await
}

fn names(runs: &[ClaimedRun]) -> Vec<&str> {
    runs.iter().map(|run| run.job.spec.name.as_str()).collect()
}

fn ends(runs: &[&ClaimedRun], kind: OutcomeKind, fixture: &Fixture) -> Vec<AttemptReport> {
    let outcome = Outcome::new(kind, fixture.now());
    runs.iter()
        .map(|run| {
            let outcome = outcome.clone();
            report(attempt(run), AttemptEvent::Ended { outcome })
        })
        .collect()
}

/// The two sides of a diamond are of the same flow run, whichever ends first.
pub async fn the_end_of_a_diamond_waits_for_both_sides(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&diamond()).await;
    let mut sides = Vec::new();
    for _ in 0..2 {
        let a = started(fixture, node, "a").await;
        fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
        let both = out(fixture, node).await;
        assert_eq!(names(&both), ["b", "c"]);
        sides.push((a[0].id, both));
    }
    let [(first, one), (_, other)] = &sides[..] else {
        unreachable!("two flow runs");
    };
    // One side of each flow run is not both sides of one.
    for run in [&one[0], &other[1]] {
        let done = fixture.end(attempt(run), OutcomeKind::Succeeded).await;
        assert_eq!(done.child_runs, 0);
    }
    let done = fixture.end(attempt(&one[1]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
    let d = out(fixture, node).await;
    assert_eq!(names(&d), ["d"]);
    let d = fixture.run(d[0].id).await;
    assert_eq!((d.kind, d.parent), (RunKind::Child, Some(one[1].id)));
    assert_eq!(d.fire_at, fixture.run(*first).await.fire_at);
    let done = fixture
        .end(attempt(&other[0]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 1);
    // A repeated report starts nothing.
    let done = fixture.end(attempt(&one[1]), OutcomeKind::Succeeded).await;
    assert_eq!((done.ignored, done.child_runs), (1, 0));
}

/// Several parents may end in one batch, and so may parents of parents.
pub async fn parents_may_end_in_one_batch(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut jobs = diamond();
    jobs.push(any("e", &["b", "c"], AfterOn::Success));
    jobs.push(all("f", &["a", "b"], AfterOn::Success));
    fixture.apply(&jobs).await;
    let a = started(fixture, node, "a").await;
    fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
    let both = out(fixture, node).await;
    let reports = ends(&[&both[0], &both[1]], OutcomeKind::Succeeded, fixture);
    assert_eq!(fixture.ingest(&reports).await.child_runs, 3);
    assert_eq!(names(&out(fixture, node).await), ["d", "e", "f"]);
}

/// The first parent that ends as required starts the child, and no other one does.
pub async fn any_parent_starts_a_child_once(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut jobs = diamond();
    let mut d = any("d", &["b", "c"], AfterOn::Success);
    d.route = Route::Broadcast;
    jobs[3] = d;
    fixture.apply(&jobs).await;
    fixture.heartbeats(&["e1"]).await;
    let a = started(fixture, node, "a").await;
    fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
    let both = out(fixture, node).await;
    let done = fixture.end(attempt(&both[0]), OutcomeKind::Failed).await;
    assert_eq!(done.child_runs, 0);
    let done = fixture.end(attempt(&both[1]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
    out(fixture, node).await;
    let a = started(fixture, node, "a").await;
    fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
    let both = out(fixture, node).await;
    let done = fixture.end(attempt(&both[0]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
    // A second executor would be a second shard, so the fire key alone does not prevent it.
    fixture.heartbeats(&["e1", "e2"]).await;
    let done = fixture.end(attempt(&both[1]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 0);
}

/// A job may run after failures, or after each end. All shards count as one.
pub async fn children_may_run_after_failures(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut a = by_hand("a");
    a.route = Route::Sharded(vec![String::new(); 2]);
    fixture
        .apply(&[
            a,
            all("b", &["a"], AfterOn::Success),
            all("c", &["a"], AfterOn::Failure),
            all("d", &["a"], AfterOn::Always),
        ])
        .await;
    for (kinds, expected) in [
        ([OutcomeKind::Succeeded, OutcomeKind::Succeeded], ["b", "d"]),
        ([OutcomeKind::Failed, OutcomeKind::Succeeded], ["c", "d"]),
        ([OutcomeKind::Succeeded, OutcomeKind::TimedOut], ["c", "d"]),
        ([OutcomeKind::Lost, OutcomeKind::Failed], ["c", "d"]),
    ] {
        let shards = started(fixture, node, "a").await;
        let done = fixture.end(attempt(&shards[0]), kinds[0]).await;
        assert_eq!(done.child_runs, 0, "{kinds:?}");
        let done = fixture.end(attempt(&shards[1]), kinds[1]).await;
        assert_eq!(done.child_runs, 2, "{kinds:?}");
        let children = out(fixture, node).await;
        assert_eq!(names(&children), expected, "{kinds:?}");
        assert!(children.iter().all(|run| run.params.is_none()));
    }
}

/// A failure starts its children once the retries are used up.
pub async fn a_failure_that_is_retried_starts_nothing_yet(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut a = by_hand("a");
    a.retry.max = 1;
    a.retry.first = DurationMs::millis(500);
    fixture
        .apply(&[a, all("b", &["a"], AfterOn::Failure)])
        .await;
    let first = started(fixture, node, "a").await;
    let done = fixture.end(attempt(&first[0]), OutcomeKind::Failed).await;
    assert_eq!((done.rescheduled, done.child_runs), (1, 0));
    fixture.clock.advance(60_000);
    let second = out(fixture, node).await;
    let done = fixture.end(attempt(&second[0]), OutcomeKind::Failed).await;
    assert_eq!(done.child_runs, 1);
}

/// A failed shard alone is repeated, and its siblings stay as they are.
pub async fn a_failed_shard_alone_is_retried(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut a = by_hand("a");
    a.route = Route::Sharded(["north", "south", "east"].map(str::to_owned).to_vec());
    a.retry.max = 1;
    a.retry.first = DurationMs::millis(500);
    fixture
        .apply(&[a, all("b", &["a"], AfterOn::Success)])
        .await;
    let shards = started(fixture, node, "a").await;
    for (shard, kind) in shards.iter().zip([
        OutcomeKind::Succeeded,
        OutcomeKind::Failed,
        OutcomeKind::Succeeded,
    ]) {
        fixture.end(attempt(shard), kind).await;
    }
    fixture.clock.advance(60_000);
    let again = out(fixture, node).await;
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].id, again[0].attempt), (shards[1].id, 2));
    assert_eq!(again[0].shard.item.as_deref(), Some("south"));
    let done = fixture
        .end(attempt(&again[0]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 1, "the fire has succeeded as a whole");
}

/// Nothing follows a parent that was discarded, covered, cancelled or skipped. Its timeline says so.
pub async fn a_stopped_parent_stops_the_flow_run(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut a = by_hand("a");
    a.route = Route::Sharded(vec![String::new(); 2]);
    fixture
        .apply(&[
            a,
            all("b", &["a"], AfterOn::Always),
            any("c", &["a"], AfterOn::Always),
        ])
        .await;
    for kind in [
        OutcomeKind::Discarded,
        OutcomeKind::Covered,
        OutcomeKind::Cancelled,
    ] {
        for first in [OutcomeKind::Succeeded, OutcomeKind::Failed] {
            let shards = started(fixture, node, "a").await;
            for (shard, kind) in shards.iter().zip([first, kind]) {
                let done = fixture.end(attempt(shard), kind).await;
                assert_eq!(done.child_runs, 0, "{first:?}, then {kind:?}");
            }
            let events = fixture.timeline(shards[1].id).await;
            assert_eq!(events.last().map(String::as_str), Some("flow_stopped"));
            let shards = started(fixture, node, "a").await;
            for (shard, kind) in shards.iter().zip([kind, first]) {
                let done = fixture.end(attempt(shard), kind).await;
                assert_eq!(done.child_runs, 0, "{kind:?}, then {first:?}");
            }
        }
    }
    // Waiting runs of a job that is paused end `cancelled` or `skipped`.
    fixture.trigger("a").await;
    let paused = fixture
        .store
        .set_job_enabled(&name("a"), false, &actor("me"))
        .await;
    paused.expect("pauses");
    assert!(fixture.claim(node).await.is_empty());
}

/// A run that succeeds although its cancellation was requested starts nothing: whoever cancelled it does not want what
/// follows.
pub async fn nothing_follows_a_run_that_was_to_be_cancelled(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[
            by_hand("a"),
            all("b", &["a"], AfterOn::Success),
            all("c", &["a"], AfterOn::Failure),
        ])
        .await;
    for kind in [OutcomeKind::Succeeded, OutcomeKind::Failed] {
        let a = started(fixture, node, "a").await;
        let cancelled = fixture.store.cancel_run(a[0].id, &actor("me")).await;
        cancelled.expect("answers");
        let done = fixture.end(attempt(&a[0]), kind).await;
        assert_eq!((done.ended, done.child_runs), (1, 0));
        let events = fixture.timeline(a[0].id).await;
        assert!(events.contains(&"flow_stopped".to_owned()), "{events:?}");
    }
    // The same of a side of a diamond whose other side ends later.
    fixture.apply(&diamond()).await;
    let a = started(fixture, node, "a").await;
    fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
    let both = out(fixture, node).await;
    let cancelled = fixture.store.cancel_run(both[0].id, &actor("me")).await;
    cancelled.expect("answers");
    for side in &both {
        let done = fixture.end(attempt(side), OutcomeKind::Succeeded).await;
        assert_eq!(done.child_runs, 0);
    }
}

/// A job that waits for all waits for those that have not fired yet, and not for those that cannot fire.
pub async fn a_child_waits_for_parents_that_are_still_ahead(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[
            by_hand("a"),
            all("b", &["a"], AfterOn::Success),
            all("b2", &["b"], AfterOn::Success),
            all("c", &["a"], AfterOn::Success),
            all("d", &["b2", "c"], AfterOn::Success),
        ])
        .await;
    let a = started(fixture, node, "a").await;
    fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
    let both = out(fixture, node).await;
    let done = fixture.end(attempt(&both[1]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 0, "b2 is ahead");
    let done = fixture.end(attempt(&both[0]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
    let b2 = out(fixture, node).await;
    let done = fixture.end(attempt(&b2[0]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
    assert_eq!(names(&out(fixture, node).await), ["d"]);
    // A flow run that begins at `b` never has a `c`.
    let b = started(fixture, node, "b").await;
    fixture.end(attempt(&b[0]), OutcomeKind::Succeeded).await;
    let b2 = out(fixture, node).await;
    let done = fixture.end(attempt(&b2[0]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1, "no run of c is to be expected");
}

/// A fire of the schedule begins a flow run too, and its shards have no key of a flow run.
pub async fn a_flow_run_begins_with_a_scheduled_fire(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut a = super::fixture::each_second("a");
    a.route = Route::Sharded(vec![String::new(); 2]);
    fixture
        .apply(&[
            a,
            all("b", &["a"], AfterOn::Success),
            all("c", &["a", "b"], AfterOn::Success),
        ])
        .await;
    fixture.clock.advance(1_000);
    let shards = fixture.fire(node).await.runs;
    for run in &shards {
        fixture.publish(node, run).await;
    }
    let reports = ends(&[&shards[0], &shards[1]], OutcomeKind::Succeeded, fixture);
    assert_eq!(
        fixture.ingest(&reports).await.child_runs,
        1,
        "b is ahead of c"
    );
    let b = out(fixture, node).await;
    assert_eq!(b[0].fire_at, shards[0].fire_at);
    let done = fixture.end(attempt(&b[0]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
    let c = out(fixture, node).await;
    assert_eq!((names(&c), c[0].fire_at), (vec!["c"], shards[0].fire_at));
}

/// The field `pass_output` with several parents.
pub async fn a_child_takes_the_outputs_of_all_parents(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut jobs = diamond();
    let takes = jobs[3].after.as_mut().expect("has parents");
    takes.pass_output = true;
    let mut first = any("e", &["b", "c"], AfterOn::Success);
    first.after.as_mut().expect("has parents").pass_output = true;
    jobs.push(first);
    jobs.push(all("f", &["a", "b"], AfterOn::Success));
    jobs[5].after.as_mut().expect("has parents").pass_output = true;
    fixture.apply(&jobs).await;
    let ended = |run: &ClaimedRun, output: &str| {
        let mut outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
        outcome.output = Some(output.to_owned());
        report(attempt(run), AttemptEvent::Ended { outcome })
    };
    let a = started(fixture, node, "a").await;
    fixture.ingest(&[ended(&a[0], "of a")]).await;
    let both = out(fixture, node).await;
    fixture.ingest(&[ended(&both[1], "of \"c\"")]).await;
    let e = out(fixture, node).await;
    assert_eq!(
        (names(&e), e[0].params.as_deref()),
        (vec!["e"], Some("of \"c\""))
    );
    fixture.end(attempt(&both[0]), OutcomeKind::Succeeded).await;
    let rest = out(fixture, node).await;
    assert_eq!(names(&rest), ["d", "f"]);
    let params: Vec<_> = rest.iter().map(|run| run.params.as_deref()).collect();
    assert_eq!(
        params,
        [
            Some(r#"{"b":null,"c":"of \"c\""}"#),
            Some(r#"{"a":"of a","b":null}"#)
        ]
    );
}

/// What waits for all of several jobs has a job that leads to them, also after an edit above it.
pub async fn jobs_that_nothing_joins_are_refused(fixture: &Fixture) {
    fixture.apply(&[by_hand("x"), by_hand("y")]).await;
    let apply = |spec: JobSpec| async move {
        fixture
            .store
            .apply_jobs(&[spec], false, &actor("a test"))
            .await
    };
    let both = all("z", &["x", "y"], AfterOn::Success);
    refused(apply(both).await, ErrorKind::Invalid, "no job leads to all");
    apply(any("z", &["x", "y"], AfterOn::Success))
        .await
        .expect("applies");
    fixture.apply(&diamond()).await;
    let alone = apply(by_hand("b")).await;
    refused(alone, ErrorKind::Invalid, r#"failed to apply job "d""#);
    let cycle = apply(all("a", &["d"], AfterOn::Success)).await;
    refused(cycle, ErrorKind::Invalid, "a after d after b after a");
}

/// An edit replaces the links of a child, and a deletion removes them.
pub async fn links_follow_the_definition(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&diamond()).await;
    fixture.apply(&[all("d", &["c"], AfterOn::Failure)]).await;
    let a = started(fixture, node, "a").await;
    fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
    let both = out(fixture, node).await;
    let done = fixture.end(attempt(&both[0]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 0);
    let done = fixture.end(attempt(&both[1]), OutcomeKind::Failed).await;
    assert_eq!(done.child_runs, 1);
    let delete = |job: &'static str| async move {
        fixture
            .store
            .delete_job(&name(job), &actor("me"))
            .await
            .map(drop)
    };
    delete("b").await.expect("no job runs after it any more");
    refused(delete("c").await, ErrorKind::Conflict, "parent of d");
    delete("d").await.expect("deletes");
    delete("c").await.expect("its child is gone");
    let a = started(fixture, node, "a").await;
    let done = fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 0);
}

/// An ended run is kept as long as its flow run is live: what follows may depend on it.
pub async fn a_flow_run_is_kept_until_it_has_ended(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&diamond()).await;
    let a = started(fixture, node, "a").await;
    fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
    let both = out(fixture, node).await;
    fixture.end(attempt(&both[0]), OutcomeKind::Succeeded).await;
    fixture.clock.advance(10_000);
    let delete = || async { fixture.store.delete_expired_runs(5_000, 10).await };
    assert_eq!(delete().await.expect("retires"), 0);
    let by_hand = PruneRequest {
        runs: vec![a[0].id, both[0].id],
        ..PruneRequest::default()
    };
    let pruned = fixture.store.prune_runs(&by_hand, &actor("ann")).await;
    assert_eq!(pruned.expect("prunes").live, [a[0].id, both[0].id]);
    let done = fixture.end(attempt(&both[1]), OutcomeKind::Succeeded).await;
    assert_eq!(done.child_runs, 1);
    let d = out(fixture, node).await;
    fixture.end(attempt(&d[0]), OutcomeKind::Succeeded).await;
    fixture.expect(both[0].id, RunState::Succeeded).await;
    fixture.clock.advance(10_000);
    assert_eq!(delete().await.expect("retires"), 4);
}

/// Two schedulers end the two sides of a diamond at the same time.
pub async fn parents_that_end_at_the_same_time_start_one_child(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut jobs = diamond();
    jobs.push(any("e", &["b", "c"], AfterOn::Success));
    // The child was created before its parents, so its lock comes first.
    jobs.push(by_hand("f"));
    fixture.apply(&[by_hand("f")]).await;
    fixture.apply(&jobs).await;
    fixture
        .apply(&[all("f", &["c", "b"], AfterOn::Always)])
        .await;
    let other = fixture.harness.open().await;
    for round in 0..25 {
        let a = started(fixture, node, "a").await;
        fixture.end(attempt(&a[0]), OutcomeKind::Succeeded).await;
        let both = out(fixture, node).await;
        let [b, c] = [0, 1].map(|side| ends(&[&both[side]], OutcomeKind::Succeeded, fixture));
        let (one, two) = tokio::join!(
            async { tokio::spawn(ingest(fixture.store.clone(), b)).await },
            async { tokio::spawn(ingest(other.clone(), c)).await },
        );
        let child_runs = one.expect("no panic") + two.expect("no panic");
        assert_eq!(child_runs, 3, "round {round}");
        let children = out(fixture, node).await;
        assert_eq!(names(&children), ["d", "e", "f"], "round {round}");
    }
}

async fn ingest(store: std::sync::Arc<dyn crate::Store>, reports: Vec<AttemptReport>) -> usize {
    store
        .ingest_reports(&reports)
        .await
        .expect("ingests")
        .child_runs
}
