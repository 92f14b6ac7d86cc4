//! Runs that are due when nobody is alive to run them.

use cueline_engine::{EngineOptions, ManualEngine};
use cueline_model::{OutcomeKind, RunState};
use serde_json::json;

use crate::executor::Executor;
use crate::scene::{Scene, tick};

/// Lets the time pass in steps that keep the node's lease.
async fn pass(scene: &Scene, engine: &mut ManualEngine, from: i64, to: i64) {
    for ms in (from..to).step_by(5_000).chain([to]) {
        scene.set(ms);
        tick(engine).await;
    }
}

#[tokio::test]
async fn a_run_waits_and_goes_out_when_an_executor_appears() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    pass(&scene, &mut engine, 0, 60_000).await;
    assert_eq!(scene.state(run).await, RunState::Scheduled);
    let e1 = Executor::start(&scene, "e1").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
    assert_eq!(scene.state(run).await, RunState::Queued);
}

/// What another node heard a moment ago need not be heard again; what it heard long ago counts for nothing.
#[tokio::test]
async fn a_node_that_starts_knows_who_was_heard_lately() {
    let scene = Scene::new().await;
    let mut one = scene.engine("one").await;
    scene.apply("job", json!({})).await;
    let e1 = Executor::start(&scene, "e1").await;
    tick(&mut one).await;
    drop(one);
    scene.set(10_000);
    let mut two = scene.engine("two").await;
    let run = scene.trigger("job").await;
    assert_eq!(tick(&mut two).await, 1);
    assert_eq!(e1.take_one().await.run, run);
    scene.set(20_000);
    let mut three = scene.engine("three").await;
    let run = scene.trigger("job").await;
    assert_eq!(tick(&mut three).await, 0);
    assert_eq!(scene.state(run).await, RunState::Scheduled);
}

#[tokio::test]
async fn an_executor_without_the_handler_is_nobody() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene
        .apply("job", json!({ "handler": { "native": "other" } }))
        .await;
    let run = scene.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(scene.state(run).await, RunState::Scheduled);
    let learnt = |beat: &mut cueline_model::Heartbeat| {
        beat.capabilities.push("native:other".to_owned());
    };
    e1.heartbeat_with(learnt).await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
}

#[tokio::test]
async fn after_the_deadline_it_ends_unroutable() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    scene
        .apply("job", json!({ "dispatch_deadline": "30s" }))
        .await;
    let run = scene.trigger("job").await;
    pass(&scene, &mut engine, 0, 29_999).await;
    assert_eq!(scene.state(run).await, RunState::Scheduled);
    scene.set(30_000);
    tick(&mut engine).await;
    let ended = scene.run(run).await;
    assert_eq!(ended.state, RunState::Unroutable);
    let why = ended.message.expect("a reason");
    assert!(why.contains("group default"), "{why}");
    assert!(why.contains("native:work"), "{why}");
    let e1 = Executor::start(&scene, "e1").await;
    tick(&mut engine).await;
    assert!(e1.take().await.is_empty(), "it is over");
}

#[tokio::test]
async fn unroutable_is_retried_as_the_policy_says() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let retry = json!({ "max": 1, "first": "20s", "jitter_percent": 0 });
    let rest = json!({ "dispatch_deadline": "10s", "retry": retry });
    scene.apply("job", rest).await;
    let run = scene.trigger("job").await;
    pass(&scene, &mut engine, 0, 10_000).await;
    let again = scene.run(run).await;
    assert_eq!(
        (again.state, again.attempt),
        (RunState::Scheduled, 2),
        "{again:?}"
    );
    assert_eq!(again.due_at, Scene::at(30_000));
    // The second attempt has a deadline of its own.
    pass(&scene, &mut engine, 15_000, 39_999).await;
    assert_eq!(scene.state(run).await, RunState::Scheduled);
    pass(&scene, &mut engine, 40_000, 40_000).await;
    assert_eq!(scene.state(run).await, RunState::Unroutable);
    assert_eq!(scene.timeline(run).await.last().unwrap(), "retry");
}

async fn overflow(deadline: &str) -> (Scene, ManualEngine) {
    let scene = Scene::new().await;
    let engine = scene
        .engine_with(EngineOptions {
            max_parked: 2,
            ..EngineOptions::default()
        })
        .await;
    for n in 0..5 {
        let rest = json!({ "dispatch_deadline": deadline });
        scene.apply(&format!("job-{n}"), rest).await;
        scene.trigger(&format!("job-{n}")).await;
    }
    (scene, engine)
}

#[tokio::test]
async fn past_the_bound_of_memory_runs_wait_in_the_store() {
    let (scene, mut engine) = overflow("1h").await;
    pass(&scene, &mut engine, 0, 40_000).await;
    let e1 = Executor::start(&scene, "e1").await;
    assert_eq!(tick(&mut engine).await, 2, "those in memory");
    scene.set(50_001);
    e1.heartbeat().await;
    assert_eq!(tick(&mut engine).await, 3, "those in the store");
    let mut names = e1.take_names().await;
    names.sort();
    assert_eq!(names, ["job-0", "job-1", "job-2", "job-3", "job-4"]);
}

