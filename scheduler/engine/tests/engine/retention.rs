//! What has passed its retention is deleted.

use cueline_engine::EngineOptions;
use cueline_model::JobName;
use cueline_store::Order;
use serde_json::json;

use crate::fixture::{Fixture, actor};

#[tokio::test]
async fn versions_of_deleted_jobs_are_kept_as_long_as_the_audit_log() {
    let fixture = Fixture::new().await;
    let options = EngineOptions {
        audit_retention_ms: 60_000,
        ..EngineOptions::default()
    };
    let mut engine = fixture.engine_with(options).await;
    let job: JobName = "job".parse().expect("a name");
    fixture.apply("job", json!({})).await;
    let deleted = fixture.real().delete_job(&job, &actor("ann")).await;
    deleted.expect("deletes");
    let versions = async || {
        let found = fixture
            .real()
            .job_versions(&job, Order::Descending, None, 10)
            .await;
        found.expect("lists").len()
    };
    fixture.clock.advance(60_000);
    engine.delete_expired().await.expect("deletes");
    assert_eq!(versions().await, 1);
    fixture.clock.advance(1);
    engine.delete_expired().await.expect("deletes");
    assert_eq!(versions().await, 0);
}

#[tokio::test]
async fn ended_sessions_and_tokens_are_deleted() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    engine.delete_expired().await.expect("deletes");
    assert_eq!(fixture.store.calls("prune_accounts"), 1);
}

/// A sweep goes on at the next turns until nothing is left.
#[tokio::test]
async fn what_expires_earlier_by_a_rule_is_deleted_in_batches() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let rule = json!({ "retention": { "age": "1m" }, "schedule": { "manual": true } });
    fixture.apply("short", rule).await;
    fixture
        .apply("usual", json!({ "schedule": { "manual": true } }))
        .await;
    let mut usual = Vec::new();
    for _ in 0..2 {
        usual.push(fixture.trigger("usual").await);
    }
    for _ in 0..600 {
        fixture.trigger("short").await;
    }
    for run in fixture.runs("short").await {
        let cancelled = fixture.real().cancel_run(run.id, &actor("ann")).await;
        cancelled.expect("cancels");
    }
    fixture.clock.advance(60_000);
    engine.delete_expired().await.expect("deletes");
    assert_eq!(fixture.runs("short").await.len(), 600, "none is old enough");
    fixture.clock.advance(1);
    engine.delete_expired().await.expect("deletes");
    assert_eq!(fixture.runs("short").await.len(), 100, "a batch is 500");
    engine.delete_expired().await.expect("deletes");
    assert_eq!(fixture.runs("short").await.len(), 0);
    assert_eq!(fixture.runs("usual").await.len(), 2);
    assert_eq!(fixture.store.calls("expire_runs"), 3);
    assert_eq!(fixture.store.calls("prune_dead_letters"), 3);
}
