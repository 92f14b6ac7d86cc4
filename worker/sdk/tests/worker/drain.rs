//! Leaving in order (G12).

use std::time::Duration;

use cueline_broker::Channel;
use cueline_model::{Block, OutcomeKind};
use cueline_protocol::{HeartbeatMessage, decode};
use tokio::time::timeout;

use crate::world::{World, run, trigger};

#[tokio::test]
async fn a_drain_finishes_what_runs_and_gives_back_the_rest() {
    let world = World::new().await;
    let mut beats = world
        .broker
        .listen(&Channel::Heartbeats)
        .await
        .expect("listen");
    let live = world.start();
    let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
    world.publish(&triggers).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    live.stop.ask_soft();
    assert_eq!(world.kinds([2, 3]).await, [OutcomeKind::Returned; 2]);
    assert!(!live.task.is_finished(), "it waits for what runs");
    world.gate.add_permits(1);
    assert_eq!(world.outcome(1).await.kind, OutcomeKind::Succeeded);
    live.drain().await;
    let mut seen = Vec::new();
    while !seen.contains(&(true, true)) {
        let beat = timeout(Duration::from_secs(10), beats.recv()).await;
        let beat = beat.expect("a last beat").expect("a channel");
        let beat: HeartbeatMessage = decode(&beat.payload).expect("readable");
        seen.push((beat.heartbeat.draining, beat.heartbeat.gone));
    }
    assert_eq!(seen.first(), Some(&(true, false)), "one when it comes");
    assert!(
        seen.contains(&(false, false)),
        "one when it takes work: {seen:?}"
    );
    assert!(
        seen.contains(&(true, false)),
        "one when it drains: {seen:?}"
    );

    // All of it is settled and marked: nothing is reported twice by the next start.
    let live = world.start();
    live.drain().await;
    assert_eq!(world.outcomes(1).len() + world.outcomes(2).len(), 2);
}

#[tokio::test]
async fn what_outlasts_the_drain_timeout_is_stopped_and_lost() {
    let world = World::new().await;
    let live = run(world.builder().drain_timeout(Duration::from_millis(50)));
    world.publish(&[trigger(1, "gate", Block::Serial)]).await;
    world.wait_entered(&[1]).await;
    live.drain().await;
    let outcome = world.outcome(1).await;
    assert_eq!(outcome.kind, OutcomeKind::Lost);
    let text = outcome.message.expect("a message");
    assert_eq!(
        text,
        "the worker had to stop before it ended: stopped: Drained"
    );
}

#[tokio::test]
async fn a_hard_stop_returns_at_once_and_keeps_the_journal() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[trigger(1, "gate", Block::Serial)]).await;
    world.wait_entered(&[1]).await;
    live.stop.ask_hard();
    live.task.await.expect("no panic").expect("no error");
    assert_eq!(world.outcomes(1).len(), 0);
    let live = world.start();
    assert_eq!(world.outcome(1).await.kind, OutcomeKind::Lost);
    live.drain().await;
}
