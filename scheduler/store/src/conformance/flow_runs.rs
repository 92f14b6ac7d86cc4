//! A flow run as one thing: read, counted, cancelled, retried.

use cueline_model::{AfterOn, JobName, JobSpec, OutcomeKind, Parents, Route, RunId, RunState};

use super::fire_rules::add;
use super::fixture::{Fixture, actor, after, attempt, by_hand, each_second, name, refused};
use super::pauses::{labelled, pause};
use crate::{ClaimedRun, ErrorKind, FlowRun, NodeId};

/// `a` in two shards, then `b` and `c`, then `d`.
fn diamond(first: JobSpec) -> Vec<JobSpec> {
    let mut a = first;
    a.route = Route::Sharded(vec![String::new(); 2]);
    let all = |parents: &[&str]| Parents::All(parents.iter().map(|p| name(p)).collect());
    vec![
        a,
        after("b", all(&["a"]), AfterOn::Success),
        after("c", all(&["a"]), AfterOn::Success),
        after("d", all(&["b", "c"]), AfterOn::Success),
    ]
}

/// Claims and publishes what waits, sorted by job and shard.
async fn out(fixture: &Fixture, node: NodeId) -> Vec<ClaimedRun> {
    let mut runs = fixture.claim(node).await;
    runs.sort_by_key(|run| (run.job.spec.name.clone(), run.shard.index));
    for run in &runs {
        fixture.publish(node, run).await;
    }
    runs
}

/// Begins a flow run by hand. Returns the two sides of the diamond.
async fn both_sides(fixture: &Fixture, node: NodeId) -> (RunId, Vec<ClaimedRun>) {
    fixture.trigger("a").await;
    let shards = out(fixture, node).await;
    for shard in &shards {
        fixture.end(attempt(shard), OutcomeKind::Succeeded).await;
    }
    (shards[0].id, out(fixture, node).await)
}

async fn flow(fixture: &Fixture, run: RunId) -> FlowRun {
    fixture.store.flow_run(run).await.expect("exists")
}

fn jobs_and_states(flow: &FlowRun) -> Vec<(&str, RunState)> {
    let parts = flow.parts.iter();
    parts.map(|part| (part.job.as_str(), part.state)).collect()
}

/// Each run of a flow run names it, and no other flow run has a part in it.
pub async fn a_flow_run_is_read_by_any_of_its_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&diamond(each_second("a"))).await;
    // One begins with a fire of the schedule, and one by hand.
    fixture.clock.advance(1_000);
    let shards = fixture.fire(node).await.runs;
    for run in &shards {
        fixture.succeed(node, run).await;
    }
    let scheduled = out(fixture, node).await;
    let (by_hand, sides) = both_sides(fixture, node).await;
    for (id, runs) in [(shards[0].id, &scheduled), (by_hand, &sides)] {
        for run in [id, runs[0].id, runs[1].id] {
            let read = flow(fixture, run).await;
            assert_eq!(read.id, id);
            assert_eq!(
                jobs_and_states(&read),
                [
                    ("a", RunState::Succeeded),
                    ("a", RunState::Succeeded),
                    ("b", RunState::Queued),
                    ("c", RunState::Queued),
                ]
            );
            let same: Vec<RunId> = read.runs.iter().map(|run| run.id).collect();
            let parts: Vec<RunId> = read.parts.iter().map(|part| part.run).collect();
            assert_eq!(same, parts);
            let jobs: Vec<&str> = read.jobs.iter().map(|j| j.spec.name.as_str()).collect();
            assert_eq!(jobs, ["a", "b", "c", "d"], "the last one is to come");
        }
    }
    let second = flow(fixture, shards[1].id).await;
    assert_eq!(second.id, shards[0].id, "the first shard names it");
    let counts = fixture.store.flow_counts(&[by_hand, shards[0].id]).await;
    let states = vec![(RunState::Queued, 2), (RunState::Succeeded, 2)];
    for counts in counts.expect("counts") {
        assert_eq!(counts.states, states);
    }
    refused(
        fixture.store.flow_run(RunId(i64::MAX / 2)).await.map(drop),
        ErrorKind::NotFound,
        "no run",
    );
}

