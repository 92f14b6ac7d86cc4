//! Orders: cancellations and holdings queries (G11).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cueline_model::{Block, OutcomeKind, StoreId, Timestamp};
use cueline_protocol::Trigger;
use cueline_runtime::{Clock, ManualClock, SystemClock};
use cueline_worker::StopReason;

use crate::fixture::{Fixture, STORE, run, stopped, trigger};

#[tokio::test]
async fn cancel_stops_running_attempts_and_ends_waiting_ones() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    fixture.cancel(2).await;
    let waiting = fixture.outcome(2).await;
    assert_eq!(waiting.kind, OutcomeKind::Cancelled);
    assert_eq!(waiting.started_at, None);
    fixture.cancel(1).await;
    let running = fixture.outcome(1).await;
    assert_eq!(running.kind, OutcomeKind::Cancelled);
    assert_eq!(running.message, Some(stopped(StopReason::Cancelled)));
    fixture.wait_started(&[1, 3]).await;
    worker.kill().await;
}

#[tokio::test]
async fn a_cancel_that_overtakes_its_trigger_takes_effect() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    fixture.outcome(1).await;
    fixture.cancel(2).await;
    // Orders are carried out in order: once the query is answered, the cancellation is known.
    fixture.holdings(STORE, &[(1, 1)]).await;
    fixture.publish(&[trigger(2, "gate", Block::Serial)]).await;
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Cancelled);
    worker.drain().await;
    assert_eq!(fixture.started(), [0_i64; 0]);
}

#[tokio::test]
async fn holdings_are_the_attempts_in_the_journal_ended_or_not() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let triggers = [
        trigger(1, "noop", Block::Parallel(4)),
        trigger(2, "gate", Block::Parallel(4)),
    ];
    fixture.publish(&triggers).await;
    fixture.outcome(1).await;
    fixture.wait_started(&[2]).await;
    let asked = [(1, 1), (2, 1), (2, 2), (3, 1)];
    let held = fixture.holdings(STORE, &asked).await;
    let mut held: Vec<i64> = held.into_iter().map(|id| id.run.0).collect();
    held.sort_unstable();
    assert_eq!(held, [1, 2]);
    worker.kill().await;
    assert_eq!(
        fixture.outcomes(1).len(),
        1,
        "a recent report is not sent again"
    );
}

/// Schedulers find lost triggers by it while others are in the queue.
#[tokio::test]
async fn an_answer_says_how_far_the_queue_was_read() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let valid_until = |run, ms| Trigger {
        deadline: Timestamp::from_millis(ms),
        ..trigger(run, "gate", Block::Serial)
    };
    let newest = i64::MAX / 2;
    // It has read a trigger when the attempt is in the journal, whether it runs or waits.
    for (run, ms) in [(1, newest - 1), (2, newest)] {
        fixture.publish(&[valid_until(run, ms)]).await;
        fixture.wait_settled().await;
        let at = Some(Timestamp::from_millis(ms));
        assert_eq!(fixture.fetched_until(STORE).await, at);
        assert_eq!(fixture.holdings(STORE, &[(run, 1)]).await.len(), 1);
    }
    assert_eq!(fixture.fetched_until(StoreId(2)).await, None);
    worker.kill().await;
    let worker = fixture.start();
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Lost);
    assert_eq!(fixture.fetched_until(STORE).await, None);
    worker.kill().await;
}

#[tokio::test]
async fn an_outcome_that_schedulers_still_ask_for_is_reported_again() {
    let fixture = Fixture::new().await;
    let wall = ManualClock::at(SystemClock.now_ms());
    let start = || run(fixture.builder().clock(Arc::new(wall.clone())));
    let worker = start();
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    let first = fixture.outcome(1).await;
    // After the drain the journal knows that the broker had the report. The broker then loses it.
    worker.drain().await;
    let worker = start();
    fixture.publish(&[trigger(2, "noop", Block::Serial)]).await;
    fixture.outcome(2).await;
    for (later_ms, reports) in [
        (29_999, 1),
        (1, 2),
        (0, 2),
        (29_999, 2),
        (1, 3),
        (59_999, 3),
    ] {
        wall.advance(later_ms);
        assert_eq!(fixture.holdings(STORE, &[(1, 1), (1, 2)]).await.len(), 1);
        fixture.wait_outcomes(1, reports).await;
    }
    worker.drain().await;
    assert_eq!(fixture.outcomes(1), [first.clone(), first.clone(), first]);
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 2);
}