#[tokio::test]
async fn in_the_store_they_have_the_same_deadline() {
    let (scene, mut engine) = overflow("35s").await;
    pass(&scene, &mut engine, 0, 34_999).await;
    for n in 0..5 {
        let run = scene.only_run(&format!("job-{n}")).await;
        assert_eq!(run.state, RunState::Scheduled);
    }
    pass(&scene, &mut engine, 35_000, 46_000).await;
    for n in 0..5 {
        let run = scene.only_run(&format!("job-{n}")).await;
        assert_eq!(run.state, RunState::Unroutable);
    }
}

/// The store fails while some are to be ended and others to be given back: neither is forgotten.
#[tokio::test]
async fn a_failure_at_the_bound_forgets_nothing() {
    for method in ["ingest_reports", "release_claims"] {
        let (scene, mut engine) = overflow("8s").await;
        tick(&mut engine).await;
        // Longer than the deadline of those, shorter than that of this one.
        scene.set(9_000);
        scene
            .apply("late", json!({ "dispatch_deadline": "1h" }))
            .await;
        let late = scene.trigger("late").await;
        scene
            .store
            .fail_next(method, crate::failing_store::Fault::Before);
        for ms in [11_500, 12_000, 22_500, 33_000] {
            scene.set(ms);
            // One of these fails.
            let _ = engine.tick().await;
        }
        assert_eq!(scene.store.heal(), 1, "the fault happened");
        let e1 = Executor::start(&scene, "e1").await;
        scene.set(44_000);
        e1.heartbeat().await;
        tick(&mut engine).await;
        assert_eq!(scene.state(late).await, RunState::Queued, "{method}");
        for n in 0..5 {
            let run = scene.only_run(&format!("job-{n}")).await;
            assert_eq!(run.state, RunState::Unroutable, "{method}");
        }
    }
}

/// Who waits since when is not to be told from the fire time: a misfire's is long past when the scheduler comes back.
#[tokio::test]
async fn after_a_long_stop_executors_have_time_to_be_heard() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    let retry = json!({ "max": 1, "first": "10s", "jitter_percent": 0 });
    let rest = json!({ "schedule": { "every": "1h" }, "retry": retry });
    scene.apply("job", rest).await;
    let failed = scene.trigger("job").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    e1.ended(&trigger, OutcomeKind::Failed, scene.now()).await;
    tick(&mut engine).await;
    drop(engine);
    let hours = 5 * 3_600_000;
    scene.set(hours + 60_000);
    let mut engine = scene.engine("one").await;
    tick(&mut engine).await;
    scene.set(hours + 64_000);
    tick(&mut engine).await;
    e1.heartbeat().await;
    assert_eq!(tick(&mut engine).await, 2, "the retry and the newest hour");
    assert_eq!(scene.state(failed).await, RunState::Queued);
}

/// A child begins to wait when its parent has ended, however long ago the parent's fire time is.
#[tokio::test]
async fn a_child_of_a_long_parent_has_its_own_deadline() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("parent", json!({})).await;
    let rest = json!({ "after": { "all": ["parent"] }, "dispatch_deadline": "1m" });
    scene.apply("child", rest).await;
    scene.trigger("parent").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    pass(&scene, &mut engine, 5_000, 600_000).await;
    e1.ended(&trigger, OutcomeKind::Succeeded, scene.now())
        .await;
    tick(&mut engine).await;
    pass(&scene, &mut engine, 600_000, 659_999).await;
    let child = scene.only_run("child").await;
    assert_eq!(child.state, RunState::Scheduled, "{child:?}");
    pass(&scene, &mut engine, 660_000, 660_000).await;
    assert_eq!(scene.only_run("child").await.state, RunState::Unroutable);
}

/// An edit gives a waiting run more time; a node that still has the old definition in mind does not end it.
#[tokio::test]
async fn an_edit_of_the_deadline_is_heeded() {
    let scene = Scene::new().await;
    let mut one = scene.engine("one").await;
    let mut two = scene.engine("two").await;
    scene
        .apply("job", json!({ "dispatch_deadline": "10s" }))
        .await;
    let run = scene.trigger("job").await;
    tick(&mut one).await;
    scene
        .apply("job", json!({ "dispatch_deadline": "1h" }))
        .await;
    tick(&mut two).await;
    pass(&scene, &mut one, 5_000, 14_000).await;
    assert_eq!(scene.state(run).await, RunState::Scheduled);
    let e1 = Executor::start(&scene, "e1").await;
    tick(&mut one).await;
    tick(&mut two).await;
    assert_eq!(e1.take_one().await.run, run);
}
