//! Retries and reruns.

use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunId, RunState};
use cueline_protocol::Trigger;
use serde_json::{Value, json};

use crate::fixture::{FakeExecutor, Fixture, tick};

/// A triggered job with these policies, whose first trigger the executor has taken.
async fn at_work(rest: Value) -> (Fixture, ManualEngine, FakeExecutor, RunId, Trigger) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", rest).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    (fixture, engine, e1, run, trigger)
}

#[tokio::test]
async fn failures_are_retried_at_the_times_of_the_backoff() {
    let retry = json!({
        "max": 3, "first": "2s", "backoff": "exponential", "cap": "5s", "jitter_percent": 0,
    });
    let (fixture, mut engine, e1, run, mut trigger) = at_work(json!({ "retry": retry })).await;
    let mut now = 0;
    for (retry, wait) in [(1, 2_000), (2, 4_000), (3, 5_000)] {
        e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
        tick(&mut engine).await;
        let waiting = fixture.run(run).await;
        assert_eq!(waiting.state, RunState::Scheduled);
        assert_eq!(waiting.retries, retry);
        fixture.set(now + wait - 1);
        e1.heartbeat().await;
        assert_eq!(tick(&mut engine).await, 0, "retry {retry} is early");
        now += wait;
        fixture.set(now);
        assert_eq!(tick(&mut engine).await, 1, "retry {retry}");
        trigger = e1.take_one().await;
        assert_eq!((trigger.run, trigger.attempt), (run, retry + 1));
    }
    e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
    assert_eq!(fixture.timeline(run).await[1..], ["retry"; 3]);
}

#[tokio::test]
async fn outcomes_that_are_not_listed_are_not_retried() {
    let retry = json!({ "max": 3, "on": ["timed_out"] });
    let (fixture, mut engine, e1, run, trigger) = at_work(json!({ "retry": retry })).await;
    e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Failed);
}

#[tokio::test]
async fn a_lost_attempt_ends_its_run_by_default() {
    let (fixture, mut engine, e1, run, trigger) = at_work(json!({ "on_lost": "fail" })).await;
    e1.ended(&trigger, OutcomeKind::Lost, fixture.now()).await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(fixture.state(run).await, RunState::Lost);
}

#[tokio::test]
async fn a_lost_attempt_is_rerun_at_once_at_most_three_times() {
    let (fixture, mut engine, e1, run, mut trigger) = at_work(json!({ "on_lost": "rerun" })).await;
    for rerun in 1..=3 {
        e1.started(&trigger, fixture.now()).await;
        e1.ended(&trigger, OutcomeKind::Lost, fixture.now()).await;
        assert_eq!(tick(&mut engine).await, 1, "rerun {rerun}");
        trigger = e1.take_one().await;
        assert_eq!(trigger.attempt, rerun + 1);
    }
    e1.ended(&trigger, OutcomeKind::Lost, fixture.now()).await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(fixture.state(run).await, RunState::Lost);
    assert_eq!(fixture.timeline(run).await[1..], ["rerun"; 3]);
}

/// The attempt had not started, so it counts as no failure.
#[tokio::test]
async fn a_returned_attempt_goes_to_another_executor_at_once() {
    let (fixture, mut engine, e1, run, trigger) = at_work(json!({ "route": "first" })).await;
    let e2 = fixture.executor("e2").await;
    e1.drain().await;
    e1.ended(&trigger, OutcomeKind::Returned, fixture.now())
        .await;
    assert_eq!(tick(&mut engine).await, 1);
    let again = e2.take_one().await;
    assert_eq!((again.run, again.attempt), (run, 2));
    assert_eq!(fixture.run(run).await.retries, 0);
    assert_eq!(fixture.timeline(run).await.last().unwrap(), "returned");
}

/// The executor should have stopped the attempt, and reports nothing.
#[tokio::test]
async fn an_attempt_without_a_report_ends_lost_after_its_timeout() {
    let rest = json!({ "timeout": "10s", "kill_grace": "5s" });
    let (fixture, mut engine, e1, run, trigger) = at_work(rest).await;
    e1.started(&trigger, fixture.now()).await;
    // Timeout, kill grace and a slack of 60 s.
    for ms in (0..=75_000).step_by(5_000) {
        fixture.set(ms);
        tick(&mut engine).await;
        assert_eq!(fixture.state(run).await, RunState::Running, "at {ms} ms");
    }
    fixture.set(75_001);
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Lost);
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Lost, "too late");
    assert_eq!(fixture.timeline(run).await.last().unwrap(), "refused");
}

/// The job was paused while the attempt ran.
#[tokio::test]
async fn a_paused_job_is_not_retried() {
    let rest = json!({ "schedule": { "every": "10s" }, "retry": { "max": 5 } });
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", rest).await;
    fixture.set(10_000);
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    fixture.pause("job").await;
    e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
    tick(&mut engine).await;
    assert_eq!(fixture.states("job").await, [RunState::Failed]);
}
