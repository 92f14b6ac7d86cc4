//! Graceful stops (G12).

use std::time::Duration;

use cueline_model::{Block, OutcomeKind};

use crate::fixture::{Fixture, run, trigger};

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
