//! G6, G7, G8 with `scope = "group"`: all executors of a group share the lane of a job.

use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunState};
use cueline_protocol::Trigger;
use serde_json::{Value, json};

use crate::fixture::{FakeExecutor, Fixture, tick};

async fn executors(fixture: &Fixture, names: &[&'static str]) -> Vec<FakeExecutor> {
    let mut executors = Vec::new();
    for name in names {
        executors.push(fixture.executor(name).await);
    }
    executors
}

async fn heartbeats(executors: &[FakeExecutor]) {
    for executor in executors {
        executor.heartbeat().await;
    }
}

/// All triggers in the queues, with the position of their executor.
async fn take(executors: &[FakeExecutor]) -> Vec<(usize, Trigger)> {
    let mut taken = Vec::new();
    for (at, executor) in executors.iter().enumerate() {
        taken.extend(
            executor
                .take()
                .await
                .into_iter()
                .map(|trigger| (at, trigger)),
        );
    }
    taken
}

/// Triggers the job `count` times, a millisecond apart, and lets the engine publish what it may.
async fn trigger(fixture: &Fixture, engine: &mut ManualEngine, from_ms: i64, count: i64) -> usize {
    let mut published = 0;
    for n in 0..count {
        fixture.set(from_ms + n);
        fixture.trigger("job").await;
        published += tick(engine).await;
    }
    published
}

async fn given(rest: Value) -> (Fixture, ManualEngine, Vec<FakeExecutor>) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let executors = executors(&fixture, &["e1", "e2", "e3"]).await;
    fixture.apply("job", rest).await;
    tick(&mut engine).await;
    (fixture, engine, executors)
}

/// A slow job with the default route. Each trigger goes to the executor that has the lane, until the lane is idle.
#[tokio::test]
async fn a_slow_serial_job_is_at_one_executor_at_a_time() {
    let fixture = Fixture::new().await;
    let mut nodes = [fixture.engine("one").await, fixture.engine("two").await];
    let executors = executors(&fixture, &["e1", "e2", "e3"]).await;
    fixture
        .apply("job", json!({ "schedule": { "every": "1s" } }))
        .await;
    let mut sent = Vec::new();
    for second in 1..=6_i64 {
        fixture.set(second * 1_000);
        heartbeats(&executors).await;
        let first = usize::from(second % 3 == 0);
        for at in [first, 1 - first] {
            tick(&mut nodes[at]).await;
        }
        sent.extend(take(&executors).await);
    }
    assert_eq!(sent.len(), 6);
    let holder = sent[0].0;
    assert!(sent.iter().all(|(at, _)| *at == holder), "{sent:#?}");
    for (at, trigger) in &sent {
        executors[*at]
            .ended(trigger, OutcomeKind::Succeeded, fixture.now())
            .await;
    }
    fixture.set(7_000);
    heartbeats(&executors).await;
    for node in &mut nodes {
        tick(node).await;
    }
    assert_eq!(
        take(&executors).await[0].0,
        6 % 3,
        "the route chooses again"
    );
}

#[tokio::test]
async fn scope_executor_keeps_a_lane_for_each_executor() {
    let (fixture, mut engine, executors) = given(json!({ "scope": "executor" })).await;
    assert_eq!(trigger(&fixture, &mut engine, 1_000, 3).await, 3);
    let at: Vec<usize> = take(&executors).await.iter().map(|(at, _)| *at).collect();
    assert_eq!(at, [0, 1, 2]);
}

