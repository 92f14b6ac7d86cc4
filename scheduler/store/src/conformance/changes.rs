//! Reading changes of runs and jobs.

use std::collections::BTreeSet;

use cueline_model::{JobId, OutcomeKind, Retry, RunId, RunState};

use super::fixture::{Fixture, actor, attempt, by_hand, each_second, name};
use crate::{KnownRun, RunBrief, RunCursor};

const MANY: usize = 1_000;

async fn begin(fixture: &Fixture) -> RunCursor {
    let live = fixture.store.live_runs(MANY).await.expect("lists");
    live.cursor
}

/// All new runs after the cursor, which is moved.
async fn new_runs(fixture: &Fixture, cursor: &mut RunCursor, limit: usize) -> Vec<RunBrief> {
    let mut runs = Vec::new();
    loop {
        let read = fixture.store.new_runs(cursor, limit).await.expect("reads");
        assert!(!read.restarted, "nothing was restored");
        assert!(
            read.runs.windows(2).all(|two| two[0].id < two[1].id),
            "sorted by id"
        );
        *cursor = read.cursor;
        runs.extend(read.runs);
        if !read.more {
            return runs;
        }
    }
}

fn ids(runs: &[RunBrief]) -> Vec<RunId> {
    runs.iter().map(|run| run.id).collect()
}

/// Runs from before the cursor are not returned, and the others once, with their values.
pub async fn new_runs_are_read_once(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a"), by_hand("b")]).await;
    fixture.trigger("a").await;
    let mut cursor = begin(fixture).await;
    assert_eq!(new_runs(fixture, &mut cursor, MANY).await, []);
    let first = fixture.trigger("a").await[0];
    let second = fixture.trigger("b").await[0];
    let claimed = fixture.claim(node).await;
    let run = claimed.iter().find(|run| run.id == first).expect("claimed");
    fixture.succeed(node, run).await;
    let read = new_runs(fixture, &mut cursor, MANY).await;
    assert_eq!(ids(&read), [first, second]);
    let brief = &read[0];
    assert_eq!(brief.job, name("a"));
    assert_eq!(brief.job_id, run.job.id);
    assert_eq!(brief.group, name("default"));
    assert_eq!((brief.state, brief.attempt), (RunState::Succeeded, 1));
    assert_eq!(brief.executor, Some(name("e1")));
    assert_eq!(brief.ended_at, Some(fixture.now()));
    assert_eq!(read[1].state, RunState::Scheduled);
    assert_eq!((&read[1].executor, read[1].ended_at), (&None, None));
    assert_eq!(new_runs(fixture, &mut cursor, MANY).await, []);
}

/// A limit leaves the others to the next call.
pub async fn new_runs_are_read_in_parts(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let mut cursor = begin(fixture).await;
    let mut written = Vec::new();
    for _ in 0..7 {
        written.extend(fixture.trigger("a").await);
    }
    let part = fixture.store.new_runs(&cursor, 3).await.expect("reads");
    assert_eq!((ids(&part.runs), part.more), (written[..3].to_vec(), true));
    assert_eq!(ids(&new_runs(fixture, &mut cursor, 3).await), written);
}

/// Transactions of several nodes commit in any order, while a reader reads.
pub async fn runs_written_by_several_nodes_are_read_once(fixture: &Fixture) {
    const NODES: usize = 4;
    const EACH: usize = 25;
    fixture.apply(&[by_hand("a")]).await;
    let mut cursor = begin(fixture).await;
    let mut tasks = Vec::new();
    for _ in 0..NODES {
        let store = fixture.harness.open().await;
        tasks.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..EACH {
                let triggered = store.trigger(&super::fixture::ask("a")).await;
                mine.extend(triggered.expect("triggers").runs);
            }
            mine
        }));
    }
    let mut read = Vec::new();
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        read.extend(ids(&new_runs(fixture, &mut cursor, 10).await));
        tokio::task::yield_now().await;
    }
    read.extend(ids(&new_runs(fixture, &mut cursor, 10).await));
    let mut written = BTreeSet::new();
    for task in tasks {
        written.extend(task.await.expect("no panic"));
    }
    assert_eq!(read.len(), NODES * EACH);
    assert_eq!(read.into_iter().collect::<BTreeSet<_>>(), written);
}

/// A fire time of an earlier day gets its run after runs of today were read.
pub async fn runs_of_an_older_day_are_new_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("late"), by_hand("a")]).await;
    fixture.clock.advance(3 * 24 * 3_600_000);
    let mut cursor = begin(fixture).await;
    let today = fixture.trigger("a").await[0];
    assert_eq!(ids(&new_runs(fixture, &mut cursor, MANY).await), [today]);
    let late = fixture.fire(node).await.runs;
    let late: BTreeSet<RunId> = late.iter().map(|run| run.id).collect();
    let read = new_runs(fixture, &mut cursor, MANY).await;
    assert_eq!((read.len(), read.is_empty()), (late.len(), false));
    assert_eq!(ids(&read).into_iter().collect::<BTreeSet<_>>(), late);
    assert!(read[0].fire_at < fixture.now().minus_ms(24 * 3_600_000));
}

