//! G9: each result is applied once, and no message stops the others.

use cueline_broker::QueueId;
use cueline_engine::EngineOptions;
use cueline_model::{
    AttemptEvent, AttemptId, LogLine, LogStream, Outcome, OutcomeKind, RunId, RunState, StoreId,
    Timestamp,
};
use cueline_protocol::{ReportMessage, Trigger, decode, encode};
use serde_json::json;

use crate::fixture::{FakeExecutor, Fault, Fixture, eventually, tick};

#[tokio::test]
async fn an_unreadable_message_becomes_a_dead_letter_and_the_rest_is_applied() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let (first, second) = (fixture.trigger("job").await, fixture.trigger("job").await);
    tick(&mut engine).await;
    let triggers = e1.take().await;
    e1.ended(&triggers[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    for garbage in [&b"no JSON"[..], b"{}", b"\xff\x00", b"[1,2]", b""] {
        fixture.put(&QueueId::Results, garbage.to_vec()).await;
    }
    let future = br#"{"v":99,"run":1,"attempt":1,"news":true}"#;
    fixture.put(&QueueId::Results, &future[..]).await;
    e1.ended(&triggers[1], OutcomeKind::Failed, fixture.now())
        .await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(fixture.state(first).await, RunState::Succeeded);
    assert_eq!(fixture.state(second).await, RunState::Failed);
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 6, "{letters:#?}");
    assert!(letters.iter().all(|l| l.queue == "results"));
    assert!(
        letters
            .iter()
            .all(|l| l.origin.as_deref() == Some("scheduler"))
    );
    assert!(letters.iter().all(|l| l.reason.contains("failed to read")));
    let last = letters.last().expect("six of them");
    assert!(last.reason.contains("99"), "{}", last.reason);
    assert_eq!(last.payload, &future[..]);
}

/// Executors put several reports into one message. The readable ones are applied, and the message becomes a dead
/// letter.
#[tokio::test]
async fn each_report_of_a_message_is_applied() {
    let fixture = Fixture::new().await;
    let options = EngineOptions {
        ingest_batch: 2,
        ..EngineOptions::default()
    };
    let mut engine = fixture.engine_with(options).await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(fixture.trigger("job").await);
    }
    tick(&mut engine).await;
    let ended = |trigger: &Trigger| {
        let outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
        e1.encoded_report(trigger.attempt_id(), AttemptEvent::Ended { outcome })
    };
    let mut lines: Vec<Vec<u8>> = e1.take().await.iter().map(ended).collect();
    lines.insert(1, b"no JSON".to_vec());
    fixture.put(&QueueId::Results, lines.join(&b'\n')).await;
    tick(&mut engine).await;
    for run in runs {
        assert_eq!(fixture.state(run).await, RunState::Succeeded);
    }
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 1, "{letters:#?}");
    assert_eq!(letters[0].payload, lines.join(&b'\n'));
}

const UNSTORABLE: &str = "a message that the database cannot keep";

/// A report of the end of this attempt, as it is sent.
fn end_of(executor: &FakeExecutor, trigger: &Trigger, kind: OutcomeKind) -> Vec<u8> {
    let mut outcome = Outcome::new(kind, Timestamp::from_millis(1));
    if kind == OutcomeKind::Failed {
        outcome = outcome.because(UNSTORABLE);
    }
    executor.encoded_report(trigger.attempt_id(), AttemptEvent::Ended { outcome })
}

/// A retry of such a report fails for ever.
#[tokio::test]
async fn a_report_that_the_store_cannot_keep_becomes_a_dead_letter_and_the_rest_is_applied() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    for _ in 0..9 {
        fixture.trigger("job").await;
    }
    tick(&mut engine).await;
    let triggers = e1.take().await;
    assert_eq!(triggers.len(), 9);
    fixture.store.refuse_outcomes(Some(UNSTORABLE));
    let unstorable = |n: usize| n == 4 || n == 6;
    let report = |n: usize| {
        let kind = if unstorable(n) {
            OutcomeKind::Failed
        } else {
            OutcomeKind::Succeeded
        };
        end_of(&e1, &triggers[n], kind)
    };
    // The reports 5 to 7 are one message.
    let together = [report(5), report(6), report(7)].join(&b'\n');
    for n in 0..5 {
        fixture.put(&QueueId::Results, report(n)).await;
    }
    fixture.put(&QueueId::Results, together.clone()).await;
    fixture.put(&QueueId::Results, report(8)).await;
    let calls_before = fixture.store.calls("ingest_reports");
    engine.ingest().await.expect("ingests the others");
    let calls = fixture.store.calls("ingest_reports") - calls_before;
    assert!((3..18).contains(&calls), "{calls} calls for 9 reports");
    for (n, trigger) in triggers.iter().enumerate() {
        let state = if unstorable(n) {
            RunState::Queued
        } else {
            RunState::Succeeded
        };
        assert_eq!(fixture.state(trigger.run).await, state, "report {n}");
    }
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 2, "{letters:#?}");
    assert!(letters.iter().all(|l| l.reason.contains("cannot keep")));
    assert_eq!(letters[0].payload, report(4));
    assert_eq!(letters[1].payload, together);

    // A replay applies what was not applied.
    fixture.store.refuse_outcomes(None);
    fixture.put(&QueueId::Results, together).await;
    engine.ingest().await.expect("ingests");
    assert_eq!(fixture.state(triggers[6].run).await, RunState::Failed);
    assert_eq!(fixture.state(triggers[7].run).await, RunState::Succeeded);
}