/// The holder drains: it finishes what runs, and takes nothing more. What comes meanwhile waits for its end, in order.
#[tokio::test]
async fn runs_wait_for_a_holder_that_takes_no_triggers() {
    let (fixture, mut engine, executors) = given(json!({})).await;
    assert_eq!(trigger(&fixture, &mut engine, 1_000, 1).await, 1);
    let running = take(&executors).await.remove(0);
    executors[running.0].drain().await;
    assert_eq!(trigger(&fixture, &mut engine, 2_000, 3).await, 0);
    let states = fixture.states("job").await;
    assert_eq!(states[1..], [RunState::Scheduled; 3]);
    // A probe changes nothing.
    fixture.set(2_900);
    assert_eq!(tick(&mut engine).await, 0);
    executors[running.0]
        .ended(&running.1, OutcomeKind::Succeeded, fixture.now())
        .await;
    assert_eq!(tick(&mut engine).await, 3);
    let sent = take(&executors).await;
    let runs: Vec<_> = fixture.runs("job").await.iter().map(|r| r.id).collect();
    assert_eq!(
        sent.iter().map(|(_, t)| t.run).collect::<Vec<_>>(),
        runs[1..]
    );
    assert!(
        sent.iter()
            .all(|(at, _)| *at == sent[0].0 && *at != running.0)
    );
}

#[tokio::test]
async fn a_waiting_run_that_was_cancelled_holds_up_no_other() {
    let (fixture, mut engine, executors) = given(json!({})).await;
    trigger(&fixture, &mut engine, 1_000, 1).await;
    let running = take(&executors).await.remove(0);
    executors[running.0].drain().await;
    trigger(&fixture, &mut engine, 2_000, 3).await;
    let runs: Vec<_> = fixture.runs("job").await.iter().map(|r| r.id).collect();
    let by = crate::fixture::actor("me");
    for run in &runs[1..3] {
        fixture.real().cancel_run(*run, &by).await.expect("cancels");
    }
    executors[running.0]
        .ended(&running.1, OutcomeKind::Succeeded, fixture.now())
        .await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(take(&executors).await[0].1.run, runs[3]);
}

#[tokio::test]
async fn discard_and_cover_hold_no_backlog_for_a_holder_that_takes_no_triggers() {
    for (block, ended) in [
        ("discard", RunState::Discarded),
        ("cover", RunState::Covered),
    ] {
        let (fixture, mut engine, executors) = given(json!({ "block": block })).await;
        trigger(&fixture, &mut engine, 1_000, 1).await;
        let running = take(&executors).await.remove(0);
        executors[running.0].drain().await;
        assert_eq!(trigger(&fixture, &mut engine, 2_000, 3).await, 0);
        // Those behind the first one are looked at with its next probe.
        for at in [2_300, 2_600, 2_900] {
            fixture.set(at);
            tick(&mut engine).await;
        }
        let last = if block == "discard" {
            ended
        } else {
            RunState::Scheduled
        };
        assert_eq!(
            fixture.states("job").await[1..],
            [ended, ended, last],
            "{block}"
        );
        let runs = fixture.runs("job").await;
        assert!(runs[1].message.is_some(), "says why");
        executors[running.0]
            .ended(&running.1, OutcomeKind::Succeeded, fixture.now())
            .await;
        assert_eq!(tick(&mut engine).await, usize::from(block == "cover"));
    }
}

#[tokio::test]
async fn a_lane_with_places_is_bounded_over_all_executors() {
    let (fixture, mut engine, executors) = given(json!({ "block": { "parallel": 2 } })).await;
    assert_eq!(trigger(&fixture, &mut engine, 1_000, 5).await, 2);
    let sent = take(&executors).await;
    assert_eq!(sent.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1]);
    let (at, first) = &sent[0];
    executors[*at]
        .ended(first, OutcomeKind::Succeeded, fixture.now())
        .await;
    assert_eq!(tick(&mut engine).await, 1);
    let next = take(&executors).await;
    assert_eq!(next[0].1.run, fixture.runs("job").await[2].id);
    for (at, trigger) in [&sent[1], &next[0]] {
        executors[*at]
            .ended(trigger, OutcomeKind::Succeeded, fixture.now())
            .await;
    }
    assert_eq!(tick(&mut engine).await, 2);
}

