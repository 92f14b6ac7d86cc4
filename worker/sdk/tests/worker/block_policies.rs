//! Block policies, end to end (G6, G7, G8).

use cueline_model::{Block, JobId, OutcomeKind};
use cueline_worker::StopReason;

use crate::fixture::{Fixture, run, stopped, trigger, with_job};

#[tokio::test]
async fn a_serial_lane_never_overlaps() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let triggers: Vec<_> = (1..=5).map(|n| trigger(n, "gate", Block::Serial)).collect();
    fixture.publish(&triggers).await;
    for n in 1..=5 {
        let so_far: Vec<i64> = (1..=n).collect();
        fixture.wait_started(&so_far).await;
        fixture.gate.add_permits(1);
        fixture.outcome(n).await;
    }
    worker.drain().await;
    let mut last = None;
    for n in 1..=5 {
        let outcome = fixture.outcomes(n).pop().expect("an outcome");
        assert!(last <= outcome.started_at);
        last = Some(outcome.ended_at);
    }
}

#[tokio::test]
async fn a_busy_discard_lane_discards() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[trigger(1, "gate", Block::Discard)]).await;
    fixture.wait_started(&[1]).await;
    fixture.publish(&[trigger(2, "gate", Block::Discard)]).await;
    let outcome = fixture.outcome(2).await;
    assert_eq!(outcome.kind, OutcomeKind::Discarded);
    assert_eq!(outcome.started_at, None);
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.started(), [1]);
}

#[tokio::test]
async fn a_full_backlog_discards_and_says_so() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let small = |n| with_job(trigger(n, "gate", Block::Serial), |job| job.backlog = 2);
    fixture.publish(&[small(1)]).await;
    fixture.wait_started(&[1]).await;
    fixture.publish(&[small(2), small(3), small(4)]).await;
    let outcome = fixture.outcome(4).await;
    assert_eq!(outcome.kind, OutcomeKind::Discarded);
    let text = outcome.message.expect("a message");
    assert_eq!(text, "the backlog of 2 is full");
    fixture.gate.add_permits(3);
    assert_eq!(fixture.kinds([1, 2, 3]).await, [OutcomeKind::Succeeded; 3]);
    worker.drain().await;
}

#[tokio::test]
async fn in_a_cover_lane_the_newest_wins_after_the_old_one_has_ended() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[trigger(1, "gate", Block::Cover)]).await;
    fixture.wait_started(&[1]).await;
    let rest: Vec<_> = (2..=4).map(|n| trigger(n, "gate", Block::Cover)).collect();
    fixture.publish(&rest).await;
    fixture.wait_started(&[1, 4]).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.kinds([1, 2, 3]).await, [OutcomeKind::Covered; 3]);
    let first = fixture.outcome(1).await;
    assert_eq!(first.message, Some(stopped(StopReason::Covered)));
    let last = fixture.outcome(4).await;
    assert_eq!(last.kind, OutcomeKind::Succeeded);
    assert!(first.ended_at <= last.started_at.expect("it ran"));
    worker.drain().await;
}

#[tokio::test]
async fn the_backlog_of_one_job_does_not_hold_back_another() {
    let fixture = Fixture::new().await;
    let worker = run(fixture.builder().concurrency(2));
    let mut triggers: Vec<_> = (1..=50)
        .map(|n| trigger(n, "gate", Block::Serial))
        .collect();
    triggers.push(with_job(trigger(99, "noop", Block::Serial), |job| {
        job.id = JobId(2);
    }));
    fixture.publish(&triggers).await;
    assert_eq!(fixture.outcome(99).await.kind, OutcomeKind::Succeeded);
    fixture.wait_started(&[1]).await;
    worker.kill().await;
}
