//! What arrives on the results stream: G9, each result once, and nothing that arrives stops the rest.

use std::time::Duration;

use cueline_broker::{DeadLetter, QueueId};
use cueline_engine::EngineOptions;
use cueline_model::{
    AttemptEvent, AttemptId, LogLine, LogStream, Outcome, OutcomeKind, RunId, RunState, StoreId,
    Timestamp,
};
use cueline_protocol::{ReportMessage, Trigger, decode, encode};
use serde_json::json;

use crate::executor::{Executor, id_of};
use crate::scene::{Scene, tick};

async fn dead_letters(scene: &Scene) -> Vec<DeadLetter> {
    let fetched = scene.broker.fetch(&QueueId::Dead, 100, Duration::ZERO);
    let deliveries = fetched.await.expect("fetches");
    deliveries
        .iter()
        .map(|d| DeadLetter::decode(&d.payload).expect("a dead letter"))
        .collect()
}

#[tokio::test]
async fn what_cannot_be_read_becomes_a_dead_letter_and_the_rest_is_applied() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let (first, second) = (scene.trigger("job").await, scene.trigger("job").await);
    tick(&mut engine).await;
    let triggers = e1.take().await;
    e1.ended(&triggers[0], OutcomeKind::Succeeded, scene.now())
        .await;
    for garbage in [&b"no JSON"[..], b"{}", b"\xff\x00", b"[1,2]", b""] {
        scene.put(&QueueId::Results, garbage.to_vec()).await;
    }
    let future = br#"{"v":99,"run":1,"attempt":1,"news":true}"#;
    scene.put(&QueueId::Results, &future[..]).await;
    e1.ended(&triggers[1], OutcomeKind::Failed, scene.now())
        .await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(scene.state(first).await, RunState::Succeeded);
    assert_eq!(scene.state(second).await, RunState::Failed);
    let letters = dead_letters(&scene).await;
    assert_eq!(letters.len(), 6, "{letters:#?}");
    assert!(letters.iter().all(|l| l.queue == "results"));
    assert!(letters.iter().all(|l| l.reason.contains("failed to read")));
    let last = letters.last().expect("six of them");
    assert!(last.reason.contains("99"), "{}", last.reason);
    assert_eq!(last.payload, &future[..]);
}

/// Executors put several reports into one message. What can be read of it counts, and the message can be seen among the dead letters.
#[tokio::test]
async fn reports_of_one_message_are_applied_each() {
    let scene = Scene::new().await;
    let options = EngineOptions {
        ingest_batch: 2,
        ..EngineOptions::default()
    };
    let mut engine = scene.engine_with(options).await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(scene.trigger("job").await);
    }
    tick(&mut engine).await;
    let ended = |trigger: &Trigger| {
        let outcome = Outcome::new(OutcomeKind::Succeeded, scene.now());
        e1.event(id_of(trigger), AttemptEvent::Ended { outcome })
    };
    let mut lines: Vec<Vec<u8>> = e1.take().await.iter().map(ended).collect();
    lines.insert(1, b"no JSON".to_vec());
    scene.put(&QueueId::Results, lines.join(&b'\n')).await;
    tick(&mut engine).await;
    for run in runs {
        assert_eq!(scene.state(run).await, RunState::Succeeded);
    }
    let letters = dead_letters(&scene).await;
    assert_eq!(letters.len(), 1, "{letters:#?}");
    assert_eq!(letters[0].payload, lines.join(&b'\n'));
}

/// Well-formed, and about nothing that there is, or with numbers at their ends.
#[tokio::test]
async fn reports_about_nothing_change_nothing() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    let at = [i64::MIN, -1, 0, i64::MAX].map(Timestamp::from_millis);
    let mut strange = Vec::new();
    for run in [0, -1, 4_242, i64::MIN, i64::MAX, run.0] {
        for attempt in [0, 2, u32::MAX] {
            let id = AttemptId {
                run: RunId(run),
                attempt,
            };
            let line = LogLine {
                seq: u64::MAX,
                at: at[0],
                stream: LogStream::Out,
                text: "\0".to_owned(),
            };
            let mut outcome = Outcome::new(OutcomeKind::Failed, at[3]).because("\0\u{fffd}");
            outcome.started_at = Some(at[0]);
            outcome.exit_status = Some(i32::MIN);
            strange.extend([
                e1.event(id, AttemptEvent::Started { at: at[3] }),
                e1.event(id, AttemptEvent::Progress { fraction: -1e300 }),
                e1.event(id, AttemptEvent::Log { lines: vec![line] }),
                e1.event(id, AttemptEvent::Ended { outcome }),
            ]);
        }
    }
    for message in strange {
        scene.put(&QueueId::Results, message).await;
    }
    e1.started(&trigger, scene.now()).await;
    assert_eq!(engine.tick().await.expect("a turn").ingested, 73);
    assert_eq!(scene.state(run).await, RunState::Running);
    assert!(dead_letters(&scene).await.is_empty());
    let outcome = Outcome::new(OutcomeKind::Succeeded, at[3]);
    e1.report(&trigger, AttemptEvent::Ended { outcome }).await;
    tick(&mut engine).await;
    assert_eq!(scene.state(run).await, RunState::Succeeded);
}

