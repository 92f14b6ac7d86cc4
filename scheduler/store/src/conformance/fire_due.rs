//! Firing due jobs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cueline_model::{
    DurationMs, ExecutorName, Job, Route, RunId, RunKind, RunState, Schedule, Shard, Timestamp,
};

use super::fixture::{
    EachFireTime, Fixture, START, actor, each_second, heartbeat, job_with, name, runs_at,
};
use crate::{FireDueRequest, NodeId, Plan, PlannedRun, Planner, RunFilter, SkippedFires};

fn request(node: NodeId) -> FireDueRequest {
    FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 2_000,
        max_runs: usize::MAX,
    }
}

/// Each due job gets its run and its next fire time.
pub async fn due_jobs_fire_once(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    assert_eq!(fixture.fire(node).await.due_jobs, 0, "nothing is due yet");
    fixture.clock.advance(1_000);
    let fired = fixture.fire(node).await;
    assert_eq!(fired.due_jobs, 2);
    assert_eq!(fired.runs.len(), 2);
    assert!(!fired.limit_reached);
    for run in &fired.runs {
        assert_eq!(run.attempt, 1);
        assert_eq!(run.kind, RunKind::Schedule);
        assert_eq!(run.fire_at, START.plus_ms(1_000));
        assert_eq!(run.due_at, run.fire_at);
        assert_eq!(run.shard, Shard::whole());
        assert!(!run.maybe_published);
        let stored = fixture.run(run.id).await;
        assert_eq!(stored.state, RunState::Scheduled);
        assert_eq!(stored.job, run.job.spec.name);
        assert_eq!(stored.created_at, fixture.now());
    }
    assert_eq!(fixture.next_fire("a").await, Some(START.plus_ms(2_000)));
    assert_eq!(fixture.fire(node).await.due_jobs, 0, "once");
}

/// Plans five runs for each due job.
struct FiveRuns;

impl Planner for FiveRuns {
    fn plan(&self, job: &Job, due: Timestamp, _now: Timestamp, _live: &[ExecutorName]) -> Plan {
        let run = |number: u64| PlannedRun {
            fire_at: due.plus_ms(number),
            due_at: due,
            shard: Shard::whole(),
            executor: None,
            skipped: None,
        };
        Plan {
            runs: (0..5).map(run).collect(),
            next_fire: job.spec.next_fire(due.plus_ms(60_000)),
        }
    }
}

/// After an outage, a transaction with all missed runs of all jobs could time out again and again.
pub async fn enough_runs_end_a_transaction(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[each_second("a"), each_second("b"), each_second("c")])
        .await;
    fixture.clock.advance(1_000);
    let request = FireDueRequest {
        max_runs: 6,
        ..request(node)
    };
    let fire = async || {
        let fired = fixture.store.fire_due(request, &FiveRuns).await;
        let fired = fired.expect("fires");
        (fired.runs.len(), fired.limit_reached)
    };
    assert_eq!(fire().await, (10, true), "the third job is left");
    assert_eq!(fire().await, (5, false));
    assert_eq!(fire().await, (0, false));
}

/// Runs of the same due time are ordered by priority, then by id.
pub async fn order_is_due_priority_id(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut low = each_second("low");
    low.priority = 1;
    let mut high = each_second("high");
    high.priority = 9;
    let mut late = each_second("late");
    late.priority = 9;
    late.schedule = Schedule::Once {
        at: START.plus_ms(2_000),
    };
    fixture
        .apply(&[late, low, each_second("mid"), each_second("mid2"), high])
        .await;
    let fired = fixture.fire_ahead(node, 2_000).await;
    let names: Vec<&str> = fired
        .runs
        .iter()
        .map(|r| r.job.spec.name.as_str())
        .collect();
    assert_eq!(names, ["high", "mid", "mid2", "low", "late"]);
}