/// Jobs that others run after, of one namespace or of all.
pub async fn jobs_with_children_are_listed(fixture: &Fixture) {
    fixture.apply(&diamond(by_hand("a"))).await;
    fixture.apply(&[by_hand("team/p")]).await;
    let child = after(
        "team/q",
        Parents::All(vec![name("team/p")]),
        AfterOn::Always,
    );
    fixture.apply(&[child]).await;
    let listed = async |namespace: Option<&str>, limit| -> Vec<String> {
        let namespace = namespace.map(name);
        let jobs = fixture.store.parent_jobs(namespace.as_ref(), limit).await;
        let jobs: Vec<JobName> = jobs.expect("lists");
        jobs.iter().map(|job| job.as_str().to_owned()).collect()
    };
    assert_eq!(listed(None, 10).await, ["a", "b", "c", "team/p"]);
    assert_eq!(listed(Some("default"), 2).await, ["a", "b"]);
    assert_eq!(listed(Some("team"), 10).await, ["team/p"]);
}

/// All live runs are cancelled, and nothing follows those that succeed meanwhile.
pub async fn a_cancelled_flow_run_starts_nothing(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&diamond(by_hand("a"))).await;
    let (id, sides) = both_sides(fixture, node).await;
    let other = both_sides(fixture, node).await.1;
    let cancel = || async {
        let cancelled = fixture.store.cancel_flow(sides[1].id, &actor("me")).await;
        cancelled.expect("cancels")
    };
    let cancelled = cancel().await;
    assert_eq!((cancelled.id, cancelled.ended.len()), (id, 0));
    assert_eq!(cancelled.requested, [sides[0].id, sides[1].id]);
    assert_eq!(cancel().await.requested, [], "once");
    for side in &sides {
        let done = fixture.end(attempt(side), OutcomeKind::Succeeded).await;
        assert_eq!((done.ended, done.child_runs), (1, 0));
    }
    // Another flow run of the same jobs goes on.
    fixture
        .end(attempt(&other[0]), OutcomeKind::Succeeded)
        .await;
    let done = fixture
        .end(attempt(&other[1]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 1);
    // A run that waits ends at once.
    let waiting = fixture.claim(node).await.remove(0);
    let cancelled = fixture.store.cancel_flow(waiting.id, &actor("me")).await;
    assert_eq!(cancelled.expect("cancels").ended, [waiting.id]);
    fixture.expect(waiting.id, RunState::Cancelled).await;
    assert_eq!(fixture.timeline(waiting.id).await, ["cancel"]);
}

/// Only what did not succeed runs again, in the same flow run, and what waited for it follows.
pub async fn a_flow_run_is_retried_from_what_failed(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&diamond(by_hand("a"))).await;
    fixture.trigger("a").await;
    let shards = out(fixture, node).await;
    fixture
        .end(attempt(&shards[0]), OutcomeKind::Succeeded)
        .await;
    let done = fixture.end(attempt(&shards[1]), OutcomeKind::Failed).await;
    assert_eq!(done.child_runs, 0);
    let retry = async |run: RunId| fixture.store.retry_flow(run, &actor("me")).await;
    let retried = retry(shards[0].id).await.expect("retries");
    assert_eq!(
        (retried.id, &retried.runs[..]),
        (shards[0].id, &[shards[1].id][..])
    );
    fixture.expect(shards[1].id, RunState::Scheduled).await;
    let again = out(fixture, node).await;
    assert_eq!((again[0].id, again[0].attempt), (shards[1].id, 2));
    // A late report about the first attempt changes nothing.
    let late = fixture
        .end(attempt(&shards[1]), OutcomeKind::Succeeded)
        .await;
    assert_eq!((late.ended, late.ignored), (0, 1));
    let done = fixture
        .end(attempt(&again[0]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 2);
    assert_eq!(
        fixture.timeline(shards[1].id).await,
        ["triggered", "retried", "refused"]
    );
    // One side fails and the other is cancelled: both run again, and the end of the diamond starts once.
    let sides = out(fixture, node).await;
    fixture.end(attempt(&sides[0]), OutcomeKind::Failed).await;
    fixture
        .end(attempt(&sides[1]), OutcomeKind::Cancelled)
        .await;
    let retried = retry(sides[0].id).await.expect("retries");
    assert_eq!(retried.runs, [sides[0].id, sides[1].id]);
    let again = out(fixture, node).await;
    fixture
        .end(attempt(&again[0]), OutcomeKind::Succeeded)
        .await;
    let done = fixture
        .end(attempt(&again[1]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 1);
    let nothing = retry(sides[0].id).await.map(drop);
    refused(nothing, ErrorKind::Conflict, "without success");
    refused(
        retry(RunId(i64::MAX / 2)).await.map(drop),
        ErrorKind::NotFound,
        "no run",
    );
}

/// A cancelled flow run can be retried, also a run that succeeded before its cancellation reached it.
pub async fn a_cancelled_flow_run_can_be_retried(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&diamond(by_hand("a"))).await;
    let (id, sides) = both_sides(fixture, node).await;
    let cancelled = fixture.store.cancel_flow(id, &actor("me")).await;
    cancelled.expect("cancels");
    fixture
        .end(attempt(&sides[0]), OutcomeKind::Succeeded)
        .await;
    fixture
        .end(attempt(&sides[1]), OutcomeKind::Cancelled)
        .await;
    let retried = fixture.store.retry_flow(id, &actor("me")).await;
    assert_eq!(retried.expect("retries").runs, [sides[0].id, sides[1].id]);
    let again = out(fixture, node).await;
    for run in &again {
        assert_eq!(run.attempt, 2);
        fixture.end(attempt(run), OutcomeKind::Succeeded).await;
    }
    let d = out(fixture, node).await;
    assert_eq!(d.len(), 1);
    assert_eq!(d[0].job.spec.name.as_str(), "d");
}

