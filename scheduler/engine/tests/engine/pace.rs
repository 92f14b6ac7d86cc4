//! What fires while executors do not keep up.

use cueline_engine::EngineOptions;
use cueline_model::OutcomeKind;
use serde_json::json;

use crate::fixture::{Fixture, tick};

#[tokio::test]
async fn while_many_runs_are_in_flight_as_many_are_fired_as_end() {
    let fixture = Fixture::new().await;
    let options = EngineOptions {
        claim_batch: 2,
        max_in_flight: 6,
        ..EngineOptions::default()
    };
    let mut engine = fixture.engine_with(options).await;
    let e1 = fixture.executor("e1").await;
    for n in 0..12 {
        let schedule = json!({ "schedule": { "every": "10s" } });
        fixture.apply(&format!("job-{n}"), schedule).await;
    }
    let mut fires = async || {
        for _ in 0..12 {
            tick(&mut engine).await;
        }
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