#[tokio::test]
async fn the_backlog_of_a_lane_counts_the_runs_that_wait() {
    let rest = json!({ "block": { "parallel": 1 }, "backlog": 2 });
    let (fixture, mut engine, executors) = given(rest).await;
    assert_eq!(trigger(&fixture, &mut engine, 1_000, 4).await, 1);
    for at in [1_300, 1_600] {
        fixture.set(at);
        tick(&mut engine).await;
    }
    take(&executors).await;
    let runs = fixture.runs("job").await;
    let states: Vec<RunState> = runs.iter().map(|r| r.state).collect();
    assert_eq!(states[1..3], [RunState::Scheduled; 2]);
    assert_eq!(states[3], RunState::Discarded);
    assert_eq!(runs[3].message.as_deref(), Some("the backlog of 2 is full"));
}

/// The holder dies with a backlog. Its triggers go to one other executor, in the order of their fire times and before a
/// younger run.
#[tokio::test]
async fn a_failover_keeps_the_order_of_the_lane() {
    let (fixture, mut engine, executors) = given(json!({})).await;
    engine.receive_loopback_heartbeat();
    assert_eq!(trigger(&fixture, &mut engine, 1_000, 3).await, 3);
    let holder = fixture.runs("job").await[0]
        .executor
        .clone()
        .expect("is routed");
    let others = || executors.iter().filter(|e| e.name != holder.as_str());
    for at in (2_000..=34_000).step_by(1_000) {
        fixture.set(at);
        engine.receive_loopback_heartbeat();
        for executor in others() {
            executor.heartbeat().await;
        }
        engine.tick().await.expect("a turn without faults");
    }
    // It comes while the attempts of the silent executor count.
    assert_eq!(trigger(&fixture, &mut engine, 34_001, 1).await, 0);
    // The returned ones are due anew, after it.
    fixture.set(34_100);
    assert_eq!(engine.fail_over().await.expect("fails over"), 3);
    fixture.set(34_500);
    assert_eq!(tick(&mut engine).await, 4);
    let mut sent = Vec::new();
    for executor in others() {
        let triggers = executor.take().await;
        sent.extend(triggers.into_iter().map(|t| (executor.name, t)));
    }
    let runs: Vec<_> = fixture.runs("job").await.iter().map(|r| r.id).collect();
    assert_eq!(sent.iter().map(|(_, t)| t.run).collect::<Vec<_>>(), runs);
    assert!(sent.iter().all(|(name, _)| *name == sent[0].0));
}

/// Thousands of runs wait for the lane of one job. Another job's triggers are published at once.
#[tokio::test]
async fn a_long_backlog_of_one_job_holds_up_no_other() {
    let misfire = json!({ "policy": "catch_up", "grace": "1s", "catch_up_limit": 10_000 });
    let rest = json!({ "schedule": { "every": "1s" }, "misfire": misfire, "backlog": 100_000 });
    let (fixture, mut engine, executors) = given(rest).await;
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 1);
    let running = take(&executors).await.remove(0);
    fixture.set(9_000_000);
    heartbeats(&executors).await;
    executors[running.0].drain().await;
    assert_eq!(tick(&mut engine).await, 0);
    let waiting = engine.admin().counts().held_claims.waiting;
    assert!(waiting > 8_900, "{waiting} wait");
    fixture
        .apply("other", json!({ "schedule": { "every": "1s" } }))
        .await;
    for second in 9_001..9_006 {
        fixture.set(second * 1_000);
        heartbeats(&executors).await;
        executors[running.0].drain().await;
        assert_eq!(tick(&mut engine).await, 1, "the other job's");
        let (at, trigger) = take(&executors).await.remove(0);
        assert_eq!(trigger.job.name.as_str(), "other");
        executors[at]
            .ended(&trigger, OutcomeKind::Succeeded, fixture.now())
            .await;
    }
    executors[running.0]
        .ended(&running.1, OutcomeKind::Succeeded, fixture.now())
        .await;
    assert!(
        tick(&mut engine).await > 8_900,
        "all follow to one executor"
    );
    let sent = executors[running.0].take().await;
    assert!(sent.is_empty());
}