#[tokio::test]
async fn a_repeated_result_is_applied_once() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    let retry = json!({ "max": 5, "first": "1s", "jitter_percent": 0 });
    scene.apply("job", json!({ "retry": retry })).await;
    let run = scene.trigger("job").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    // Within one batch, and in another one.
    for _ in 0..3 {
        e1.ended(&trigger, OutcomeKind::Failed, scene.now()).await;
    }
    tick(&mut engine).await;
    e1.ended(&trigger, OutcomeKind::Failed, scene.now()).await;
    tick(&mut engine).await;
    let again = scene.run(run).await;
    assert_eq!((again.attempt, again.retries), (2, 1));
    scene.set(1_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.attempt, 2);
}

#[tokio::test]
async fn a_late_result_of_an_older_attempt_is_refused_and_noted() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    let rest = json!({ "on_lost": "rerun" });
    scene.apply("job", rest).await;
    let run = scene.trigger("job").await;
    tick(&mut engine).await;
    let first = e1.take_one().await;
    e1.ended(&first, OutcomeKind::Lost, scene.now()).await;
    tick(&mut engine).await;
    let second = e1.take_one().await;
    assert_ne!(id_of(&first), id_of(&second));
    e1.ended(&first, OutcomeKind::Succeeded, scene.now()).await;
    e1.started(&first, scene.now()).await;
    tick(&mut engine).await;
    assert_eq!(scene.state(run).await, RunState::Queued);
    assert_eq!(scene.timeline(run).await.last().unwrap(), "refused");
    e1.ended(&second, OutcomeKind::Succeeded, scene.now()).await;
    tick(&mut engine).await;
    assert_eq!(scene.state(run).await, RunState::Succeeded);
}

/// A fast executor is done before the scheduler has written down that the broker has the trigger.
#[tokio::test]
async fn a_result_may_overtake_its_confirmation() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    engine.hear().await.expect("hears");
    engine.claim().await.expect("claims");
    engine.prepare().await.expect("prepares");
    let fault = crate::failing_store::Fault::Before;
    scene.store.fail_next("confirm_dispatch", fault);
    engine.publish().await.expect_err("the confirmation fails");
    assert_eq!(scene.state(run).await, RunState::Dispatching);
    let trigger = e1.take_one().await;
    e1.ended(&trigger, OutcomeKind::Succeeded, scene.now())
        .await;
    assert_eq!(engine.take_in().await.expect("takes in"), 1);
    assert_eq!(scene.state(run).await, RunState::Succeeded);
    tick(&mut engine).await;
    assert_eq!(scene.state(run).await, RunState::Succeeded, "and stays so");
    assert!(e1.take().await.is_empty());
}

/// Run numbers come again in another store: what is said of that one's runs is not applied to these, and can be seen.
#[tokio::test]
async fn a_report_about_another_stores_run_is_a_dead_letter() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    let ours = scene.real().store_id().await.expect("an id");
    assert_eq!(trigger.store, ours);
    let outcome = Outcome::new(OutcomeKind::Succeeded, scene.now());
    let mut event: ReportMessage =
        decode(&e1.event(id_of(&trigger), AttemptEvent::Ended { outcome })).expect("an event");
    event.store = StoreId(ours.0 ^ 1);
    scene.put(&QueueId::Results, encode(&event)).await;
    tick(&mut engine).await;
    assert_eq!(scene.state(run).await, RunState::Queued);
    let letters = dead_letters(&scene).await;
    assert_eq!(letters.len(), 1, "{letters:#?}");
    let reason = &letters[0].reason;
    assert!(
        reason.contains("another store") && reason.contains(&ours.to_string()),
        "{reason}"
    );
    event.store = ours;
    scene.put(&QueueId::Results, encode(&event)).await;
    tick(&mut engine).await;
    assert_eq!(scene.state(run).await, RunState::Succeeded);
}
