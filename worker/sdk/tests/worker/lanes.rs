//! Block policies, end to end (G6, G7, G8).

use cueline_model::{Block, JobId, OutcomeKind};
use cueline_worker::StopReason;

use crate::world::{World, run, stopped, trigger, with_job};

#[tokio::test]
async fn a_serial_lane_never_overlaps() {
    let world = World::new().await;
    let live = world.start();
    let triggers: Vec<_> = (1..=5).map(|n| trigger(n, "gate", Block::Serial)).collect();
    world.publish(&triggers).await;
    for n in 1..=5 {
        let so_far: Vec<i64> = (1..=n).collect();
        world.wait_entered(&so_far).await;
        world.gate.add_permits(1);
        world.outcome(n).await;
    }
    live.drain().await;
    let mut last = None;
    for n in 1..=5 {
        let outcome = world.outcomes(n).pop().expect("an outcome");
        assert!(last <= outcome.started_at);
        last = Some(outcome.ended_at);
    }
}

#[tokio::test]
async fn a_busy_discard_lane_discards() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[trigger(1, "gate", Block::Discard)]).await;
    world.wait_entered(&[1]).await;
    world.publish(&[trigger(2, "gate", Block::Discard)]).await;
    let outcome = world.outcome(2).await;
    assert_eq!(outcome.kind, OutcomeKind::Discarded);
    assert_eq!(outcome.started_at, None);
    world.gate.add_permits(1);
    assert_eq!(world.outcome(1).await.kind, OutcomeKind::Succeeded);
    live.drain().await;
    assert_eq!(world.entered(), [1]);
}

#[tokio::test]
async fn a_full_backlog_discards_and_says_so() {
    let world = World::new().await;
    let live = world.start();
    let small = |n| with_job(trigger(n, "gate", Block::Serial), |job| job.backlog = 2);
    world.publish(&[small(1)]).await;
    world.wait_entered(&[1]).await;
    world.publish(&[small(2), small(3), small(4)]).await;
    let outcome = world.outcome(4).await;
    assert_eq!(outcome.kind, OutcomeKind::Discarded);
    let text = outcome.message.expect("a message");
    assert_eq!(text, "the backlog of 2 is full");
    world.gate.add_permits(3);
    assert_eq!(world.kinds([1, 2, 3]).await, [OutcomeKind::Succeeded; 3]);
    live.drain().await;
}

#[tokio::test]
async fn in_a_cover_lane_the_newest_wins_after_the_old_one_has_ended() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[trigger(1, "gate", Block::Cover)]).await;
    world.wait_entered(&[1]).await;
    let rest: Vec<_> = (2..=4).map(|n| trigger(n, "gate", Block::Cover)).collect();
    world.publish(&rest).await;
    world.wait_entered(&[1, 4]).await;
    world.gate.add_permits(1);
    assert_eq!(world.kinds([1, 2, 3]).await, [OutcomeKind::Covered; 3]);
    let first = world.outcome(1).await;
    assert_eq!(first.message, Some(stopped(StopReason::Covered)));
    let last = world.outcome(4).await;
    assert_eq!(last.kind, OutcomeKind::Succeeded);
    assert!(first.ended_at <= last.started_at.expect("it ran"));
    live.drain().await;
}

#[tokio::test]
async fn the_backlog_of_one_job_does_not_hold_back_another() {
    let world = World::new().await;
    let live = run(world.builder().concurrency(2));
    let mut triggers: Vec<_> = (1..=50)
        .map(|n| trigger(n, "gate", Block::Serial))
        .collect();
    triggers.push(with_job(trigger(99, "noop", Block::Serial), |job| {
        job.id = JobId(2);
    }));
    world.publish(&triggers).await;
    assert_eq!(world.outcome(99).await.kind, OutcomeKind::Succeeded);
    world.wait_entered(&[1]).await;
    live.kill().await;
}
