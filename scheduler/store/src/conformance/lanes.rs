//! Lanes that all executors of a group share (G6).

use std::collections::BTreeSet;

use cueline_model::{Block, GroupName, OutcomeKind, RunState};

use super::fixture::{Fixture, actor, attempt, by_hand, each_second, mark, mark_in_lane, name};
use crate::{BegunDispatch, ClaimedRun, LaneWaitReason, NodeId};

const NODES: usize = 4;

async fn begin(fixture: &Fixture, node: NodeId, requests: &[(&ClaimedRun, &str)]) -> BegunDispatch {
    let requests: Vec<_> = requests
        .iter()
        .map(|(run, e)| mark_in_lane(run, e))
        .collect();
    let begun = fixture.store.begin_dispatch_in_lanes(node, &requests).await;
    begun.expect("begins")
}

/// Claims runs of a job without a schedule, one for each trigger, in their order.
async fn triggered(fixture: &Fixture, node: NodeId, job: &str, runs: usize) -> Vec<ClaimedRun> {
    let mut claimed = Vec::new();
    for _ in 0..runs {
        fixture.clock.advance(1);
        fixture.trigger(job).await;
        claimed.extend(fixture.claim(node).await);
    }
    assert_eq!(claimed.len(), runs);
    claimed
}

/// What a node leaves that ends between its mark and the second look.
async fn mark_without_a_look(fixture: &Fixture, node: NodeId, run: &ClaimedRun, executor: &str) {
    let requests = [mark(run, executor)];
    let marked = fixture.store.begin_dispatch(node, &requests).await;
    assert_eq!(marked.expect("marks"), [attempt(run)]);
}

/// While an attempt of the lane is at an executor, a run for another one waits.
pub async fn a_lane_is_at_one_executor(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a"), by_hand("b")]).await;
    let runs = triggered(fixture, node, "a", 3).await;
    let first = begin(fixture, node, &[(&runs[0], "e1")]).await;
    assert_eq!(first.accepted, [attempt(&runs[0])]);
    let other = triggered(fixture, node, "b", 1).await;
    let begun = begin(fixture, node, &[(&runs[1], "e2"), (&other[0], "e2")]).await;
    assert_eq!(begun.accepted, [attempt(&other[0])], "of another job");
    let [wait] = &begun.waits[..] else {
        panic!("one waits: {begun:?}")
    };
    assert_eq!(wait.attempt, attempt(&runs[1]));
    assert_eq!(wait.holder, Some(name("e1")));
    assert_eq!(wait.reason, LaneWaitReason::Busy(runs[0].id));
    assert!(!wait.undecided);
    fixture.expect(runs[1].id, RunState::Scheduled).await;
    let begun = begin(fixture, node, &[(&runs[1], "e1"), (&runs[2], "e1")]).await;
    assert_eq!(begun.accepted, [attempt(&runs[1]), attempt(&runs[2])]);
    for run in &runs {
        fixture.end(attempt(run), OutcomeKind::Succeeded).await;
    }
    let next = triggered(fixture, node, "a", 1).await;
    let begun = begin(fixture, node, &[(&next[0], "e2")]).await;
    assert_eq!(begun.accepted, [attempt(&next[0])], "the lane is idle");
}

/// `queued` and `running` attempts count as well, and a run that failed and waits for its retry does not.
pub async fn a_lane_is_free_once_its_attempts_have_ended(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = by_hand("a");
    spec.retry.max = 1;
    fixture.apply(&[spec]).await;
    let runs = triggered(fixture, node, "a", 2).await;
    fixture.publish(node, &runs[0]).await;
    let busy = begin(fixture, node, &[(&runs[1], "e2")]).await;
    assert_eq!(busy.accepted, []);
    fixture.end(attempt(&runs[0]), OutcomeKind::Failed).await;
    fixture.expect(runs[0].id, RunState::Scheduled).await;
    let free = begin(fixture, node, &[(&runs[1], "e2")]).await;
    assert_eq!(free.accepted, [attempt(&runs[1])]);
    // The retry joins at the end.
    fixture.clock.advance(60_000);
    let retry = fixture.claim(node).await;
    assert_eq!(retry[0].lane_at, retry[0].due_at);
    let waits = begin(fixture, node, &[(&retry[0], "e1")]).await.waits;
    assert_eq!(waits[0].holder, Some(name("e2")));
}

