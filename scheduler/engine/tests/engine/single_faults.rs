//! The store or the broker fails once, at each stage. No run is lost, and at most the same attempt reaches the same
//! executor twice.

use std::collections::BTreeMap;

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_broker_embedded::EmbeddedOptions;
use cueline_engine::ManualEngine;
use cueline_model::{AttemptEvent, Outcome, OutcomeKind, RunState};
use cueline_protocol::Trigger;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fault, Fixture, eventually, tick};

/// Runs a schedule, a manual trigger, a retry and a child run. Routing is `random`, so that a repeated decision can
/// differ.
async fn run_all_kinds(fixture: &Fixture, what: &str, fault: impl FnOnce()) {
    let mut engine = fixture.engine("one").await;
    let executors = [fixture.executor("e1").await, fixture.executor("e2").await];
    tick(&mut engine).await;
    for n in 0..3 {
        let retry = json!({ "max": 1, "first": "1s", "jitter_percent": 0 });
        let rest = json!({
            "schedule": { "at": Fixture::at(1_000).to_string() }, "route": "random", "retry": retry,
        });
        fixture.apply(&format!("job-{n}"), rest).await;
    }
    let rest = json!({ "after": { "all": ["job-1"] }, "route": "random" });
    fixture.apply("child", rest).await;
    fixture.apply("by-hand", json!({ "route": "random" })).await;
    fixture.set(1_000);
    fixture.trigger("by-hand").await;
    fault();
    let mut executors_of = BTreeMap::new();
    let mut ms = 1_000;
    eventually(what, async || {
        ms += 100;
        turn(fixture, &mut engine, &executors, ms, &mut executors_of).await;
        fixture
            .runs("child")
            .await
            .iter()
            .any(|r| r.state.is_terminal())
            && all_ended(fixture, &["job-0", "job-1", "job-2", "by-hand"]).await
    })
    .await;
    // Nothing is left to publish.
    assert_eq!(tick(&mut engine).await, 0, "{what}");
    assert_eq!(fixture.only_run("job-0").await.attempt, 2, "{what}");
    for job in ["job-0", "job-1", "job-2", "by-hand", "child"] {
        let run = fixture.only_run(job).await;
        assert_eq!(run.state, RunState::Succeeded, "{what}: {run:#?}");
        for attempt in 1..=run.attempt {
            let at = &executors_of[&(run.id.0, attempt)];
            assert_eq!(at.len(), 1, "{what}: {job} attempt {attempt} at {at:?}");
        }
    }
}

/// Lets time pass, ticks the engine, and lets the executors answer their triggers.
async fn turn(
    fixture: &Fixture,
    engine: &mut ManualEngine,
    executors: &[FakeExecutor],
    ms: i64,
    executors_of: &mut BTreeMap<(i64, u32), Vec<&'static str>>,
) {
    fixture.set(ms.min(12_000));
    for executor in executors {
        let _ = engine.tick().await;
        let Ok(triggers) = executor.try_take().await else {
            continue;
        };
        for trigger in triggers {
            let id = trigger.attempt_id();
            let at = executors_of.entry((id.run.0, id.attempt)).or_default();
            if !at.contains(&executor.name) {
                at.push(executor.name);
            }
            let fails = trigger.job.name.as_str() == "job-0" && id.attempt == 1;
            let kind = if fails {
                OutcomeKind::Failed
            } else {
                OutcomeKind::Succeeded
            };
            let outcome = Outcome::new(kind, fixture.now());
            let body = AttemptEvent::Ended { outcome };
            // An executor repeats its report until the broker accepts it.
            eventually("the report is taken", async || {
                executor.try_report(&trigger, body.clone()).await.is_ok()
            })
            .await;
        }
    }
}

async fn all_ended(fixture: &Fixture, jobs: &[&str]) -> bool {
    for job in jobs {
        let runs = fixture.runs(job).await;
        if runs.is_empty() || runs.iter().any(|r| !r.state.is_terminal()) {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn without_a_fault() {
    let fixture = Fixture::new().await;
    run_all_kinds(&fixture, "no fault", || {}).await;
}

#[tokio::test]
async fn one_store_failure_at_any_stage_loses_and_doubles_nothing() {
    for method in [
        "now",
        "renew_lease",
        "fire_due",
        "claim_waiting",
        "begin_dispatch_in_lanes",
        "confirm_dispatch",
        "ingest_reports",
        "overdue_attempts",
        "pending_cancellations",
    ] {
        for fault in [Fault::Before, Fault::After] {
            let fixture = Fixture::with_short_ack_wait().await;
            let what = format!("{fault:?} {method}");
            run_all_kinds(&fixture, &what, || fixture.store.fail_next(method, fault)).await;
            assert_eq!(fixture.store.heal(), 1, "{what}: it happened");
        }
    }
}

#[tokio::test]
async fn one_broker_failure_at_any_stage_loses_and_doubles_nothing() {
    for operation in [Operation::Publish, Operation::Fetch, Operation::Settle] {
        for fault in [
            BrokerFault::Before(ErrorKind::Transient),
            BrokerFault::After(ErrorKind::Transient),
            BrokerFault::Unanswered,
        ] {
            let fixture = Fixture::with_short_ack_wait().await;
            let what = format!("{fault:?} {operation:?}");
            let calls = fixture.broker_faults.calls(operation);
            run_all_kinds(&fixture, &what, || {
                fixture.broker_faults.next(operation, fault, 1);
            })
            .await;
            assert!(fixture.broker_faults.calls(operation) > calls);
        }
    }
}

/// The marks were written, so the executor chosen then is final.
#[tokio::test]
async fn a_lost_answer_to_begin_dispatch_strands_no_run() {
    for n in 0..4 {
        let fixture = Fixture::new().await;
        let mut engine = fixture.engine("one").await;
        let e1 = fixture.executor("e1").await;
        fixture.apply("job", json!({ "route": "first" })).await;
        tick(&mut engine).await;
        let run = fixture.trigger("job").await;
        fixture
            .store
            .fail_next("begin_dispatch_in_lanes", Fault::After);
        engine.tick().await.expect_err("the answer is lost");
        // A new routing decision would choose another executor, or none.
        let e0 = match n % 2 {
            0 => Some(fixture.executor("e0").await),
            _ => None,
        };
        if n / 2 == 1 {
            e1.leave().await;
        }
        assert_eq!(tick(&mut engine).await, 1);
        assert_eq!(e1.take_one().await.run, run);
        if let Some(e0) = e0 {
            assert!(e0.take().await.is_empty());
        }
    }
}

/// No mark was written, so the executor that has left since then is not chosen.
#[tokio::test]
async fn after_a_failed_begin_dispatch_runs_are_routed_again() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({ "route": "first" })).await;
    tick(&mut engine).await;
    let run = fixture.trigger("job").await;
    fixture
        .store
        .fail_next("begin_dispatch_in_lanes", Fault::Before);
    engine.tick().await.expect_err("nothing is marked");
    e1.leave().await;
    assert_eq!(tick(&mut engine).await, 0);
    let e2 = fixture.executor("e2").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e2.take_one().await.run, run);
}

