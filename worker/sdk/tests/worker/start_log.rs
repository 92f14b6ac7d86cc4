//! Handlers run once their start is recorded, and triggers of an earlier session are returned (G5, G10).

use std::sync::Arc;
use std::time::Duration;

use cueline_model::{AttemptId, Block, OutcomeKind, Session};
use cueline_protocol::{StartRecord, Trigger, decode};
use cueline_runtime::ManualBootClock;
use cueline_test_support::{SOON, eventually};

use crate::fixture::{Fixture, Heartbeats, run, start_log, trigger};

/// The runs in the start log, in order.
async fn recorded(fixture: &Fixture) -> Vec<i64> {
    let records = fixture.broker.read_log(&start_log()).await.expect("reads");
    let starts = records.iter().map(|record| match decode(record) {
        Ok(StartRecord::Starts { attempts, .. }) => attempts,
        other => panic!("{other:?}"),
    });
    starts.flatten().map(|id: AttemptId| id.run.0).collect()
}

async fn wait_recorded(fixture: &Fixture, run: i64) {
    let look = async || {
        let recorded = recorded(fixture).await;
        let is_there = recorded.contains(&run);
        is_there.then_some(()).ok_or(format!("{recorded:?}"))
    };
    eventually("the record of a start", SOON, look)
        .await
        .expect("in time");
}

#[tokio::test]
async fn a_handler_runs_once_its_start_is_recorded() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.link.lose_confirmations_of_starts(true);
    fixture.publish(&[trigger(1, "gate", Block::Serial)]).await;
    wait_recorded(&fixture, 1).await;
    fixture.wait_settled().await;
    assert!(fixture.started().is_empty());
    fixture.link.lose_confirmations_of_starts(false);
    fixture.wait_started(&[1]).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn an_attempt_without_a_recorded_start_waits_again_after_a_crash() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.link.lose_confirmations_of_starts(true);
    fixture.publish(&[trigger(1, "gate", Block::Serial)]).await;
    wait_recorded(&fixture, 1).await;
    fixture.wait_settled().await;
    worker.kill().await;
    fixture.link.lose_confirmations_of_starts(false);
    let worker = fixture.start();
    fixture.wait_started(&[1]).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn an_attempt_without_a_recorded_start_ends_unstarted() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.link.lose_confirmations_of_starts(true);
    let triggers = [
        trigger(1, "gate", Block::Serial),
        trigger(2, "gate", Block::Serial),
    ];
    fixture.publish(&triggers).await;
    wait_recorded(&fixture, 1).await;
    fixture.cancel(1).await;
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Cancelled);
    wait_recorded(&fixture, 1).await;
    worker.drain().await;
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Returned);
    assert!(fixture.started().is_empty());
}

/// Time passes, and the worker keeps its lease.
async fn pass(clock: &ManualBootClock, seconds: u64, heartbeats: &mut Heartbeats) {
    clock.advance(Duration::from_secs(seconds));
    heartbeats.received();
    for _ in 0..3 {
        heartbeats.next().await;
    }
}

/// Each record may be in the log, but its confirmation is lost. The schedulers fail over after 30 s.
#[tokio::test]
async fn attempts_whose_start_cannot_be_recorded_are_returned() {
    let fixture = Fixture::new().await;
    let clock = ManualBootClock::default();
    let mut heartbeats = fixture.listen_to_heartbeats().await;
    let builder = fixture.builder().broker(fixture.link.broker());
    let builder = builder.boot_clock(Arc::new(clock.clone()));
    let worker = run(builder.heartbeat_every(Duration::from_millis(50)));
    heartbeats.wait_for_draining(false).await;
    fixture.link.lose_confirmations_of_starts(true);
    let gate = |run| trigger(run, "gate", Block::Serial);
    fixture.publish(&[gate(1), gate(2)]).await;
    wait_recorded(&fixture, 1).await;
    fixture.wait_settled().await;
    for _ in 0..2 {
        pass(&clock, 10, &mut heartbeats).await;
    }
    heartbeats.wait_for_draining(true).await;
    assert!(fixture.reports().is_empty(), "not yet");
    pass(&clock, 10, &mut heartbeats).await;
    assert_eq!(fixture.kinds([1, 2]).await, [OutcomeKind::Returned; 2]);
    fixture.publish(&[gate(3)]).await;
    let returned = fixture.outcome(3).await;
    assert_eq!(returned.kind, OutcomeKind::Returned);
    let text = returned.message.expect("a message");
    assert!(text.contains("could not record starts"), "{text}");

    // The record of attempt 1 is confirmed now, and does not start it.
    heartbeats.received();
    fixture.link.lose_confirmations_of_starts(false);
    heartbeats.wait_for_draining(false).await;
    fixture.publish(&[gate(4), gate(1)]).await;
    fixture.wait_started(&[4]).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(4).await.kind, OutcomeKind::Succeeded);
    let outcomes = fixture.wait_outcomes(1, 2).await;
    assert_eq!(outcomes[1].kind, OutcomeKind::Returned);
    worker.drain().await;
    assert_eq!(fixture.started(), [4]);
}

#[tokio::test]
async fn triggers_of_an_earlier_session_are_returned() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let mut heartbeats = fixture.listen_to_heartbeats().await;
    let session = heartbeats.next().await.session;
    let of = |run, session| Trigger {
        session,
        ..trigger(run, "noop", Block::Serial)
    };
    let triggers = [
        of(1, Some(Session(session.0 - 1))),
        of(2, None),
        of(3, Some(session)),
    ];
    fixture.publish(&triggers).await;
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Returned);
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Returned);
    assert_eq!(fixture.outcome(3).await.kind, OutcomeKind::Succeeded);
    // A known attempt is answered with its outcome, whatever the session of the copy.
    fixture.publish(&[of(3, None)]).await;
    let outcomes = fixture.wait_outcomes(3, 2).await;
    assert_eq!(outcomes[1].kind, OutcomeKind::Succeeded);
    worker.drain().await;
}