/// A call fires jobs that are due within the horizon, up to its limit.
pub async fn horizon_and_limit_bound_a_call(fixture: &Fixture) {
    let node = fixture.node().await;
    let specs: Vec<_> = (0..5).map(|n| each_second(&format!("j{n}"))).collect();
    fixture.apply(&specs).await;
    let mut due = request(node);
    due.horizon_ms = 999;
    let nothing = fixture
        .store
        .fire_due(due, &EachFireTime)
        .await
        .expect("fires");
    assert_eq!(nothing.due_jobs, 0);
    due.horizon_ms = 1_000;
    due.limit = 3;
    let some = fixture
        .store
        .fire_due(due, &EachFireTime)
        .await
        .expect("fires");
    assert_eq!(
        (some.due_jobs, some.runs.len(), some.limit_reached),
        (3, 3, true)
    );
    let rest = fixture
        .store
        .fire_due(due, &EachFireTime)
        .await
        .expect("fires");
    assert_eq!((rest.due_jobs, rest.limit_reached), (2, false));
}

/// Plans the same fire time at each call.
struct Stuck(Timestamp);

impl Planner for Stuck {
    fn plan(&self, job: &Job, _due: Timestamp, _now: Timestamp, live: &[ExecutorName]) -> Plan {
        Plan {
            runs: runs_at(job, self.0, live),
            next_fire: Some(self.0),
        }
    }
}

/// (job, fire time, shard) has one run, even if it is planned twice.
pub async fn fire_time_is_unique(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut sharded = each_second("sharded");
    sharded.route = Route::Sharded(vec![String::new(); 3]);
    fixture.apply(&[each_second("a"), sharded]).await;
    fixture.clock.advance(1_000);
    let at = fixture.now();
    let first = fixture.store.fire_due(request(node), &Stuck(at)).await;
    assert_eq!(first.expect("fires").runs.len(), 4);
    let second = fixture.store.fire_due(request(node), &Stuck(at)).await;
    let second = second.expect("leaves alone what is there");
    assert_eq!((second.due_jobs, second.runs.len()), (2, 0));
    // Taken fire times hold no new one of the same call back.
    fixture.apply(&[each_second("b")]).await;
    fixture.clock.advance(1_000);
    let third = fixture.store.fire_due(request(node), &Stuck(at)).await;
    let third = third.expect("writes what is new");
    assert_eq!((third.due_jobs, third.runs.len()), (3, 1));
    let all = RunFilter {
        limit: 100,
        ..RunFilter::default()
    };
    assert_eq!(fixture.store.runs(&all).await.expect("lists").len(), 5);
}

pub(super) struct Skips;

impl Planner for Skips {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        let mut runs = runs_at(job, now, live);
        runs.insert(
            0,
            PlannedRun {
                fire_at: now.minus_ms(1_000),
                due_at: now.minus_ms(1_000),
                shard: Shard::whole(),
                executor: None,
                skipped: Some(SkippedFires {
                    missed: true,
                    reason: "missed by 12 s".to_owned(),
                    count: 9,
                    since: due,
                }),
            },
        );
        Plan {
            runs,
            next_fire: job.spec.next_fire(now),
        }
    }
}

/// A skipped run has its reason and the number of fire times that it stands for.
pub async fn skipped_runs_say_why(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    fixture.clock.advance(10_000);
    let fired = fixture.store.fire_due(request(node), &Skips).await;
    let fired = fired.expect("fires");
    assert_eq!(fired.runs.len(), 1, "the skipped one is not to be run");
    let skipped = RunFilter {
        states: vec![RunState::Skipped],
        limit: 10,
        ..RunFilter::default()
    };
    let runs = fixture.store.runs(&skipped).await.expect("lists");
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].fire_at, fixture.now().minus_ms(1_000));
    assert_eq!(runs[0].ended_at, Some(fixture.now()));
    let message = runs[0].message.clone().expect("a reason");
    assert!(message.contains("missed by 12 s"), "{message}");
    assert!(message.contains('9'), "{message}");
    assert_eq!(fixture.timeline(runs[0].id).await, ["skipped"]);
    assert!(fixture.claim(node).await.is_empty(), "no node works on it");
}