/// What an executor returned or lost keeps its place: newer runs wait for it.
pub async fn a_returned_run_keeps_its_place(fixture: &Fixture) {
    let (one, two) = (fixture.node().await, fixture.node().await);
    let mut spec = by_hand("a");
    spec.on_lost = cueline_model::OnLost::Rerun;
    fixture.apply(&[spec]).await;
    let older = triggered(fixture, one, "a", 2).await;
    for run in &older {
        fixture.publish(one, run).await;
    }
    let younger = triggered(fixture, two, "a", 1).await.remove(0);
    fixture.clock.advance(1_000);
    fixture
        .end_by_scheduler(attempt(&older[1]), OutcomeKind::Returned)
        .await;
    fixture
        .end_by_scheduler(attempt(&older[0]), OutcomeKind::Lost)
        .await;
    let waits = begin(fixture, two, &[(&younger, "e2")]).await.waits;
    assert_eq!(waits[0].reason, LaneWaitReason::Behind(older[0].id));
    let again = fixture.claim(one).await;
    assert_eq!(again.len(), 2);
    for run in &again {
        assert_eq!((run.attempt, run.lane_at), (2, run.fire_at));
        assert!(run.due_at > younger.due_at, "it is due anew");
    }
    let asked: Vec<_> = again.iter().map(|run| (run, "e2")).collect();
    assert_eq!(begin(fixture, one, &asked).await.accepted.len(), 2);
    let waits = begin(fixture, two, &[(&younger, "e2")]).await.waits;
    assert_eq!(waits[0].reason, LaneWaitReason::Behind(older[0].id));
    let marked: Vec<_> = again.iter().map(attempt).collect();
    let confirmed = fixture.store.confirm_dispatch(&marked).await;
    confirmed.expect("confirms");
    let begun = begin(fixture, two, &[(&younger, "e2")]).await;
    assert_eq!(begun.accepted, [attempt(&younger)]);
}

/// A lane with places has at most so many attempts, at any executors.
pub async fn a_lane_with_places_is_bounded(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = by_hand("a");
    spec.block = Block::Parallel(3);
    fixture.apply(&[spec]).await;
    let runs = triggered(fixture, node, "a", 6).await;
    let asked = [
        (&runs[0], "e1"),
        (&runs[1], "e2"),
        (&runs[2], "e1"),
        (&runs[3], "e3"),
        (&runs[4], "e3"),
    ];
    let begun = begin(fixture, node, &asked).await;
    assert_eq!(
        begun.accepted,
        [attempt(&runs[0]), attempt(&runs[1]), attempt(&runs[2])]
    );
    let ahead: Vec<u64> = begun.waits.iter().map(|wait| wait.ahead).collect();
    assert_eq!(ahead, [0, 1]);
    let full = begin(fixture, node, &[(&runs[3], "e2")]).await;
    assert_eq!(full.waits[0].reason, LaneWaitReason::Full(runs[0].id));
    fixture.end(attempt(&runs[0]), OutcomeKind::Succeeded).await;
    let begun = begin(fixture, node, &[(&runs[5], "e2")]).await;
    assert_eq!(begun.waits[0].reason, LaneWaitReason::Behind(runs[3].id));
    assert_eq!(begun.waits[0].ahead, 2);
    let begun = begin(fixture, node, &[(&runs[3], "e2"), (&runs[4], "e2")]).await;
    assert_eq!(begun.accepted, [attempt(&runs[3])]);
}

/// An older run that is due goes first, whichever node has it.
pub async fn older_runs_go_first(fixture: &Fixture) {
    let (one, two) = (fixture.node().await, fixture.node().await);
    fixture.apply(&[by_hand("a")]).await;
    let older = triggered(fixture, one, "a", 1).await.remove(0);
    let younger = triggered(fixture, two, "a", 1).await.remove(0);
    let waits = begin(fixture, two, &[(&younger, "e1")]).await.waits;
    assert_eq!(waits[0].reason, LaneWaitReason::Behind(older.id));
    let begun = begin(fixture, one, &[(&older, "e1")]).await;
    assert_eq!(begun.accepted, [attempt(&older)]);
    // Another node is still publishing the older one.
    let waits = begin(fixture, two, &[(&younger, "e1")]).await.waits;
    assert_eq!(waits[0].reason, LaneWaitReason::Behind(older.id));
    let confirmed = fixture.store.confirm_dispatch(&[attempt(&older)]).await;
    confirmed.expect("confirms");
    let begun = begin(fixture, two, &[(&younger, "e1")]).await;
    assert_eq!(begun.accepted, [attempt(&younger)]);
}

