//! The counts for metrics.

use cueline_model::{OutcomeKind, RunState};
use cueline_store::{HeldClaims, SchedulerCounts};
use serde_json::json;

use crate::fixture::{Fixture, tick};

fn ended(counts: &SchedulerCounts, state: RunState) -> u64 {
    let found = counts.ended.iter().find(|(ended, _)| *ended == state);
    found.expect("each terminal state is listed").1
}

#[tokio::test]
async fn a_run_moves_the_counts_of_each_stage_that_it_passes() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture
        .apply("job", json!({ "schedule": { "every": "10s" } }))
        .await;
    tick(&mut engine).await;
    let before = engine.admin().counts();
    assert!(before.stored_heartbeats > 0, "{before:?}");
    assert_eq!((before.fires, before.claimed_runs), (0, 0));
    assert_eq!(before.executors.ready, 1);
    fixture.set(8_500);
    tick(&mut engine).await;
    let claimed = engine.admin().counts();
    assert_eq!(claimed.held_claims.waiting, 1, "{claimed:?}");
    // 15 ms late.
    fixture.set(10_015);
    assert_eq!(tick(&mut engine).await, 1);
    let published = engine.admin().counts();
    assert_eq!((published.fires, published.claimed_runs), (1, 1));
    assert_eq!(published.held_claims, HeldClaims::default());
    assert_eq!(published.dispatch_lateness.sum_ms, 15);
    assert_eq!(published.trigger_lateness.sum_ms, 15);
    let filled = published
        .trigger_lateness
        .buckets
        .iter()
        .find(|(_, n)| *n > 0);
    assert_eq!(filled, Some(&(20, 1)));
    let trigger = e1.take_one().await;
    e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
    tick(&mut engine).await;
    let counts = engine.admin().counts();
    assert_eq!(ended(&counts, RunState::Failed), 1);
    assert_eq!(ended(&counts, RunState::Succeeded), 0);
    assert_eq!(counts.ingested_messages, 1);
    let delays = counts.report_delay.buckets.iter().map(|(_, n)| n);
    assert_eq!(delays.sum::<u64>(), 1);
}
