//! The store or the broker fails once, at each stage: nothing is lost, and nothing is doubled but the same attempt at the same executor.

use std::collections::BTreeMap;

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_broker_embedded::EmbeddedOptions;
use cueline_engine::ManualEngine;
use cueline_model::{AttemptEvent, Outcome, OutcomeKind, RunState};
use serde_json::json;

use crate::executor::{Executor, id_of};
use crate::failing_store::Fault;
use crate::scene::{Scene, tick, until};

/// Everything that the scheduler does, once, with two executors that come to different answers when asked again (`random`): a schedule, a
/// manual trigger, a retry and a child.
async fn play(scene: &Scene, what: &str, fault: impl FnOnce()) {
    let mut engine = scene.engine("one").await;
    let executors = [
        Executor::start(scene, "e1").await,
        Executor::start(scene, "e2").await,
    ];
    tick(&mut engine).await;
    for n in 0..3 {
        let retry = json!({ "max": 1, "first": "1s", "jitter_percent": 0 });
        let rest = json!({
            "schedule": { "at": Scene::at(1_000).to_string() }, "route": "random", "retry": retry,
        });
        scene.apply(&format!("job-{n}"), rest).await;
    }
    let rest = json!({ "after": { "all": ["job-1"] }, "route": "random" });
    scene.apply("child", rest).await;
    scene.apply("by-hand", json!({ "route": "random" })).await;
    scene.set(1_000);
    scene.trigger("by-hand").await;
    fault();
    let mut audit = BTreeMap::new();
    let mut ms = 1_000;
    until(what, async || {
        ms += 100;
        turn(scene, &mut engine, &executors, ms, &mut audit).await;
        scene
            .runs("child")
            .await
            .iter()
            .any(|r| r.state.is_terminal())
            && all_ended(scene, &["job-0", "job-1", "job-2", "by-hand"]).await
    })
    .await;
    // It is over: nothing more comes.
    assert_eq!(tick(&mut engine).await, 0, "{what}");
    assert_eq!(scene.only_run("job-0").await.attempt, 2, "{what}");
    for job in ["job-0", "job-1", "job-2", "by-hand", "child"] {
        let run = scene.only_run(job).await;
        assert_eq!(run.state, RunState::Succeeded, "{what}: {run:#?}");
        for attempt in 1..=run.attempt {
            let at = &audit[&(run.id.0, attempt)];
            assert_eq!(at.len(), 1, "{what}: {job} attempt {attempt} at {at:?}");
        }
    }
}

/// One turn of the world: some time passes, executors beat, the engine works as it can, and triggers are answered.
async fn turn(
    scene: &Scene,
    engine: &mut ManualEngine,
    executors: &[Executor],
    ms: i64,
    audit: &mut BTreeMap<(i64, u32), Vec<&'static str>>,
) {
    scene.set(ms.min(12_000));
    for executor in executors {
        let _ = engine.tick().await;
        let Ok(triggers) = executor.try_take().await else {
            continue;
        };
        for trigger in triggers {
            let id = id_of(&trigger);
            let at = audit.entry((id.run.0, id.attempt)).or_default();
            if !at.contains(&executor.name) {
                at.push(executor.name);
            }
            let fails = trigger.job.name.as_str() == "job-0" && id.attempt == 1;
            let kind = if fails {
                OutcomeKind::Failed
            } else {
                OutcomeKind::Succeeded
            };
            let outcome = Outcome::new(kind, scene.now());
            let body = AttemptEvent::Ended { outcome };
            // An executor keeps its report until the broker has it.
            until("the report is taken", async || {
                executor.try_report(&trigger, body.clone()).await.is_ok()
            })
            .await;
        }
    }
}