/// Records the candidates that it was given.
#[derive(Default)]
struct Asks(Mutex<Vec<(String, Vec<String>)>>);

impl Planner for Asks {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        let names = live.iter().map(|n| n.as_str().to_owned()).collect();
        let mut asked = self.0.lock().expect("no panic");
        asked.push((job.spec.name.as_str().to_owned(), names));
        EachFireTime.plan(job, due, now, live)
    }
}

/// Candidates are alive, not refused, belong to the job's group, announce its handler, and are sorted by name.
pub async fn live_candidates_reach_the_planner(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut elsewhere = each_second("elsewhere");
    elsewhere.group = name("other");
    fixture.apply(&[each_second("here"), elsewhere]).await;
    let mut other = heartbeat("x");
    other.executor.group = name("other");
    let mut unable = heartbeat("c");
    unable.capabilities = vec!["shell".to_owned()];
    let mut drains = heartbeat("d");
    drains.draining = true;
    let mut gone = heartbeat("e");
    gone.gone = true;
    let mut refused = heartbeat("f");
    refused.refusal = Some("unsafe times".to_owned());
    let heartbeats = [
        heartbeat("b"),
        heartbeat("a"),
        other,
        unable,
        drains,
        gone,
        refused,
    ];
    fixture
        .store
        .record_heartbeats(&heartbeats)
        .await
        .expect("records");
    fixture.clock.advance(1_000);
    let asks = Asks::default();
    fixture
        .store
        .fire_due(request(node), &asks)
        .await
        .expect("fires");
    let mut asked = asks.0.into_inner().expect("no panic");
    asked.sort();
    let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        asked,
        [
            ("elsewhere".to_owned(), names(&["x"])),
            ("here".to_owned(), names(&["a", "b"]))
        ]
    );
}

/// Holds jobs with silent executors.
struct HoldsSilent;

impl Planner for HoldsSilent {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        EachFireTime.plan(job, due, now, live)
    }

    fn holds(&self, _job: &Job, silent: &[ExecutorName]) -> bool {
        !silent.is_empty()
    }
}

/// A held job stays due and does not stop the others.
pub async fn held_jobs_stay_due(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut elsewhere = each_second("elsewhere");
    elsewhere.group = name("other");
    elsewhere.route = Route::Broadcast;
    let mut broadcast = each_second("a");
    broadcast.route = Route::Broadcast;
    fixture.apply(&[broadcast, elsewhere]).await;
    fixture.heartbeats(&["e1"]).await;
    fixture.clock.advance(15_000);
    let fire = async || {
        let fired = fixture.store.fire_due(request(node), &HoldsSilent).await;
        fired.expect("fires")
    };
    assert_eq!(fire().await.due_jobs, 1);
    assert_eq!(fixture.next_fire("a").await, Some(START.plus_ms(1_000)));
    fixture.heartbeats(&["e1"]).await;
    assert_eq!(fire().await.due_jobs, 2);
}

/// Each run of a job has a number, across fires and kinds.
pub async fn turns_count_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    assert_eq!(fixture.fire_one(node).await.sequence, 0);
    assert_eq!(fixture.fire_one(node).await.sequence, 1);
    fixture.trigger("a").await;
    assert_eq!(fixture.claim(node).await[0].sequence, 2);
    assert_eq!(fixture.fire_one(node).await.sequence, 3);
}

