//! What fires while executors do not keep up.

use cueline_engine::{EngineOptions, ManualEngine};
use cueline_model::OutcomeKind;
use serde_json::json;

use crate::fixture::{Fixture, tick};

#[tokio::test]
async fn without_room_as_many_are_fired_as_end() {
    let fixture = Fixture::new().await;
    let options = EngineOptions {
        claim_batch: 2,
        max_fires_ahead: 6,
        ..EngineOptions::default()
    };
    let mut engine = fixture.engine_with(options).await;
    let e1 = fixture.executor("e1").await;
    for n in 0..12 {
        apply(&fixture, n).await;
    }
    let mut fires = async || {
        ticks(&mut engine).await;
        let counts = engine.admin().counts();
        (counts.fires, counts.room_for_fires)
    };
    fires().await;
    fixture.set(10_000);
    assert_eq!(fires().await, (6, 0));
    let triggers = e1.take().await;
    assert_eq!(triggers.len(), 6);
    e1.ended(&triggers[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    assert_eq!(fires().await, (6, 1), "less than a batch");
    e1.ended(&triggers[1], OutcomeKind::Succeeded, fixture.now())
        .await;
    assert_eq!(fires().await, (8, 0));
    fixture.set(10_250);
    assert_eq!(fires().await, (12, 2), "nothing has ended for long");
}

#[tokio::test]
async fn a_long_attempt_makes_room_when_it_has_started() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine_with(narrow()).await;
    let e1 = fixture.executor("e1").await;
    for n in 0..4 {
        apply(&fixture, n).await;
    }
    ticks(&mut engine).await;
    fixture.set(10_000);
    ticks(&mut engine).await;
    for trigger in &e1.take().await {
        e1.started(trigger, fixture.now()).await;
    }
    ticks(&mut engine).await;
    assert_eq!(engine.admin().counts().fires, 4);
}

/// Its fires would be skipped otherwise, although nothing was down.
#[tokio::test]
async fn a_fire_that_waits_for_room_is_not_missed() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine_with(narrow()).await;
    for n in 0..4 {
        apply(&fixture, n).await;
    }
    ticks(&mut engine).await;
    fixture.set(10_000);
    ticks(&mut engine).await;
    assert_eq!(engine.admin().counts().fires, 2);
    // The grace of misfires is 5 s.
    fixture.set(17_000);
    ticks(&mut engine).await;
    assert_eq!(engine.admin().counts().fires, 4, "none is skipped");
}

/// There is room for two runs.
fn narrow() -> EngineOptions {
    EngineOptions {
        claim_batch: 2,
        max_fires_ahead: 2,
        ..EngineOptions::default()
    }
}

async fn apply(fixture: &Fixture, n: usize) {
    let job = json!({ "schedule": { "every": "10s" }, "misfire": { "policy": "skip" } });
    fixture.apply(&format!("job-{n}"), job).await;
}

async fn ticks(engine: &mut ManualEngine) {
    for _ in 0..12 {
        tick(engine).await;
    }
}
