//! G1: after an outage, a broadcast fire reaches the executors that were alive throughout.

use cueline_engine::ManualEngine;
use cueline_model::RunState;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, tick};

/// `e1` and `e2` are alive. The only scheduler was down until 1.5 s before the first fire time, which is at 60 s.
async fn given() -> (Fixture, ManualEngine, FakeExecutor, FakeExecutor) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let e2 = fixture.executor("e2").await;
    engine.receive_loopback_heartbeat();
    tick(&mut engine).await;
    let misfire = json!({ "policy": "skip", "grace": "2s" });
    let schedule = json!({ "every": "1m" });
    let rest = json!({ "schedule": schedule, "route": "broadcast", "misfire": misfire });
    fixture.apply("job", rest).await;
    drop(engine);
    fixture.set(58_500);
    let engine = fixture.engine("one").await;
    (fixture, engine, e1, e2)
}

/// A turn at `at` ms, with a loopback heartbeat.
async fn turn(fixture: &Fixture, engine: &mut ManualEngine, at: i64) -> usize {
    fixture.set(at);
    engine.receive_loopback_heartbeat();
    tick(engine).await
}

#[tokio::test]
async fn a_broadcast_fire_after_an_outage_waits_for_the_known_executors() {
    let (fixture, mut engine, e1, e2) = given().await;
    e1.heartbeat().await;
    for at in [59_000, 60_000, 61_000, 62_000] {
        assert_eq!(turn(&fixture, &mut engine, at).await, 0);
    }
    assert!(fixture.runs("job").await.is_empty());
    e2.heartbeat().await;
    assert_eq!(turn(&fixture, &mut engine, 63_000).await, 2);
    for executor in [&e1, &e2] {
        assert_eq!(executor.take_one().await.shard.total, 2);
    }
    assert_eq!(fixture.states("job").await, [RunState::Queued; 2]);
}

/// It was held for longer than the grace of its misfire policy, and is not missed.
#[tokio::test]
async fn executors_that_stay_silent_for_a_heartbeat_interval_are_left_out_and_named() {
    let (fixture, mut engine, e1, _e2) = given().await;
    e1.heartbeat().await;
    for at in (59_000..65_000).step_by(1_000) {
        assert_eq!(turn(&fixture, &mut engine, at).await, 0);
    }
    assert_eq!(turn(&fixture, &mut engine, 65_000).await, 1);
    assert_eq!(e1.take_one().await.shard.total, 1);
    let run = fixture.only_run("job").await;
    assert_eq!(run.state, RunState::Queued);
    assert_eq!(fixture.timeline(run.id).await, ["left_out"]);
}

#[tokio::test]
async fn other_jobs_do_not_wait() {
    let (fixture, mut engine, e1, _e2) = given().await;
    fixture
        .apply("other", json!({ "schedule": { "every": "1m" } }))
        .await;
    e1.heartbeat().await;
    turn(&fixture, &mut engine, 59_000).await;
    assert_eq!(turn(&fixture, &mut engine, 60_000).await, 1);
    assert_eq!(e1.take_names().await, ["other"]);
}

/// Loopback heartbeats never arrive, for example for lack of a permission.
#[tokio::test]
async fn a_node_that_never_receives_its_own_messages_holds_broadcast_fires_for_five_minutes() {
    let (fixture, mut engine, e1, _e2) = given().await;
    let mut at = 59_000;
    while at < 350_000 {
        fixture.set(at);
        e1.heartbeat().await;
        assert_eq!(tick(&mut engine).await, 0);
        at += 9_000;
    }
    assert!(fixture.runs("job").await.is_empty());
    fixture.set(359_500);
    e1.heartbeat().await;
    engine.tick().await.expect("a turn without faults");
    assert!(!fixture.runs("job").await.is_empty());
}