/// A run that is not due yet, or was cancelled, holds up no other.
pub async fn only_due_runs_go_first(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    let runs = triggered(fixture, node, "a", 3).await;
    let later = fixture.now().plus_ms(60_000);
    let released = fixture
        .store
        .release_claims(node, &[attempt(&runs[0])], Some(later))
        .await;
    released.expect("releases");
    let cancelled = fixture.store.cancel_run(runs[1].id, &actor("me")).await;
    cancelled.expect("cancels");
    let begun = begin(fixture, node, &[(&runs[2], "e1")]).await;
    assert_eq!(begun.accepted, [attempt(&runs[2])]);
}

/// Shards have lanes of their own, and those of a broadcast fire are at their executors.
pub async fn each_shard_has_a_lane(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.route = cueline_model::Route::Sharded(vec![String::new(), String::new()]);
    fixture.apply(&[spec]).await;
    fixture.clock.advance(1_000);
    let first = fixture.fire(node).await.runs;
    let begun = begin(fixture, node, &[(&first[0], "e1"), (&first[1], "e2")]).await;
    assert_eq!(begun.accepted.len(), 2);
    fixture.clock.advance(1_000);
    let second = fixture.fire(node).await.runs;
    let begun = begin(fixture, node, &[(&second[0], "e2"), (&second[1], "e2")]).await;
    assert_eq!(begun.accepted, [attempt(&second[1])]);
    assert_eq!(begun.waits[0].holder, Some(name("e1")));
}

/// Nodes that mark attempts of one lane at the same time never have two of them at different executors.
pub async fn nodes_race_for_a_lane(fixture: &Fixture) {
    let owner = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    for round in 0..12 {
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push((fixture.node().await, fixture.harness.open().await));
        }
        let mut runs = Vec::new();
        for (node, _) in &nodes {
            fixture.trigger("a").await;
            runs.extend(fixture.claim(*node).await);
        }
        let mut tasks = Vec::new();
        for (number, ((node, store), run)) in nodes.into_iter().zip(runs).enumerate() {
            tasks.push(tokio::spawn(async move {
                let mut request = mark_in_lane(&run, &format!("e{number}"));
                // Each comes first, so that none waits for another one's mark.
                if let Some(place) = &mut request.lane {
                    place.at = cueline_model::Timestamp::default();
                }
                let begun = store.begin_dispatch_in_lanes(node, &[request]).await;
                (run, !begun.expect("begins").accepted.is_empty())
            }));
        }
        let mut accepted = Vec::new();
        let mut left = Vec::new();
        for task in tasks {
            let (run, was_accepted) = task.await.expect("no panic");
            let list = if was_accepted {
                &mut accepted
            } else {
                &mut left
            };
            list.push(run);
        }
        let mut executors = BTreeSet::new();
        for run in &accepted {
            let stored = fixture.run(run.id).await;
            assert_eq!(stored.state, RunState::Dispatching);
            executors.insert(stored.executor);
        }
        assert!(executors.len() <= 1, "round {round}: {executors:?}");
        for run in accepted.iter().chain(&left) {
            fixture
                .end_by_scheduler(attempt(run), OutcomeKind::Cancelled)
                .await;
        }
    }
    let next = triggered(fixture, owner, "a", 1).await;
    let begun = begin(fixture, owner, &[(&next[0], "e1")]).await;
    assert_eq!(begun.accepted.len(), 1, "nothing of the races is left");
}

/// A node ended after it had marked an attempt, and before it looked at the lane again. Another executor has a published
/// attempt of the lane, so the marked one is certainly not published.
pub async fn an_unaccepted_mark_is_taken_back(fixture: &Fixture) {
    let node = fixture.node().await;
    let dies = fixture.node_for(10_000).await;
    fixture.apply(&[by_hand("a")]).await;
    let lost = triggered(fixture, dies, "a", 1).await.remove(0);
    mark_without_a_look(fixture, dies, &lost, "e2").await;
    let run = triggered(fixture, node, "a", 1).await.remove(0);
    fixture.publish(node, &run).await;
    fixture.clock.advance(10_000);
    let taken = fixture.claim(node).await.remove(0);
    assert!(taken.maybe_published && taken.id == lost.id);
    let begun = begin(fixture, node, &[(&taken, "e2")]).await;
    assert_eq!(begun.accepted, []);
    assert_eq!(begun.waits[0].holder, Some(name("e1")));
    assert!(!begun.waits[0].undecided);
    fixture.expect(lost.id, RunState::Scheduled).await;
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    let free = begin(fixture, node, &[(&lost, "e3")]).await;
    assert_eq!(free.accepted, [attempt(&lost)]);
}