async fn changed(fixture: &Fixture, known: &[RunBrief]) -> Vec<(RunId, RunState, u32)> {
    let known: Vec<KnownRun> = known.iter().map(KnownRun::from).collect();
    let read = fixture.store.changed_runs(&known).await.expect("reads");
    assert_eq!(read.deleted, []);
    let values = read.changed.iter();
    values.map(|run| (run.id, run.state, run.attempt)).collect()
}

/// Runs that stayed as they were are left out.
pub async fn changed_runs_are_those_in_another_state_or_attempt(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut retried = by_hand("retried");
    retried.retry = Retry {
        max: 3,
        ..Retry::default()
    };
    fixture.apply(&[by_hand("a"), retried]).await;
    let mut cursor = begin(fixture).await;
    let (stays, ends) = (fixture.trigger("a").await[0], fixture.trigger("a").await[0]);
    let fails = fixture.trigger("retried").await[0];
    let known = new_runs(fixture, &mut cursor, MANY).await;
    assert_eq!(ids(&known), [stays, ends, fails]);
    assert_eq!(changed(fixture, &known).await, []);
    assert_eq!(changed(fixture, &[]).await, []);
    let claimed = fixture.claim(node).await;
    let of = |id| claimed.iter().find(|run| run.id == id).expect("claimed");
    fixture.publish(node, of(ends)).await;
    let seen = changed(fixture, &known).await;
    assert_eq!(seen, [(ends, RunState::Queued, 1)]);
    fixture.end(attempt(of(ends)), OutcomeKind::Succeeded).await;
    fixture.publish(node, of(fails)).await;
    fixture.end(attempt(of(fails)), OutcomeKind::Failed).await;
    let seen = changed(fixture, &known).await;
    let expected = [
        (ends, RunState::Succeeded, 1),
        (fails, RunState::Scheduled, 2),
    ];
    assert_eq!(seen, expected);
}

/// A pause deletes runs that were written ahead of their fire time.
pub async fn deleted_runs_are_named(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let mut cursor = begin(fixture).await;
    let ahead = fixture.fire_ahead(node, 1_000).await.runs;
    let known = new_runs(fixture, &mut cursor, MANY).await;
    assert_eq!(ids(&known), [ahead[0].id]);
    let paused = fixture
        .store
        .set_job_enabled(&name("a"), false, &actor("a test"))
        .await;
    paused.expect("pauses");
    let known: Vec<KnownRun> = known.iter().map(KnownRun::from).collect();
    let read = fixture.store.changed_runs(&known).await.expect("reads");
    assert_eq!((read.changed.len(), read.deleted), (0, vec![ahead[0].id]));
}

/// Ended runs are left out, and the limit keeps the newest.
pub async fn live_runs_are_listed_newest_first(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    let mut written = Vec::new();
    for _ in 0..4 {
        written.extend(fixture.trigger("a").await);
    }
    let claimed = fixture.claim(node).await;
    fixture.succeed(node, &claimed[3]).await;
    let live = fixture.store.live_runs(2).await.expect("lists");
    assert_eq!(ids(&live.live), [written[2], written[1]]);
    assert_eq!(live.live[0].state, RunState::Scheduled);
}

/// Creating, changing, pausing, resuming and deleting.
pub async fn each_change_of_a_job_changes_the_fingerprint(fixture: &Fixture) {
    let read = async || fixture.store.jobs_fingerprint().await.expect("reads");
    let mut seen = vec![read().await];
    fixture.apply(&[by_hand("a")]).await;
    seen.push(read().await);
    fixture.apply(&[by_hand("a")]).await;
    assert_eq!(read().await, seen[1], "nothing has changed");
    let mut changed = by_hand("a");
    "another".clone_into(&mut changed.description);
    fixture.apply(&[changed]).await;
    seen.push(read().await);
    for enabled in [false, true] {
        let (job, by) = (name("a"), actor("a test"));
        let set = fixture.store.set_job_enabled(&job, enabled, &by);
        set.await.expect("sets");
        seen.push(read().await);
    }
    let deleted = fixture.store.delete_job(&name("a"), &actor("a test")).await;
    deleted.expect("deletes");
    fixture.apply(&[by_hand("b")]).await;
    seen.push(read().await);
    for (i, one) in seen.iter().enumerate() {
        assert!(!seen[..i].contains(one), "{i}: {seen:?}");
    }
}

/// Deleted jobs are left out.
pub async fn job_briefs_are_paged_by_id(fixture: &Fixture) {
    let mut paused = by_hand("b");
    paused.group = name("other");
    paused.enabled = Some(false);
    fixture.apply(&[by_hand("c"), paused, by_hand("a")]).await;
    fixture.apply(&[by_hand("gone")]).await;
    let deleted = fixture
        .store
        .delete_job(&name("gone"), &actor("a test"))
        .await;
    deleted.expect("deletes");
    let page = async |after: Option<JobId>| {
        let read = fixture.store.job_briefs(after, 2).await;
        read.expect("reads")
    };
    let first = page(None).await;
    assert_eq!(first.len(), 2);
    assert!(first[0].id < first[1].id);
    let second = page(Some(first[1].id)).await;
    assert_eq!(second.len(), 1);
    assert_eq!(page(Some(second[0].id)).await, []);
    let all = [first, second].concat();
    let b = all.iter().find(|job| job.name == name("b")).expect("b");
    assert_eq!((&b.group, b.version, b.enabled), (&name("other"), 1, false));
    assert!(all.iter().filter(|job| job.enabled).count() == 2);
}