/// A paused job has no next fire time; its resumption starts a new count.
pub async fn paused_jobs_do_not_fire(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut paused = each_second("paused");
    paused.enabled = Some(false);
    fixture.apply(&[each_second("a"), paused]).await;
    fixture
        .store
        .set_job_enabled(&name("a"), false, &actor("me"))
        .await
        .expect("pauses");
    assert_eq!(fixture.next_fire("a").await, None);
    fixture.clock.advance(60_000);
    assert_eq!(fixture.fire(node).await.due_jobs, 0);
    fixture
        .store
        .set_job_enabled(&name("a"), true, &actor("me"))
        .await
        .expect("resumes");
    assert_eq!(
        fixture.next_fire("a").await,
        Some(START.plus_ms(61_000)),
        "what passed meanwhile is not made up for"
    );
}

/// Shards keep their items, broadcast runs their executors.
pub async fn shards_and_pins_are_kept(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut sharded = each_second("a-sharded");
    sharded.route = Route::Sharded(vec!["Beijing".to_owned(), String::new()]);
    let mut broadcast = each_second("b-broadcast");
    broadcast.route = Route::Broadcast;
    fixture.apply(&[sharded, broadcast]).await;
    fixture.heartbeats(&["e2", "e1"]).await;
    fixture.clock.advance(1_000);
    let fired = fixture.fire(node).await;
    let seen: Vec<_> = fired
        .runs
        .iter()
        .map(|r| {
            let executor = r.executor.as_ref().map(ExecutorName::as_str);
            (
                r.shard.index,
                r.shard.total,
                r.shard.item.as_deref(),
                executor,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (0, 2, Some("Beijing"), None),
            (1, 2, None, None),
            (0, 2, None, Some("e1")),
            (1, 2, None, Some("e2")),
        ]
    );
    let stored = fixture.run(fired.runs[0].id).await;
    assert_eq!(stored.shard, fired.runs[0].shard);
    let pinned = fixture.run(fired.runs[3].id).await;
    assert_eq!(pinned.executor, Some(name("e2")));
}

/// Panics in the middle of the transaction.
struct Panics(Mutex<u32>);

impl Planner for Panics {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        let mut calls = self.0.lock().expect("no panic before");
        *calls += 1;
        assert!(*calls < 3, "the planner falls over");
        EachFireTime.plan(job, due, now, live)
    }
}

/// An unfinished fire leaves no trace, and the store goes on working.
pub async fn panicking_planner_leaves_nothing(fixture: &Fixture) {
    let node = fixture.node().await;
    let specs: Vec<_> = (0..5).map(|n| each_second(&format!("j{n}"))).collect();
    fixture.apply(&specs).await;
    fixture.clock.advance(1_000);
    let store = Arc::clone(&fixture.store);
    let fall = tokio::spawn(async move {
        let planner = Panics(Mutex::new(0));
        let fired = store.fire_due(request(node), &planner).await;
        fired.map(|f| f.due_jobs)
    });
    assert!(fall.await.is_err(), "the panic comes out");
    let stats = fixture.store.stats().await.expect("counts");
    assert!(stats.live.is_empty(), "nothing was written: {stats:?}");
    // A server may hold the locks of the transaction for a moment after the call has ended.
    let fire_all = async { while fixture.fire(node).await.due_jobs != 5 {} };
    let fired = tokio::time::timeout(Duration::from_secs(30), fire_all).await;
    fired.expect("the store goes on working");
}

/// All committed data is there after the store was opened again.
pub async fn committed_data_outlives_reopening(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[each_second("a"), job_with("d", delay(5))])
        .await;
    let run = fixture.fire_one(node).await;
    let again = fixture.harness.open().await;
    let seen = again.run(run.id).await.expect("is there");
    assert_eq!(seen.run.state, RunState::Scheduled);
    let unknown = RunId(run.id.0 + 1_000);
    assert!(again.run(unknown).await.is_err());
    assert_eq!(again.stats().await.expect("counts").jobs, 2);
}

fn delay(seconds: u64) -> Schedule {
    Schedule::FixedDelay {
        after: DurationMs::secs(seconds),
    }
}
