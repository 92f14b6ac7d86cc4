//! G11: cancelling, in every state.

use cueline_model::{OutcomeKind, RunId, RunState};
use cueline_store::CancelOutcome;
use serde_json::json;

use crate::executor::Executor;
use crate::scene::{Scene, tick};

async fn cancel(scene: &Scene, run: RunId) -> CancelOutcome {
    scene
        .real()
        .cancel_run(run, "a test")
        .await
        .expect("cancels")
}

#[tokio::test]
async fn a_scheduled_run_is_never_published() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    let rest = json!({ "schedule": { "every": "1m" } });
    scene.apply("job", rest).await;
    scene.set(59_000);
    e1.heartbeat().await;
    engine.claim().await.expect("claims ahead");
    let run = scene.only_run("job").await.id;
    assert_eq!(cancel(&scene, run).await, CancelOutcome::Cancelled);
    scene.set(60_000);
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e1.take().await.is_empty());
    assert_eq!(scene.state(run).await, RunState::Cancelled);
}

/// Cancelled between the mark and the publication: its executor hears of it.
#[tokio::test]
async fn a_dispatching_run_is_cancelled_at_its_executor() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let mut e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    engine.hear().await.expect("hears");
    engine.claim().await.expect("claims");
    engine.prepare().await.expect("prepares");
    assert_eq!(cancel(&scene, run).await, CancelOutcome::Requested);
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    assert_eq!(e1.cancels().await, [run.0]);
    e1.ended(&trigger, OutcomeKind::Cancelled, scene.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(scene.state(run).await, RunState::Cancelled);
}

/// An order is not kept anywhere: it is repeated until it has taken effect, for what is queued and for what runs.
#[tokio::test]
async fn the_order_is_repeated_until_it_has_taken_effect() {
    for running in [false, true] {
        let scene = Scene::new().await;
        let mut engine = scene.engine("one").await;
        let mut e1 = Executor::start(&scene, "e1").await;
        let rest = json!({ "retry": { "max": 3 }, "on_lost": "rerun" });
        scene.apply("job", rest).await;
        let run = scene.trigger("job").await;
        let other = scene.trigger("job").await;
        tick(&mut engine).await;
        let triggers = e1.take().await;
        if running {
            e1.started(&triggers[0], scene.now()).await;
            tick(&mut engine).await;
        }
        assert_eq!(cancel(&scene, run).await, CancelOutcome::Requested);
        for _ in 0..3 {
            tick(&mut engine).await;
            assert_eq!(e1.cancels().await, [run.0]);
        }
        e1.ended(&triggers[0], OutcomeKind::Cancelled, scene.now())
            .await;
        tick(&mut engine).await;
        assert_eq!(scene.state(run).await, RunState::Cancelled);
        tick(&mut engine).await;
        assert!(e1.cancels().await.is_empty(), "it has taken effect");
        assert_ne!(scene.state(other).await, RunState::Cancelled);
    }
}

/// What an executor that is gone will never hear does not keep the orders from the others.
#[tokio::test]
async fn a_thousand_orders_for_a_dead_executor_hold_up_no_other() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let mut e1 = Executor::start(&scene, "e1").await;
    let many = json!({ "sharded": vec![""; 1_000] });
    scene.apply("many", json!({ "route": many })).await;
    scene.apply("job", json!({})).await;
    scene.trigger("many").await;
    assert_eq!(tick(&mut engine).await, 1_000);
    for run in scene.runs("many").await {
        cancel(&scene, run.id).await;
    }
    scene.set(10_000);
    tick(&mut engine).await;
    e1.cancels().await;
    let mut e2 = Executor::start(&scene, "e2").await;
    scene.set(20_000);
    e2.heartbeat().await;
    let run = scene.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    cancel(&scene, run).await;
    tick(&mut engine).await;
    assert_eq!(e2.cancels().await, [run.0]);
    // It is back, and hears them after all.
    e1.heartbeat().await;
    tick(&mut engine).await;
    assert!(e1.cancels().await.len() > 900);
}

/// What is to be cancelled does not get another attempt, however its attempt ends.
#[tokio::test]
async fn there_is_no_attempt_after_a_cancellation() {
    for kind in [
        OutcomeKind::Returned,
        OutcomeKind::Failed,
        OutcomeKind::Lost,
    ] {
        let scene = Scene::new().await;
        let mut engine = scene.engine("one").await;
        let e1 = Executor::start(&scene, "e1").await;
        let rest = json!({ "retry": { "max": 3, "first": "1s" }, "on_lost": "rerun" });
        scene.apply("job", rest).await;
        let run = scene.trigger("job").await;
        tick(&mut engine).await;
        let trigger = e1.take_one().await;
        cancel(&scene, run).await;
        e1.ended(&trigger, kind, scene.now()).await;
        tick(&mut engine).await;
        scene.set(5_000);
        assert_eq!(tick(&mut engine).await, 0);
        assert!(scene.state(run).await.is_terminal());
    }
}

/// Waiting for an executor, or for a retry, is `scheduled` too.
#[tokio::test]
async fn what_waits_in_memory_is_not_published_after_its_cancellation() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    tick(&mut engine).await;
    assert_eq!(cancel(&scene, run).await, CancelOutcome::Cancelled);
    let e1 = Executor::start(&scene, "e1").await;
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e1.take().await.is_empty());
}
