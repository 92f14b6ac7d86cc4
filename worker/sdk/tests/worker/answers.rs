//! Triggers that come again (G5).

use std::sync::atomic::Ordering;

use cueline_model::{Block, DurationMs, OutcomeKind};

use crate::world::{World, trigger, with_job};

#[tokio::test]
async fn a_trigger_that_comes_again_while_it_runs_is_adopted() {
    let world = World::new().await;
    let live = world.start();
    let first = trigger(1, "gate", Block::Parallel(4));
    world.publish(std::slice::from_ref(&first)).await;
    world.wait_entered(&[1]).await;
    world.publish(&[first.clone(), first]).await;
    world.wait_settled().await;
    world.gate.add_permits(5);
    assert_eq!(world.outcome(1).await.kind, OutcomeKind::Succeeded);
    live.drain().await;
    assert_eq!(world.entered(), [1], "it ran once");
    assert_eq!(world.outcomes(1).len(), 1);
}

#[tokio::test]
async fn a_trigger_that_comes_again_in_one_batch_runs_once() {
    let world = World::new().await;
    let first = trigger(1, "noop", Block::Parallel(4));
    world.publish(&[first.clone(), first.clone(), first]).await;
    let live = world.start();
    world.outcome(1).await;
    live.drain().await;
    assert_eq!(world.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_trigger_that_has_ended_is_answered_again_not_run_again() {
    let world = World::new().await;
    let live = world.start();
    let first = trigger(1, "noop", Block::Serial);
    world.publish(std::slice::from_ref(&first)).await;
    let outcome = world.outcome(1).await;
    assert_eq!(outcome.output.as_deref(), Some("fine"));
    live.drain().await;
    // Also across a restart: it is the journal that knows.
    let live = world.start();
    world.publish(&[first]).await;
    let both = world
        .wait("the second answer", || {
            Some(world.outcomes(1)).filter(|o| o.len() == 2)
        })
        .await;
    assert_eq!(both[0], both[1]);
    live.drain().await;
    assert_eq!(world.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_trigger_of_an_older_attempt_is_dropped() {
    let world = World::new().await;
    let live = world.start();
    let older = trigger(1, "noop", Block::Serial);
    let mut newer = older.clone();
    newer.attempt = 2;
    world.publish(&[newer]).await;
    world.outcome(1).await;
    world.publish(&[older]).await;
    world.wait_settled().await;
    live.drain().await;
    assert_eq!(world.calls.load(Ordering::SeqCst), 1);
    assert_eq!(world.outcomes(1).len(), 1);
}

#[tokio::test]
async fn a_newer_attempt_stops_the_older_one_and_runs_after_it() {
    let world = World::new().await;
    let live = world.start();
    let older = trigger(1, "gate", Block::Parallel(4));
    let mut newer = older.clone();
    newer.attempt = 2;
    world.publish(&[older]).await;
    world.wait_entered(&[1]).await;
    world.publish(&[newer]).await;
    world.wait_entered(&[1, 1]).await;
    world.gate.add_permits(1);
    let both = world
        .wait("both outcomes", || {
            Some(world.outcomes(1)).filter(|o| o.len() == 2)
        })
        .await;
    assert_eq!(both[0].kind, OutcomeKind::Cancelled);
    assert_eq!(both[1].kind, OutcomeKind::Succeeded);
    assert!(both[0].ended_at <= both[1].started_at.expect("it ran"));
    live.drain().await;
}

#[tokio::test]
async fn a_newer_attempt_that_has_ended_is_answered_while_the_older_one_still_stops() {
    let world = World::new().await;
    let live = world.start();
    let older = with_job(trigger(1, "stubborn", Block::Serial), |job| {
        job.kill_grace = DurationMs::millis(0);
    });
    let mut newer = older.clone();
    newer.attempt = 2;
    world.publish(&[older]).await;
    world.wait_settled().await;
    world.publish(std::slice::from_ref(&newer)).await;
    world.wait_settled().await;
    world.cancel(1).await;
    let cancelled = world.outcome(1).await;
    assert_eq!(cancelled.started_at, None);
    world.publish(&[newer]).await;
    let answers = world
        .wait("the second answer", || {
            Some(world.outcomes(1)).filter(|o| o.len() >= 2)
        })
        .await;
    assert_eq!(answers[1], cancelled);
    live.kill().await;
}