async fn all_ended(scene: &Scene, jobs: &[&str]) -> bool {
    for job in jobs {
        let runs = scene.runs(job).await;
        if runs.is_empty() || runs.iter().any(|r| !r.state.is_terminal()) {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn without_a_fault() {
    let scene = Scene::new().await;
    play(&scene, "no fault", || {}).await;
}

#[tokio::test]
async fn the_store_fails_at_each_stage() {
    for method in [
        "now",
        "renew_lease",
        "fire_due",
        "claim_waiting",
        "begin_dispatch",
        "confirm_dispatch",
        "ingest_reports",
        "overdue_attempts",
        "pending_cancellations",
    ] {
        for fault in [Fault::Before, Fault::After] {
            let scene = Scene::with_short_ack_wait().await;
            let what = format!("{fault:?} {method}");
            play(&scene, &what, || scene.store.fail_next(method, fault)).await;
            assert_eq!(scene.store.heal(), 1, "{what}: it happened");
        }
    }
}

#[tokio::test]
async fn the_broker_fails_at_each_stage() {
    for operation in [Operation::Publish, Operation::Fetch, Operation::Settle] {
        for fault in [
            BrokerFault::Before(ErrorKind::Transient),
            BrokerFault::After(ErrorKind::Transient),
            BrokerFault::Unanswered,
        ] {
            let scene = Scene::with_short_ack_wait().await;
            let what = format!("{fault:?} {operation:?}");
            let calls = scene.broker_faults.calls(operation);
            play(&scene, &what, || {
                scene.broker_faults.next(operation, fault, 1);
            })
            .await;
            assert!(scene.broker_faults.calls(operation) > calls);
        }
    }
}

/// The marks of a batch were written and the answer was lost; the executor that was chosen then is the one to go to.
#[tokio::test]
async fn a_lost_answer_to_the_mark_does_not_strand_runs() {
    for n in 0..4 {
        let scene = Scene::new().await;
        let mut engine = scene.engine("one").await;
        let e1 = Executor::start(&scene, "e1").await;
        scene.apply("job", json!({ "route": "first" })).await;
        tick(&mut engine).await;
        let run = scene.trigger("job").await;
        scene.store.fail_next("begin_dispatch", Fault::After);
        engine.tick().await.expect_err("the answer is lost");
        // Meanwhile another one would be chosen, or nobody.
        let e0 = match n % 2 {
            0 => Some(Executor::start(&scene, "e0").await),
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

/// Nothing was marked: who has gone since then is not the one to go to.
#[tokio::test]
async fn after_a_failed_mark_runs_are_routed_anew() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({ "route": "first" })).await;
    tick(&mut engine).await;
    let run = scene.trigger("job").await;
    scene.store.fail_next("begin_dispatch", Fault::Before);
    engine.tick().await.expect_err("nothing is marked");
    e1.leave().await;
    assert_eq!(tick(&mut engine).await, 0);
    let e2 = Executor::start(&scene, "e2").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e2.take_one().await.run, run);
}

/// A queue that is full gets its triggers when there is room.
#[tokio::test]
async fn what_a_full_queue_refuses_goes_out_later() {
    let (scene, mut engine, e1) = with_little_queues().await;
    assert_eq!(tick(&mut engine).await, 2, "of five");
    let mut seen: Vec<_> = e1.take().await.iter().map(|t| t.run).collect();
    assert_eq!(tick(&mut engine).await, 0, "not at once");
    for second in 1..=10 {
        scene.set(second * 1_000);
        tick(&mut engine).await;
        seen.extend(e1.take().await.iter().map(|t| t.run));
    }
    seen.sort();
    let runs: Vec<_> = scene.runs("job").await.iter().map(|r| r.id).collect();
    assert_eq!(seen, runs, "each once");
    for run in runs {
        assert_eq!(scene.state(run).await, RunState::Queued);
    }
}

/// The store fails just when refused triggers are to be given back: they are not published behind its back.
#[tokio::test]
async fn a_failure_while_refused_triggers_are_given_back() {
    for fault in [Fault::Before, Fault::After] {
        let (scene, mut engine, e1) = with_little_queues().await;
        scene.store.fail_next("release_claims", fault);
        engine.tick().await.expect_err("fails");
        let mut seen: Vec<_> = e1.take().await.iter().map(id_of).collect();
        // Whoever gets them now, or later, gets them alone.
        let e0 = Executor::start(&scene, "e0").await;
        for second in 1..=10 {
            scene.set(second * 1_000);
            tick(&mut engine).await;
            seen.extend(e1.take().await.iter().map(id_of));
            seen.extend(e0.take().await.iter().map(id_of));
        }
        seen.sort();
        let runs: Vec<_> = scene.runs("job").await.iter().map(|r| r.id).collect();
        assert_eq!(seen.iter().map(|id| id.run).collect::<Vec<_>>(), runs);
        for run in runs {
            assert_eq!(scene.state(run).await, RunState::Queued, "{fault:?}");
        }
    }
}

/// Five runs that are due, for an executor whose queue takes two.
async fn with_little_queues() -> (Scene, ManualEngine, Executor) {
    let scene = Scene::with(EmbeddedOptions {
        queue_limit: 2,
        ..EmbeddedOptions::default()
    })
    .await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    tick(&mut engine).await;
    scene.apply("job", json!({ "route": "first" })).await;
    for _ in 0..5 {
        scene.trigger("job").await;
    }
    (scene, engine, e1)
}

/// A trigger that no broker takes ends its run, with the reason.
#[tokio::test]
async fn what_is_too_large_fails_and_says_so() {
    let scene = Scene::with(EmbeddedOptions {
        max_payload_bytes: 2_000,
        ..EmbeddedOptions::default()
    })
    .await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene
        .apply("large", json!({ "params": "x".repeat(3_000) }))
        .await;
    scene.apply("small", json!({})).await;
    scene.trigger("large").await;
    scene.trigger("small").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_names().await, ["small"]);
    let run = scene.only_run("large").await;
    assert_eq!(run.state, RunState::Failed);
    let why = run.message.expect("a reason");
    assert!(why.contains("more than the 2000"), "{why}");
}

/// The broker was away for long: what goes out then is good for as long as if it had been written just now.
#[tokio::test]
async fn a_trigger_that_could_not_go_out_for_long_is_written_anew() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    tick(&mut engine).await;
    let run = scene.trigger("job").await;
    let away = BrokerFault::Before(ErrorKind::Transient);
    scene.broker_faults.next(Operation::Publish, away, 1);
    engine.tick().await.expect_err("the broker is away");
    let (minutes, hour_ms) = (40, 3_600_000);
    scene.set(minutes * 60_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    assert_eq!((trigger.run, trigger.attempt), (run, 1));
    assert_eq!(trigger.deadline, scene.now().plus_ms(hour_ms));
}
