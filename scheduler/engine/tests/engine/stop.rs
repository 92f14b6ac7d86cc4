//! G3: when a pause, an edit or a delete has returned, and nothing is `dispatching` any more, no trigger of the old definition goes out.

use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunState};
use cueline_store::Store as _;
use serde_json::json;

use crate::executor::Executor;
use crate::scene::{Scene, tick};

/// A job of every ten seconds whose first run has been claimed ahead, an instant before it is due.
async fn claimed() -> (Scene, ManualEngine, Executor) {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    let rest = json!({ "schedule": { "every": "10s" } });
    scene.apply("job", rest).await;
    scene.set(9_000);
    tick(&mut engine).await;
    assert_eq!(scene.states("job").await, [RunState::Scheduled]);
    (scene, engine, e1)
}

/// The same, marked and not yet published.
async fn prepared() -> (Scene, ManualEngine, Executor) {
    let (scene, mut engine, e1) = claimed().await;
    scene.set(10_000);
    engine.prepare().await.expect("prepares");
    assert_eq!(scene.states("job").await, [RunState::Dispatching]);
    (scene, engine, e1)
}

async fn publishing(scene: &Scene) -> usize {
    let job = scene.runs("job").await[0].job_id;
    scene
        .store
        .dispatching_attempts(&[job])
        .await
        .expect("lists")
        .len()
}

#[tokio::test]
async fn a_pause_after_the_claim_withdraws_the_run() {
    let (scene, mut engine, e1) = claimed().await;
    scene.pause("job").await;
    for ms in [10_000, 20_000] {
        scene.set(ms);
        assert_eq!(tick(&mut engine).await, 0);
    }
    assert!(e1.take().await.is_empty());
    assert!(
        scene.runs("job").await.is_empty(),
        "it had not happened yet"
    );
}

#[tokio::test]
async fn a_delete_after_the_claim_withdraws_the_run() {
    let (scene, mut engine, e1) = claimed().await;
    scene.delete("job").await;
    for ms in [10_000, 20_000] {
        scene.set(ms);
        assert_eq!(tick(&mut engine).await, 0);
    }
    assert!(e1.take().await.is_empty());
}

#[tokio::test]
async fn an_edit_after_the_claim_goes_out_as_edited() {
    let (scene, mut engine, e1) = claimed().await;
    let rest = json!({ "schedule": { "every": "10s" }, "params": "new" });
    scene.apply("job", rest).await;
    scene.set(10_000);
    assert_eq!(tick(&mut engine).await, 1);
    let trigger = e1.take_one().await;
    assert_eq!(trigger.params.as_deref(), Some("new"));
    assert_eq!(trigger.job.version, 2);
}

/// Runs past their fire time stay and go out by the new definition: this one waits for an executor.
#[tokio::test]
async fn an_edit_is_followed_by_what_waits() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    scene.apply("job", json!({ "params": "old" })).await;
    let run = scene.trigger("job").await;
    tick(&mut engine).await;
    scene.apply("job", json!({ "params": "new" })).await;
    let e1 = Executor::start(&scene, "e1").await;
    tick(&mut engine).await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    assert_eq!(trigger.run, run);
    assert_eq!(trigger.params.as_deref(), Some("new"));
}

/// A pause waits for what is being published; after that nothing more comes.
#[tokio::test]
async fn after_the_mark_a_pause_has_to_wait_for_the_publication() {
    let (scene, mut engine, e1) = prepared().await;
    scene.pause("job").await;
    assert_eq!(publishing(&scene).await, 1);
    assert_eq!(engine.publish().await.expect("publishes"), 1);
    assert_eq!(publishing(&scene).await, 0);
    assert_eq!(e1.take().await.len(), 1);
    scene.set(20_000);
    assert_eq!(tick(&mut engine).await, 0);
}

#[tokio::test]
async fn after_the_mark_an_edit_has_to_wait_for_the_publication() {
    let (scene, mut engine, e1) = prepared().await;
    let rest = json!({ "schedule": { "every": "10s" }, "params": "new" });
    scene.apply("job", rest).await;
    assert_eq!(publishing(&scene).await, 1);
    engine.publish().await.expect("publishes");
    assert_eq!(publishing(&scene).await, 0);
    assert_eq!(e1.take_one().await.job.version, 1);
    scene.set(20_000);
    tick(&mut engine).await;
    assert_eq!(e1.take_one().await.job.version, 2);
}

#[tokio::test]
async fn after_the_mark_a_delete_has_to_wait_for_the_publication() {
    let (scene, mut engine, e1) = prepared().await;
    let run = scene.only_run("job").await;
    scene.delete("job").await;
    let jobs = [run.job_id];
    assert_eq!(
        scene
            .store
            .dispatching_attempts(&jobs)
            .await
            .expect("lists")
            .len(),
        1
    );
    engine.publish().await.expect("publishes");
    assert_eq!(
        scene
            .store
            .dispatching_attempts(&jobs)
            .await
            .expect("lists")
            .len(),
        0
    );
    let trigger = e1.take_one().await;
    scene.set(20_000);
    assert_eq!(tick(&mut engine).await, 0);
    e1.ended(&trigger, OutcomeKind::Succeeded, scene.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(scene.state(run.id).await, RunState::Succeeded);
}

#[tokio::test]
async fn paused_and_resumed_it_goes_on() {
    let (scene, mut engine, e1) = claimed().await;
    scene.pause("job").await;
    let resumed = scene
        .real()
        .set_job_enabled(&crate::scene::name("job"), true, "a test")
        .await;
    resumed.expect("resumes");
    scene.set(10_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.job.version, 3);
}

/// Past its fire time and not due yet because of its jitter: the node held it under the old definition, and claims it anew under the new one.
#[tokio::test]
async fn a_run_that_waits_out_its_jitter_goes_out_once_and_by_the_new_definition() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    let definition = |priority: u8, params: &str| json!({ "schedule": { "every": "10s" }, "jitter": "9s", "priority": priority, "params": params });
    scene.apply("job", definition(9, "old")).await;
    // Through its fire times until one has a jitter to speak of.
    let mut fire_ms = 0;
    let run = loop {
        fire_ms += 10_000;
        scene.set(fire_ms - 1_400);
        e1.heartbeat().await;
        tick(&mut engine).await;
        let run = scene.runs("job").await.pop().expect("a run");
        if run.due_at.since_ms(run.fire_at) > 2_000 {
            break run;
        }
    };
    let due_ms = run.due_at.since_ms(Scene::at(0));
    scene.set(due_ms - 500);
    e1.heartbeat().await;
    tick(&mut engine).await;
    e1.take().await;
    scene.apply("job", definition(1, "new")).await;
    tick(&mut engine).await;
    scene.set(due_ms);
    assert_eq!(tick(&mut engine).await, 1);
    let trigger = e1.take_one().await;
    assert_eq!(
        (trigger.run, trigger.params.as_deref()),
        (run.id, Some("new"))
    );
}
