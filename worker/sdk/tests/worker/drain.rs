//! Graceful stops (G12).

use std::time::Duration;

use cueline_model::{Block, OutcomeKind};
use cueline_worker::{Builder, Error};
use tokio::time::timeout;

use crate::fixture::{Fixture, RunningWorker, run, trigger};

#[tokio::test]
async fn a_drain_finishes_running_attempts_and_returns_waiting_ones() {
    let fixture = Fixture::new().await;
    let mut heartbeats = fixture.listen_to_heartbeats().await;
    let worker = fixture.start();
    let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    worker.stop.ask_soft();
    assert_eq!(fixture.kinds([2, 3]).await, [OutcomeKind::Returned; 2]);
    assert!(!worker.task.is_finished(), "it waits for run 1");
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    let mut seen = Vec::new();
    while !seen.contains(&(true, true)) {
        let heartbeat = heartbeats.next().await;
        seen.push((heartbeat.draining, heartbeat.gone));
    }
    assert_eq!(seen.first(), Some(&(true, false)), "one at the start");
    assert!(
        seen.contains(&(false, false)),
        "one when it accepts triggers: {seen:?}"
    );
    assert!(
        seen.contains(&(true, false)),
        "one when it drains: {seen:?}"
    );

    // All outcomes are marked as reported: the next start reports none of them again.
    let worker = fixture.start();
    worker.drain().await;
    assert_eq!(fixture.outcomes(1).len() + fixture.outcomes(2).len(), 2);
}

/// Schedulers would route to the worker until the next regular heartbeat, half an hour later.
#[tokio::test]
async fn a_drain_that_begins_while_a_heartbeat_is_stored_is_announced_right_after_it() {
    let fixture = Fixture::new().await;
    let mut heartbeats = fixture.listen_to_heartbeats().await;
    fixture.link.hold_accepting_heartbeats(true);
    let builder = fixture
        .builder()
        .failover_after(Duration::from_hours(3))
        .heartbeat_every(Duration::from_mins(30))
        .drain_timeout(Duration::from_hours(1));
    let worker = run(builder);
    let triggers: Vec<_> = (1..=2).map(|n| trigger(n, "gate", Block::Serial)).collect();
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    heartbeats.wait_for_draining(false).await;
    worker.stop.ask_soft();
    assert_eq!(fixture.kinds([2]).await, [OutcomeKind::Returned]);
    fixture.link.hold_accepting_heartbeats(false);
    heartbeats.wait_for_draining(true).await;
    assert!(!worker.task.is_finished(), "it waits for run 1");
    fixture.gate.add_permits(1);
    worker.drain().await;
}

#[tokio::test]
async fn an_attempt_that_outlasts_the_drain_timeout_is_stopped_and_ends_lost() {
    let fixture = Fixture::new().await;
    let worker = run(fixture.builder().drain_timeout(Duration::from_millis(50)));
    fixture.publish(&[trigger(1, "gate", Block::Serial)]).await;
    fixture.wait_started(&[1]).await;
    worker.drain().await;
    let outcome = fixture.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::Lost);
    let text = outcome.message.expect("a message");
    assert_eq!(
        text,
        "the worker had to stop before it ended: stopped: Drained"
    );
}

/// A worker that is asked to stop after its only attempt has ended, while it cannot reach the broker.
async fn stopped_without_the_broker(fixture: &Fixture, builder: Builder) -> RunningWorker {
    let worker = run(builder);
    fixture.publish(&[trigger(1, "gate", Block::Serial)]).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    fixture.link.cut(true);
    fixture.gate.add_permits(1);
    worker.stop.ask_soft();
    worker
}

/// A clean exit would say that all results are with the schedulers.
#[tokio::test]
async fn a_stop_with_unreported_outcomes_fails_and_the_next_start_reports_them() {
    let fixture = Fixture::new().await;
    let builder = fixture.builder().drain_timeout(Duration::from_secs(1));
    let worker = stopped_without_the_broker(&fixture, builder).await;
    let error = worker.task.await.expect("no panic").expect_err("one left");
    assert!(
        matches!(error, Error::Unreported { outcomes: 1 }),
        "{error}"
    );
    assert!(fixture.outcomes(1).is_empty());
    fixture.link.cut(false);
    let worker = fixture.start();
    fixture.outcome(1).await;
    worker.drain().await;
}

#[tokio::test]
async fn a_stopping_worker_tries_to_report_for_the_rest_of_its_drain_timeout() {
    let fixture = Fixture::new().await;
    let builder = fixture.builder().drain_timeout(Duration::from_hours(1));
    let mut worker = stopped_without_the_broker(&fixture, builder).await;
    // Longer than the least time. There is no condition to wait for when nothing happens.
    let still_trying = timeout(Duration::from_secs(12), &mut worker.task).await;
    still_trying.expect_err("it goes on");
    fixture.link.cut(false);
    worker.drain().await;
    assert_eq!(fixture.outcomes(1).len(), 1);
}

#[tokio::test]
async fn a_hard_stop_returns_at_once_and_keeps_the_journal() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[trigger(1, "gate", Block::Serial)]).await;
    fixture.wait_started(&[1]).await;
    worker.stop.ask_hard();
    worker.task.await.expect("no panic").expect("no error");
    assert_eq!(fixture.outcomes(1).len(), 0);
    let worker = fixture.start();
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Lost);
    worker.drain().await;
}
