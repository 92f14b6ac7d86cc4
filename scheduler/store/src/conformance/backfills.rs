//! Backfills of past windows.

use std::collections::BTreeSet;

use cueline_model::{JobSpec, OutcomeKind, RunKind, RunState, Timestamp};

use super::fire_rules::actions;
use super::fixture::{
    Fixture, LONG_LEASE_MS, START, actor, attempt, each_second, mark_in_lane, name, refused,
};
use crate::{
    Backfill, BackfillChange, BackfillFilter, BackfillState, ClaimedRun, ErrorKind, NewBackfill,
    NodeId, Precondition, RunFilter,
};

fn at(seconds: u64) -> Timestamp {
    START.plus_ms(seconds * 1_000)
}

/// The seconds from `from` on, before `to`.
fn window(job: &str, from: u64, to: u64, parallel: u32) -> NewBackfill {
    NewBackfill {
        job: name(job),
        condition: Precondition::None,
        from: at(from),
        to: at(to),
        parallel,
        include_excluded: false,
        total: to - from,
        by: actor("ann"),
    }
}

async fn start(fixture: &Fixture, new: &NewBackfill) -> Backfill {
    let started = fixture.store.start_backfill(new).await;
    started.expect("starts")
}

async fn advance(fixture: &Fixture) -> usize {
    let advanced = fixture.store.advance_backfills().await;
    advanced.expect("advances").runs
}

/// Publishes and ends all runs that wait. Returns their fire times in seconds, and how many were there at once.
async fn run_all(fixture: &Fixture, node: NodeId) -> (Vec<i64>, usize) {
    let runs = fixture.claim(node).await;
    for run in &runs {
        fixture.succeed(node, run).await;
    }
    let seconds = |run: &ClaimedRun| run.fire_at.since_ms(START) / 1_000;
    (runs.iter().map(seconds).collect(), runs.len())
}

async fn detail(fixture: &Fixture, id: i64) -> (Backfill, Vec<(RunState, u64)>) {
    let detail = fixture.store.backfill(id).await.expect("reads");
    (detail.backfill, detail.runs)
}

/// Each fire time of the window runs once, oldest first, as many at once as asked for.
pub async fn a_backfill_runs_each_fire_time_once(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.clock.advance(100_000);
    for (job, parallel) in [("serial", 1), ("wide", 4)] {
        fixture.apply(&[each_second(job)]).await;
        let started = start(fixture, &window(job, 10, 30, parallel)).await;
        assert_eq!((started.state, started.total), (BackfillState::Running, 20));
        let (mut ran, mut rounds) = (Vec::new(), 0);
        while advance(fixture).await > 0 {
            // Nothing more comes while these are at work, whoever asks.
            let other = fixture.harness.open().await;
            assert_eq!(other.advance_backfills().await.expect("advances").runs, 0);
            let (fires, at_once) = run_all(fixture, node).await;
            assert!(at_once <= parallel as usize, "{at_once}");
            ran.extend(fires);
            rounds += 1;
        }
        assert_eq!(ran, (10..30).collect::<Vec<i64>>());
        assert_eq!(rounds, 20 / parallel);
        let (ended, runs) = detail(fixture, started.id).await;
        assert_eq!((ended.state, ended.done()), (BackfillState::Finished, 20));
        assert_eq!(runs, [(RunState::Succeeded, 20)]);
        // A window can be run again.
        let again = start(fixture, &window(job, 10, 12, 2)).await;
        assert_eq!(advance(fixture).await, 2);
        run_all(fixture, node).await;
        advance(fixture).await;
        let (again, runs) = detail(fixture, again.id).await;
        assert_eq!(
            (again.state, runs),
            (BackfillState::Finished, vec![(RunState::Succeeded, 2)])
        );
    }
    let filter = RunFilter {
        kinds: vec![RunKind::Backfill],
        limit: 1_000,
        ..RunFilter::default()
    };
    let runs = fixture.store.list_runs(&filter).await.expect("lists").runs;
    assert_eq!(runs.len(), 44);
}

/// What a dead node has left is continued by another one from the cursor.
pub async fn a_backfill_outlives_its_node(fixture: &Fixture) {
    fixture.node_for(1_000).await;
    fixture.clock.advance(100_000);
    fixture.apply(&[each_second("a")]).await;
    let started = start(fixture, &window("a", 10, 20, 3)).await;
    assert_eq!(advance(fixture).await, 3);
    let node = fixture.node().await;
    let other = fixture.harness.open().await;
    let registered = other.register_node("other", LONG_LEASE_MS).await;
    registered.expect("registers");
    let mut ran = BTreeSet::new();
    for _ in 0..8 {
        let (fires, _) = run_all(fixture, node).await;
        for fire in fires {
            assert!(ran.insert(fire), "{fire} ran twice");
        }
        other.advance_backfills().await.expect("advances");
    }
    assert_eq!(ran, (10..20).collect());
    assert_eq!(
        detail(fixture, started.id).await.0.state,
        BackfillState::Finished
    );
}