#[tokio::test]
async fn triggers_refused_by_a_full_queue_are_published_later() {
    let (fixture, mut engine, e1) = with_small_queue().await;
    assert_eq!(tick(&mut engine).await, 2, "of five");
    let mut seen: Vec<_> = e1.take().await.iter().map(|t| t.run).collect();
    assert_eq!(tick(&mut engine).await, 0, "not at once");
    for second in 1..=10 {
        fixture.set(second * 1_000);
        tick(&mut engine).await;
        seen.extend(e1.take().await.iter().map(|t| t.run));
    }
    seen.sort();
    let runs: Vec<_> = fixture.runs("job").await.iter().map(|r| r.id).collect();
    assert_eq!(seen, runs, "each once");
    for run in runs {
        assert_eq!(fixture.state(run).await, RunState::Queued);
    }
}

#[tokio::test]
async fn a_store_failure_while_releasing_refused_triggers_doubles_nothing() {
    for fault in [Fault::Before, Fault::After] {
        let (fixture, mut engine, e1) = with_small_queue().await;
        fixture.store.fail_next("release_claims", fault);
        engine.tick().await.expect_err("fails");
        let mut seen: Vec<_> = e1.take().await.iter().map(Trigger::attempt_id).collect();
        // Each attempt goes to one executor only.
        let e0 = fixture.executor("e0").await;
        for second in 1..=10 {
            fixture.set(second * 1_000);
            tick(&mut engine).await;
            seen.extend(e1.take().await.iter().map(Trigger::attempt_id));
            seen.extend(e0.take().await.iter().map(Trigger::attempt_id));
        }
        seen.sort();
        let runs: Vec<_> = fixture.runs("job").await.iter().map(|r| r.id).collect();
        assert_eq!(seen.iter().map(|id| id.run).collect::<Vec<_>>(), runs);
        for run in runs {
            assert_eq!(fixture.state(run).await, RunState::Queued, "{fault:?}");
        }
    }
}

/// Five due runs for an executor whose queue holds two messages.
async fn with_small_queue() -> (Fixture, ManualEngine, FakeExecutor) {
    let fixture = Fixture::with(EmbeddedOptions {
        queue_limit: 2,
        ..EmbeddedOptions::default()
    })
    .await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    tick(&mut engine).await;
    fixture.apply("job", json!({ "route": "first" })).await;
    for _ in 0..5 {
        fixture.trigger("job").await;
    }
    (fixture, engine, e1)
}

#[tokio::test]
async fn a_trigger_that_is_too_large_fails_its_run_with_the_reason() {
    let fixture = Fixture::with(EmbeddedOptions {
        max_payload_bytes: 2_000,
        ..EmbeddedOptions::default()
    })
    .await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture
        .apply("large", json!({ "params": "x".repeat(3_000) }))
        .await;
    fixture.apply("small", json!({})).await;
    fixture.trigger("large").await;
    fixture.trigger("small").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_names().await, ["small"]);
    let run = fixture.only_run("large").await;
    assert_eq!(run.state, RunState::Failed);
    let why = run.message.expect("a reason");
    assert!(why.contains("limit of 2000"), "{why}");
}

/// The broker was away for 40 minutes, most of the time in which the first deadline would have passed.
#[tokio::test]
async fn a_trigger_published_late_gets_a_new_deadline() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    tick(&mut engine).await;
    let run = fixture.trigger("job").await;
    let away = BrokerFault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::Publish, away, 1);
    engine.tick().await.expect_err("the broker is away");
    let (minutes, hour_ms) = (40, 3_600_000);
    fixture.set(minutes * 60_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    assert_eq!((trigger.run, trigger.attempt), (run, 1));
    assert_eq!(trigger.deadline, fixture.now().plus_ms(hour_ms));
}
