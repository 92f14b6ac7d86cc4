//! The route `any`: the first executor with room takes the run.

use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunId, RunState};
use cueline_protocol::Trigger;
use cueline_runtime::ManualClock;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, actor, tick};

/// An executor that runs one handler at once.
async fn small(fixture: &Fixture, name: &'static str) -> FakeExecutor {
    let executor = fixture.silent_executor(name).await;
    alive(&executor, 0).await;
    executor
}

/// A heartbeat with this number of attempts.
async fn alive(executor: &FakeExecutor, held: u64) {
    let load = |heartbeat: &mut cueline_model::Heartbeat| {
        heartbeat.capacity = 1;
        heartbeat.held = held;
    };
    executor.heartbeat_with(load).await;
}

async fn apply(fixture: &Fixture, job: &str) {
    let rest =
        json!({ "schedule": { "manual": true }, "route": "any", "block": { "parallel": 100 } });
    fixture.apply(job, rest).await;
}

/// Turns until what was reported has had its effects.
async fn turns(engine: &mut ManualEngine) {
    for _ in 0..3 {
        tick(engine).await;
    }
}

async fn executor_of(fixture: &Fixture, run: RunId) -> Option<String> {
    let run = fixture.run(run).await;
    (run.state != RunState::Scheduled).then(|| run.executor.map(|name| name.to_string()))?
}

async fn end(executor: &FakeExecutor, trigger: &Trigger, clock: &ManualClock) {
    use cueline_runtime::Clock as _;
    let now = cueline_model::Timestamp::from_millis(clock.now_ms());
    executor.ended(trigger, OutcomeKind::Succeeded, now).await;
}

#[tokio::test]
async fn a_run_waits_until_an_executor_has_room_and_goes_to_the_first_one() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let executors = [small(&fixture, "e1").await, small(&fixture, "e2").await];
    tick(&mut engine).await;
    apply(&fixture, "job").await;
    fixture.set(1_000);
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(fixture.trigger("job").await);
    }
    turns(&mut engine).await;
    let mut given = Vec::new();
    for run in &runs {
        given.push(executor_of(&fixture, *run).await);
    }
    given.sort();
    let one = |name: &str| Some(name.to_owned());
    assert_eq!(given, [None, None, one("e1"), one("e2")]);
    // A heartbeat that was sent before does not hide what was given.
    alive(&executors[0], 0).await;
    turns(&mut engine).await;
    assert_eq!(executor_of(&fixture, runs[2]).await, None);

    let taken = executors[1].take().await;
    assert_eq!(taken.len(), 1, "no more than it has room for");
    end(&executors[1], &taken[0], &fixture.clock).await;
    turns(&mut engine).await;
    assert_eq!(
        executor_of(&fixture, runs[2]).await,
        one("e2"),
        "the oldest one"
    );
    assert_eq!(executor_of(&fixture, runs[3]).await, None);
    // A new executor takes the last one.
    small(&fixture, "e3").await;
    turns(&mut engine).await;
    assert_eq!(executor_of(&fixture, runs[3]).await, one("e3"));
}

#[tokio::test]
async fn a_waiting_run_that_is_cancelled_or_paused_is_never_published() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let executor = small(&fixture, "e1").await;
    tick(&mut engine).await;
    for job in ["job", "other"] {
        apply(&fixture, job).await;
    }
    fixture.set(1_000);
    let first = fixture.trigger("job").await;
    turns(&mut engine).await;
    let cancelled = fixture.trigger("job").await;
    let next = fixture.trigger("other").await;
    turns(&mut engine).await;
    assert_eq!(fixture.state(next).await, RunState::Scheduled);
    let done = fixture.real().cancel_run(cancelled, &actor("ann")).await;
    done.expect("cancels");
    let taken = executor.take().await;
    assert_eq!(taken[0].run, first);
    end(&executor, &taken[0], &fixture.clock).await;
    turns(&mut engine).await;
    assert_eq!(fixture.state(cancelled).await, RunState::Cancelled);
    assert_eq!(executor_of(&fixture, next).await.as_deref(), Some("e1"));
    let taken = executor.take().await;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].run, next);
}

/// The next claim of a live node finds what a node had in memory.
#[tokio::test]
async fn waiting_runs_outlive_their_node() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let executor = small(&fixture, "e1").await;
    tick(&mut engine).await;
    apply(&fixture, "job").await;
    fixture.set(1_000);
    fixture.trigger("job").await;
    turns(&mut engine).await;
    let waiting = fixture.trigger("job").await;
    turns(&mut engine).await;
    assert_eq!(fixture.state(waiting).await, RunState::Scheduled);
    drop(engine);
    fixture.set(60_000);
    let mut other = fixture.engine("two").await;
    alive(&executor, 1).await;
    turns(&mut other).await;
    assert_eq!(
        fixture.state(waiting).await,
        RunState::Scheduled,
        "it is full"
    );
    let taken = executor.take().await;
    end(&executor, &taken[0], &fixture.clock).await;
    turns(&mut other).await;
    assert_eq!(executor_of(&fixture, waiting).await.as_deref(), Some("e1"));
}