/// Pause, resume, cancel, each in the audit log.
pub async fn a_backfill_is_paused_resumed_and_cancelled(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.clock.advance(100_000);
    fixture.apply(&[each_second("a")]).await;
    let by = actor("bob");
    let id = start(fixture, &window("a", 10, 60, 2)).await.id;
    let again = fixture.store.start_backfill(&window("a", 10, 60, 2)).await;
    refused(again, ErrorKind::Conflict, "which is running");
    let change = |change| fixture.store.change_backfill(id, change, &by);
    assert_eq!(advance(fixture).await, 2);
    for _ in 0..2 {
        let paused = change(BackfillChange::Pause).await.expect("pauses");
        assert_eq!(paused.state, BackfillState::Paused);
        assert_eq!(paused.changed_by.as_deref(), Some("user bob"));
    }
    // What is there goes on, and nothing follows.
    assert_eq!(run_all(fixture, node).await.0, [10, 11]);
    assert_eq!(advance(fixture).await, 0);
    change(BackfillChange::Resume).await.expect("resumes");
    assert_eq!(advance(fixture).await, 2);
    let runs = fixture.claim(node).await;
    fixture.publish(node, &runs[0]).await;
    let cancelled = change(BackfillChange::Cancel).await.expect("cancels");
    assert_eq!(cancelled.state, BackfillState::Cancelled);
    fixture.expect(runs[1].id, RunState::Cancelled).await;
    let pending = fixture
        .store
        .pending_cancellations(10)
        .await
        .expect("lists");
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].run, runs[0].id);
    assert_eq!(advance(fixture).await, 0);
    refused(
        change(BackfillChange::Resume).await,
        ErrorKind::Conflict,
        "it is cancelled",
    );
    let missing = fixture
        .store
        .change_backfill(99, BackfillChange::Pause, &by)
        .await;
    refused(missing, ErrorKind::NotFound, "no backfill 99");
    let expected = [
        "backfill.start",
        "backfill.pause",
        "backfill.resume",
        "backfill.cancel",
    ];
    let actions = actions(fixture).await;
    let own: Vec<&str> = actions
        .iter()
        .map(String::as_str)
        .filter(|action| action.starts_with("backfill."))
        .collect();
    assert_eq!(own, expected);
    let listed = |namespace: &str| BackfillFilter {
        namespace: Some(name(namespace)),
        limit: 10,
        ..BackfillFilter::default()
    };
    let found = fixture
        .store
        .backfills(&listed("default"))
        .await
        .expect("lists");
    assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [id]);
    let elsewhere = fixture
        .store
        .backfills(&listed("team-a"))
        .await
        .expect("lists");
    assert!(elsewhere.is_empty());
}

/// The backfill of a paused job waits, and that of a deleted one ends.
pub async fn a_backfill_waits_for_its_job(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.clock.advance(100_000);
    fixture.apply(&[each_second("a")]).await;
    let (job, by) = (name("a"), actor("ann"));
    let outdated = NewBackfill {
        condition: Precondition::Version(7),
        ..window("a", 10, 20, 1)
    };
    let stale = fixture.store.start_backfill(&outdated).await;
    assert_eq!(
        stale.expect_err("is refused").kind(),
        ErrorKind::Precondition
    );
    let id = start(fixture, &window("a", 10, 20, 1)).await.id;
    fixture
        .store
        .set_job_enabled(&job, false, &by)
        .await
        .expect("pauses");
    assert_eq!(advance(fixture).await, 0);
    fixture
        .store
        .set_job_enabled(&job, true, &by)
        .await
        .expect("resumes");
    assert_eq!(advance(fixture).await, 1);
    run_all(fixture, node).await;
    // An edit of the schedule moves no fire time of the window.
    let edited = JobSpec {
        schedule: serde_json::from_value(serde_json::json!({ "every": "7s" })).expect("a schedule"),
        ..each_second("a")
    };
    fixture.apply(&[edited]).await;
    assert_eq!(advance(fixture).await, 1);
    assert_eq!(run_all(fixture, node).await.0, [11]);
    fixture.store.delete_job(&job, &by).await.expect("deletes");
    assert_eq!(advance(fixture).await, 0);
    let (ended, _) = detail(fixture, id).await;
    assert_eq!(ended.state, BackfillState::Cancelled);
    assert_eq!(ended.message.as_deref(), Some("its job was deleted"));
}

/// A fire of the schedule goes before the runs of a backfill that wait for the same lane.
pub async fn a_backfill_joins_at_the_end_of_the_lane(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.heartbeats(&["e1", "e2"]).await;
    fixture.clock.advance(100_000);
    fixture.apply(&[each_second("a")]).await;
    let fire = fixture.fire_one(node).await;
    fixture.clock.advance(10);
    start(fixture, &window("a", 10, 20, 1)).await;
    assert_eq!(advance(fixture).await, 1);
    let old = fixture.claim(node).await.remove(0);
    assert_eq!((old.kind, old.priority()), (RunKind::Backfill, 0));
    let begun = fixture
        .store
        .begin_dispatch_in_lanes(node, &[mark_in_lane(&old, "e1")])
        .await
        .expect("answers");
    assert_eq!(begun.accepted, []);
    assert_eq!(begun.waits[0].reason.run(), fire.id);
    let begun = fixture
        .store
        .begin_dispatch_in_lanes(node, &[mark_in_lane(&fire, "e1")])
        .await
        .expect("answers");
    assert_eq!(begun.accepted, [attempt(&fire)]);
    fixture
        .store
        .confirm_dispatch(&begun.accepted)
        .await
        .expect("confirms");
    fixture.end(attempt(&fire), OutcomeKind::Succeeded).await;
    let begun = fixture
        .store
        .begin_dispatch_in_lanes(node, &[mark_in_lane(&old, "e2")])
        .await
        .expect("answers");
    assert_eq!(begun.accepted, [attempt(&old)]);
}