/// What may pass is tried again, also while a batch is being halved.
#[tokio::test]
async fn a_store_that_is_away_while_a_batch_is_halved_makes_no_dead_letter() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    for _ in 0..4 {
        fixture.trigger("job").await;
    }
    tick(&mut engine).await;
    let triggers = e1.take().await;
    fixture.store.refuse_outcomes(Some(UNSTORABLE));
    for (n, trigger) in triggers.iter().enumerate() {
        let kind = if n == 3 {
            OutcomeKind::Failed
        } else {
            OutcomeKind::Succeeded
        };
        let report = end_of(&e1, trigger, kind);
        fixture.put(&QueueId::Results, report).await;
    }
    // The whole batch is refused, and its first half meets the failure.
    let store = &fixture.store;
    store.fail_next("ingest_reports", Fault::Takes(0));
    store.fail_next("ingest_reports", Fault::Before);
    engine.ingest().await.expect_err("the store is away");
    assert!(fixture.dead_letters().await.is_empty());
    eventually("the results after the failure", async || {
        engine.ingest().await.expect("the store is back");
        fixture
            .states("job")
            .await
            .iter()
            .filter(|s| **s == RunState::Succeeded)
            .count()
            == 3
    })
    .await;
    assert_eq!(fixture.state(triggers[3].run).await, RunState::Queued);
    assert_eq!(fixture.dead_letters().await.len(), 1);
}

/// The messages are well-formed. They name runs that do not exist, or contain extreme numbers.
#[tokio::test]
async fn reports_about_unknown_runs_and_attempts_change_nothing() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
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
                e1.encoded_report(id, AttemptEvent::Started { at: at[3] }),
                e1.encoded_report(id, AttemptEvent::Progress { fraction: -1e300 }),
                e1.encoded_report(id, AttemptEvent::Log { lines: vec![line] }),
                e1.encoded_report(id, AttemptEvent::Ended { outcome }),
            ]);
        }
    }
    for message in strange {
        fixture.put(&QueueId::Results, message).await;
    }
    e1.started(&trigger, fixture.now()).await;
    assert_eq!(engine.tick().await.expect("a turn").ingested, 73);
    assert_eq!(fixture.state(run).await, RunState::Running);
    // Those about other attempts of the run: no executor was given them.
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 12, "{letters:#?}");
    assert!(letters.iter().all(|l| l.reason.contains("was not given")));
    let outcome = Outcome::new(OutcomeKind::Succeeded, at[3]);
    e1.report(&trigger, AttemptEvent::Ended { outcome }).await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Succeeded);
}

#[tokio::test]
async fn a_repeated_result_is_applied_once() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let retry = json!({ "max": 5, "first": "1s", "jitter_percent": 0 });
    fixture.apply("job", json!({ "retry": retry })).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    // Within one batch, and again in another one.
    for _ in 0..3 {
        e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
    }
    tick(&mut engine).await;
    e1.ended(&trigger, OutcomeKind::Failed, fixture.now()).await;
    tick(&mut engine).await;
    let again = fixture.run(run).await;
    assert_eq!((again.attempt, again.retries), (2, 1));
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.attempt, 2);
}

#[tokio::test]
async fn a_late_result_of_an_older_attempt_is_refused_and_noted() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let rest = json!({ "on_lost": "rerun" });
    fixture.apply("job", rest).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    let first = e1.take_one().await;
    e1.ended(&first, OutcomeKind::Lost, fixture.now()).await;
    tick(&mut engine).await;
    let second = e1.take_one().await;
    assert_ne!(first.attempt_id(), second.attempt_id());
    e1.ended(&first, OutcomeKind::Succeeded, fixture.now())
        .await;
    e1.started(&first, fixture.now()).await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Queued);
    assert_eq!(fixture.timeline(run).await.last().unwrap(), "refused");
    e1.ended(&second, OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Succeeded);
}

/// A fast executor ends the attempt before the scheduler has confirmed its trigger.
#[tokio::test]
async fn a_result_may_overtake_its_confirmation() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    engine.claim().await.expect("claims");
    engine.prepare().await.expect("prepares");
    let fault = Fault::Before;
    fixture.store.fail_next("confirm_dispatch", fault);
    engine.publish().await.expect_err("the confirmation fails");
    assert_eq!(fixture.state(run).await, RunState::Dispatching);
    let trigger = e1.take_one().await;
    e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
        .await;
    assert_eq!(engine.ingest().await.expect("takes in"), 1);
    assert_eq!(fixture.state(run).await, RunState::Succeeded);
    tick(&mut engine).await;
    assert_eq!(
        fixture.state(run).await,
        RunState::Succeeded,
        "and stays so"
    );
    assert!(e1.take().await.is_empty());
}

/// Run ids repeat across stores.
#[tokio::test]
async fn a_report_about_a_run_of_another_store_is_a_dead_letter() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    let ours = fixture.real().store_id().await.expect("an id");
    assert_eq!(trigger.store, ours);
    let outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
    let mut event: ReportMessage =
        decode(&e1.encoded_report(trigger.attempt_id(), AttemptEvent::Ended { outcome }))
            .expect("an event");
    event.store = StoreId(ours.0 ^ 1);
    fixture.put(&QueueId::Results, encode(&event)).await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Queued);
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 1, "{letters:#?}");
    let reason = &letters[0].reason;
    assert!(
        reason.contains("another store") && reason.contains(&ours.to_string()),
        "{reason}"
    );
    event.store = ours;
    fixture.put(&QueueId::Results, encode(&event)).await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(run).await, RunState::Succeeded);
}