/// Of two marks of ended nodes at different executors, at most one was published. The older one goes on, and the younger
/// one waits for its end.
pub async fn the_older_of_two_unknown_marks_goes_on(fixture: &Fixture) {
    let node = fixture.node().await;
    let dies = fixture.node_for(10_000).await;
    fixture.apply(&[by_hand("a")]).await;
    let runs = triggered(fixture, dies, "a", 2).await;
    for (run, executor) in runs.iter().zip(["e1", "e2"]) {
        mark_without_a_look(fixture, dies, run, executor).await;
    }
    fixture.clock.advance(10_000);
    let taken = fixture.claim(node).await;
    let asked = [(&taken[1], "e2"), (&taken[0], "e1")];
    let begun = begin(fixture, node, &asked).await;
    assert_eq!(begun.accepted, [attempt(&runs[0])]);
    assert!(begun.waits[0].undecided);
    fixture.expect(runs[1].id, RunState::Dispatching).await;
    let confirmed = fixture.store.confirm_dispatch(&[attempt(&runs[0])]).await;
    confirmed.expect("confirms");
    let begun = begin(fixture, node, &[(&taken[1], "e2")]).await;
    assert!(!begun.waits[0].undecided);
    fixture.expect(runs[1].id, RunState::Scheduled).await;
}

/// A run whose mark is taken back ends if it was cancelled, or if its job was paused, in the meantime.
pub async fn a_mark_that_is_taken_back_ends_with_its_job(fixture: &Fixture) {
    let node = fixture.node().await;
    let dies = fixture.node_for(10_000).await;
    fixture.apply(&[each_second("a"), by_hand("b")]).await;
    let paused = fixture.fire_one(dies).await;
    let cancelled = triggered(fixture, dies, "b", 1).await.remove(0);
    for run in [&paused, &cancelled] {
        mark_without_a_look(fixture, dies, run, "e2").await;
    }
    for job in ["a", "b"] {
        let run = triggered(fixture, node, job, 1).await.remove(0);
        fixture.publish(node, &run).await;
    }
    let asked = fixture.store.cancel_run(cancelled.id, &actor("me")).await;
    asked.expect("is asked");
    let stopped = fixture
        .store
        .set_job_enabled(&name("a"), false, &actor("me"))
        .await;
    stopped.expect("pauses");
    fixture.clock.advance(10_000);
    let taken = fixture.claim(node).await;
    assert_eq!(taken.len(), 2);
    let asked: Vec<_> = taken.iter().map(|run| (run, "e2")).collect();
    let begun = begin(fixture, node, &asked).await;
    assert_eq!(begun, BegunDispatch::default(), "no further call is needed");
    fixture.expect(paused.id, RunState::Skipped).await;
    fixture.expect(cancelled.id, RunState::Cancelled).await;
}

/// The executors of another group have names of their own.
pub async fn a_lane_stays_with_the_group_of_its_attempts(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    let run = triggered(fixture, node, "a", 1).await.remove(0);
    fixture.publish(node, &run).await;
    let mut moved = by_hand("a");
    moved.group = "other".parse::<GroupName>().expect("a name");
    fixture.apply(&[moved]).await;
    let next = triggered(fixture, node, "a", 1).await.remove(0);
    let begun = begin(fixture, node, &[(&next, "e1")]).await;
    assert_eq!(begun.accepted, []);
    assert_eq!(begun.waits[0].holder, None, "it is not in the new group");
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    let begun = begin(fixture, node, &[(&next, "e1")]).await;
    assert_eq!(begun.accepted, [attempt(&next)]);
}

/// A node ended after it had marked an attempt, and then the job moved to another group. Both attempts may be at one
/// executor of the earlier group, so the marked one is published again once the other has ended.
pub async fn a_mark_stays_in_the_group_that_its_job_left(fixture: &Fixture) {
    let node = fixture.node().await;
    let dies = fixture.node_for(10_000).await;
    fixture.apply(&[by_hand("a")]).await;
    let lost = triggered(fixture, dies, "a", 1).await.remove(0);
    mark_without_a_look(fixture, dies, &lost, "e2").await;
    let run = triggered(fixture, node, "a", 1).await.remove(0);
    fixture.publish(node, &run).await;
    let mut moved = by_hand("a");
    moved.group = "other".parse::<GroupName>().expect("a name");
    fixture.apply(&[moved]).await;
    fixture.clock.advance(10_000);
    let taken = fixture.claim(node).await.remove(0);
    assert!(taken.maybe_published && taken.id == lost.id);
    let begun = begin(fixture, node, &[(&taken, "e2")]).await;
    assert_eq!(begun.accepted, []);
    assert!(begun.waits[0].undecided);
    fixture.expect(lost.id, RunState::Dispatching).await;
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    let begun = begin(fixture, node, &[(&taken, "e2")]).await;
    assert_eq!(begun.accepted, [attempt(&lost)]);
}
