//! Quotas of namespaces: skipped fires, refused triggers, and no cost without them.

use cueline_broker::QueueId;
use cueline_engine::ManualEngine;
use cueline_model::{Namespace, RunState};
use cueline_store::admin::AdminError;
use cueline_store::{Namespaces as _, Quotas, TriggerRequest};
use serde_json::json;

use crate::fixture::{Fixture, actor, name, tick};

fn team() -> Namespace {
    name("team-a")
}

async fn set(fixture: &Fixture, engine: &mut ManualEngine, quotas: Quotas) {
    let set = fixture
        .store
        .set_quotas(&team(), &quotas, None, &actor("ann"))
        .await;
    set.expect("sets");
    engine.refresh_quotas().await.expect("reads");
}

fn waiting(most: u64) -> Quotas {
    Quotas {
        max_waiting_runs: Some(most),
        ..Quotas::default()
    }
}

async fn trigger(engine: &ManualEngine, job: &str) -> Result<(), AdminError> {
    let request = TriggerRequest {
        job: name(job),
        params: None,
        idempotency_key: None,
        run_at: None,
        by: actor("ann"),
        condition: cueline_store::Precondition::None,
    };
    engine.admin().trigger(request).await.map(drop)
}

/// The states of the newest run of each job of the team, those of skipped runs first.
async fn newest(fixture: &Fixture, jobs: &[&str]) -> Vec<RunState> {
    let mut states = Vec::new();
    for job in jobs {
        let runs = fixture.runs(&format!("team-a/{job}")).await;
        states.push(runs.last().expect("a run").state);
    }
    states.sort_by_key(|state| *state != RunState::Skipped);
    states
}

#[tokio::test]
async fn fires_beyond_the_quota_of_waiting_runs_are_skipped() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let jobs = ["a", "b", "c"];
    let every = json!({ "namespace": "team-a", "schedule": { "every": "10s" } });
    for job in jobs {
        fixture.apply(job, every.clone()).await;
    }
    fixture
        .apply("other", json!({ "schedule": { "every": "10s" } }))
        .await;
    set(&fixture, &mut engine, waiting(2)).await;
    // No executor takes the runs of the team, so they wait.
    fixture.set(9_000);
    tick(&mut engine).await;
    let one_skipped = [RunState::Skipped, RunState::Scheduled, RunState::Scheduled];
    assert_eq!(newest(&fixture, &jobs).await, one_skipped);
    let others = fixture.states("other").await;
    assert_eq!(others, [RunState::Scheduled], "it has no quota");
    // The node counts what it has written itself.
    fixture.set(19_000);
    tick(&mut engine).await;
    assert_eq!(newest(&fixture, &jobs).await, [RunState::Skipped; 3]);
    let skipped = fixture.runs("team-a/a").await.pop().expect("a run");
    let message = skipped.message.expect("a message");
    let words = "quota max_waiting_runs of namespace team-a (2) is reached";
    assert!(message.contains(words), "{message}");
    let refusals = engine.admin().counts().quota_refusals;
    assert_eq!(refusals.len(), 1);
    assert_eq!((&refusals[0].namespace, refusals[0].count), (&team(), 4));
    // Without the quota, the jobs go on with their next fires.
    set(&fixture, &mut engine, Quotas::default()).await;
    fixture.set(29_000);
    tick(&mut engine).await;
    assert_eq!(newest(&fixture, &jobs).await, [RunState::Scheduled; 3]);
    let ledger = fixture
        .real()
        .ledger(&name("team-a/a"), Fixture::at(0), Fixture::at(29_001), 100)
        .await;
    let ledger = ledger.expect("reads");
    assert_eq!(ledger.len(), 2, "{ledger:?}");
    assert!(ledger.iter().all(|entry| entry.run.is_some()), "{ledger:?}");
}

#[tokio::test]
async fn triggers_beyond_a_quota_are_refused_with_the_reason() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture.apply("job", json!({ "namespace": "team-a" })).await;
    fixture.apply("job", json!({})).await;
    set(&fixture, &mut engine, waiting(1)).await;
    trigger(&engine, "team-a/job").await.expect("there is room");
    let refused = trigger(&engine, "team-a/job").await;
    let AdminError::Quota {
        reason,
        retry_after_ms,
    } = refused.expect_err("is refused")
    else {
        panic!("another error");
    };
    assert!(reason.contains("max_waiting_runs of namespace team-a (1)"));
    assert_eq!(retry_after_ms, 1_000);
    for _ in 0..3 {
        trigger(&engine, "job").await.expect("it has no quota");
    }
    let per_minute = Quotas {
        max_triggers_per_minute: Some(2),
        ..Quotas::default()
    };
    set(&fixture, &mut engine, per_minute).await;
    for _ in 0..2 {
        trigger(&engine, "team-a/job").await.expect("there is room");
    }
    let refused = trigger(&engine, "team-a/job").await;
    let refused = refused.expect_err("is refused").to_string();
    assert!(refused.contains("max_triggers_per_minute"), "{refused}");
    fixture.set(31_000);
    trigger(&engine, "team-a/job")
        .await
        .expect("time has passed");
    assert_eq!(fixture.runs("team-a/job").await.len(), 4);
}

/// A request over the broker is refused as others are: it becomes a dead letter, of the namespace of its address.
#[tokio::test]
async fn a_refused_request_is_a_dead_letter_of_its_namespace() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture.apply("job", json!({ "namespace": "team-a" })).await;
    set(&fixture, &mut engine, waiting(1)).await;
    let request = r#"{"v":1,"job":"team-a/job"}"#;
    for _ in 0..2 {
        fixture
            .put_for("team-a/job", &QueueId::Requests, request)
            .await;
    }
    // What the message says decides nothing.
    fixture.put_for("job", &QueueId::Requests, request).await;
    assert_eq!(engine.carry_out_requests().await.expect("carries out"), 3);
    assert_eq!(fixture.runs("team-a/job").await.len(), 1);
    let letters = fixture.dead_letters().await;
    let rows: Vec<_> = letters
        .iter()
        .map(|letter| {
            let namespace = letter.namespace.as_ref().map(Namespace::as_str);
            (namespace, letter.reason.contains("max_waiting_runs"))
        })
        .collect();
    assert_eq!(rows, [(Some("team-a"), true), (Some("default"), false)]);
}

/// Claims ask the store for nothing more, with or without quotas.
#[tokio::test]
async fn only_the_refresh_reads_quotas() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture
        .apply("job", json!({ "schedule": { "every": "1s" } }))
        .await;
    let at_start = fixture.store.calls("quota_loads");
    assert_eq!(at_start, 1, "the first fires are within the quotas");
    for second in 1..5 {
        fixture.set(second * 1_000);
        tick(&mut engine).await;
        trigger(&engine, "job").await.expect("triggers");
    }
    assert_eq!(fixture.store.calls("quota_loads"), at_start);
    engine.refresh_quotas().await.expect("reads");
    assert_eq!(fixture.store.calls("quota_loads"), at_start + 1);
}