/// A broadcast shard stays with its executor, and a job that started after the failure does not start twice.
pub async fn a_retried_broadcast_keeps_its_executors(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut a = by_hand("a");
    a.route = Route::Broadcast;
    let mut b = after("b", Parents::All(vec![name("a")]), AfterOn::Always);
    b.route = Route::Broadcast;
    fixture.apply(&[a, b]).await;
    fixture.heartbeats(&["e1", "e2"]).await;
    fixture.trigger("a").await;
    let shards = out(fixture, node).await;
    fixture.end(attempt(&shards[0]), OutcomeKind::Failed).await;
    let done = fixture
        .end(attempt(&shards[1]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 2);
    out(fixture, node).await;
    fixture.heartbeats(&["e1", "e2", "e3"]).await;
    let retried = fixture.store.retry_flow(shards[0].id, &actor("me")).await;
    assert_eq!(retried.expect("retries").runs, [shards[0].id]);
    let again = fixture.claim(node).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].executor, shards[0].executor);
    fixture.publish(node, &again[0]).await;
    let done = fixture
        .end(attempt(&again[0]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 0, "b fired before, on other executors");
}

/// A run of a job in a pause of several jobs would only wait for nothing, so it is retried after the pause.
pub async fn a_retry_leaves_out_what_is_paused(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut specs = diamond(by_hand("a"));
    specs[1] = labelled(specs[1].clone());
    fixture.apply(&specs).await;
    let (id, sides) = both_sides(fixture, node).await;
    for side in &sides {
        fixture.end(attempt(side), OutcomeKind::Failed).await;
    }
    add(&*fixture.store, &pause(fixture, Some(10))).await;
    let retry = async || fixture.store.retry_flow(id, &actor("me")).await;
    assert_eq!(retry().await.expect("retries").runs, [sides[1].id]);
    fixture.expect(sides[0].id, RunState::Failed).await;
    let again = out(fixture, node).await;
    assert_eq!(again.len(), 1);
    fixture
        .end(attempt(&again[0]), OutcomeKind::Succeeded)
        .await;
    refused(
        retry().await.map(drop),
        ErrorKind::Conflict,
        "paused or deleted",
    );
    fixture.clock.advance(10_500);
    assert_eq!(retry().await.expect("retries").runs, [sides[0].id]);
    let again = out(fixture, node).await;
    assert_eq!((again[0].id, again[0].attempt), (sides[0].id, 2));
    let done = fixture
        .end(attempt(&again[0]), OutcomeKind::Succeeded)
        .await;
    assert_eq!(done.child_runs, 1);
}

/// Changes by people are in the audit log.
pub async fn changes_of_flow_runs_leave_one_entry(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&diamond(by_hand("a"))).await;
    let (id, sides) = both_sides(fixture, node).await;
    for _ in 0..2 {
        let cancelled = fixture.store.cancel_flow(sides[0].id, &actor("me")).await;
        cancelled.expect("cancels");
    }
    for side in &sides {
        fixture.end(attempt(side), OutcomeKind::Cancelled).await;
    }
    let retried = fixture.store.retry_flow(sides[0].id, &actor("me")).await;
    retried.expect("retries");
    let entries = fixture
        .harness
        .sql("SELECT min(object) || ' ' || max(object) || ' ' || count(*) FROM audit WHERE action IN ('flow.cancel', 'flow.retry')")
        .await;
    assert_eq!(entries, format!("{id} {id} 2"));
}
