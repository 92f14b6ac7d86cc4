//! G1: every missed fire time becomes a run or is covered by a `skipped` run.

use cueline_model::RunState::{Queued, Skipped};
use serde_json::{Value, json};

use crate::fixture::{Fault, Fixture, tick};

/// A job with a period of 10 s, and no scheduler from 0 s to 66 s: the fire times from 10 s to 60 s are missed.
/// Returns its runs as (fire time in seconds, state).
async fn after_silence(misfire: Value) -> (Fixture, Vec<(i64, cueline_model::RunState)>) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let rest = json!({ "schedule": { "every": "10s" }, "misfire": misfire });
    fixture.apply("job", rest).await;
    tick(&mut engine).await;
    fixture.set(66_000);
    let e1 = fixture.executor("e1").await;
    tick(&mut engine).await;
    let runs = fixture.runs("job").await;
    let found = runs
        .iter()
        .map(|r| (r.fire_at.since_ms(Fixture::at(0)) / 1_000, r.state))
        .collect();
    let sent: Vec<_> = e1.take().await.iter().map(|t| t.fire_at).collect();
    let queued = runs.iter().filter(|r| r.state == Queued);
    assert_eq!(sent, queued.map(|r| r.fire_at).collect::<Vec<_>>());
    let ledger = fixture
        .real()
        .ledger(
            &crate::fixture::name("job"),
            Fixture::at(1),
            Fixture::at(66_000),
            100,
        )
        .await
        .expect("reads the ledger");
    assert_eq!(ledger.len(), 6);
    assert!(ledger.iter().all(|e| e.run.is_some()), "{ledger:#?}");
    // The schedule continues.
    fixture.set(70_000);
    tick(&mut engine).await;
    assert_eq!(e1.take_one().await.fire_at, Fixture::at(70_000));
    (fixture, found)
}

#[tokio::test]
async fn skip_runs_none_and_counts_the_misses() {
    let (fixture, found) = after_silence(json!({ "policy": "skip" })).await;
    assert_eq!(found, [(60, Skipped)]);
    let run = &fixture.runs("job").await[0];
    let why = run.message.as_deref().expect("a reason");
    assert!(why.contains("stands for 6 fire times"), "{why}");
}

/// No run is left whose end would set the next fire time.
#[tokio::test]
async fn a_fixed_delay_job_goes_on_after_a_skipped_miss() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let rest = json!({ "schedule": { "after": "10s" }, "misfire": { "policy": "skip" } });
    fixture.apply("job", rest).await;
    tick(&mut engine).await;
    fixture.set(66_000);
    let e1 = fixture.executor("e1").await;
    tick(&mut engine).await;
    let states: Vec<_> = fixture.runs("job").await.iter().map(|r| r.state).collect();
    assert_eq!(states, [Skipped]);
    fixture.set(76_000);
    tick(&mut engine).await;
    assert_eq!(e1.take_one().await.fire_at, Fixture::at(76_000));
}

#[tokio::test]
async fn fire_once_runs_the_newest() {
    let (_, found) = after_silence(json!({ "policy": "fire_once" })).await;
    assert_eq!(found, [(50, Skipped), (60, Queued)]);
}

#[tokio::test]
async fn catch_up_runs_each_oldest_first() {
    let (_, found) = after_silence(json!({ "policy": "catch_up" })).await;
    let expected = [10, 20, 30, 40, 50, 60].map(|s| (s, Queued));
    assert_eq!(found, expected);
}

#[tokio::test]
async fn catch_up_skips_misses_beyond_its_limit() {
    let misfire = json!({ "policy": "catch_up", "catch_up_limit": 2 });
    let (_, found) = after_silence(misfire).await;
    assert_eq!(found, [(40, Skipped), (50, Queued), (60, Queued)]);
}

#[tokio::test]
async fn fire_times_within_the_grace_are_not_missed() {
    let misfire = json!({ "policy": "skip", "grace": "1m" });
    let (_, found) = after_silence(misfire).await;
    let expected = [10, 20, 30, 40, 50, 60].map(|s| (s, Queued));
    assert_eq!(found, expected);
}

/// The late run was left by a dead node. Another run was claimed in the same call.
#[tokio::test]
async fn a_store_failure_while_a_misfire_is_skipped_strands_no_run() {
    let fixture = Fixture::new().await;
    let mut dead = fixture.engine("dead").await;
    let misfire = json!({ "policy": "skip" });
    let rest = json!({ "schedule": { "every": "10s" }, "misfire": misfire });
    fixture.apply("late", rest).await;
    fixture.set(9_000);
    tick(&mut dead).await;
    drop(dead);
    fixture.set(26_000);
    fixture.apply("other", json!({})).await;
    let other = fixture.trigger("other").await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.store.fail_next("ingest_reports", Fault::Broken);
    engine.tick().await.expect_err("it is not written down");
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, other);
    let late = fixture.runs("late").await;
    assert!(late.iter().all(|r| r.state == Skipped), "{late:#?}");
}

/// A transaction that takes too long for the database would take too long again.
#[tokio::test]
async fn a_failed_fire_is_tried_again_in_smaller_parts() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let every = json!({ "schedule": { "every": "10s" } });
    fixture.apply("job", every).await;
    fixture.executor("e1").await;
    fixture.set(66_000);
    fixture.store.take_fired_limits();
    for _ in 0..3 {
        fixture.store.fail_next("fire_due", Fault::Before);
        assert!(engine.claim().await.is_err());
    }
    for _ in 0..4 {
        engine.claim().await.expect("claims");
    }
    let limits = fixture.store.take_fired_limits();
    let whole = limits[0];
    let parts = [1, 2, 4, 8, 4, 2, 1].map(|part| whole / part);
    assert_eq!(limits, parts);
}
