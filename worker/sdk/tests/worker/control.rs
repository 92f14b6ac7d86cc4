//! Orders: cancel and holdings (G11).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cueline_model::{AttemptId, Block, OutcomeKind, RunId};
use cueline_protocol::{Control, HoldingsReply, VERSION, decode, encode};
use cueline_runtime::{Clock, ManualClock, SystemClock};
use cueline_worker::StopReason;

use crate::world::{World, control_channel as channel, run, stopped, trigger};

#[tokio::test]
async fn cancel_stops_what_runs_and_ends_what_waits() {
    let world = World::new().await;
    let live = world.start();
    let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
    world.publish(&triggers).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    world.cancel(2).await;
    let waiting = world.outcome(2).await;
    assert_eq!(waiting.kind, OutcomeKind::Cancelled);
    assert_eq!(waiting.started_at, None);
    world.cancel(1).await;
    let running = world.outcome(1).await;
    assert_eq!(running.kind, OutcomeKind::Cancelled);
    assert_eq!(running.message, Some(stopped(StopReason::Cancelled)));
    world.wait_entered(&[1, 3]).await;
    live.kill().await;
}

#[tokio::test]
async fn a_cancel_that_overtakes_its_trigger_still_holds() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[trigger(1, "noop", Block::Serial)]).await;
    world.outcome(1).await;
    world.cancel(2).await;
    // The answer comes after the cancel was heard: orders are heard in order.
    holdings(&world, &[(1, 1)]).await;
    world.publish(&[trigger(2, "gate", Block::Serial)]).await;
    assert_eq!(world.outcome(2).await.kind, OutcomeKind::Cancelled);
    live.drain().await;
    assert_eq!(world.entered(), [0_i64; 0]);
}

async fn holdings(world: &World, ids: &[(i64, u32)]) -> Vec<AttemptId> {
    let runs = ids.iter().map(|&(run, attempt)| AttemptId {
        run: RunId(run),
        attempt,
    });
    let order = Control::Holdings {
        v: VERSION,
        store: cueline_model::StoreId(1),
        attempts: runs.collect(),
    };
    let wait = Duration::from_secs(10);
    let answer = world
        .broker
        .ask(&channel(), Bytes::from(encode(&order)), wait)
        .await
        .expect("ask");
    decode::<HoldingsReply>(&answer.expect("an answer"))
        .expect("readable")
        .held
}

#[tokio::test]
async fn holdings_are_what_the_journal_has_ended_or_not() {
    let world = World::new().await;
    let live = world.start();
    world
        .publish(&[
            trigger(1, "noop", Block::Parallel(4)),
            trigger(2, "gate", Block::Parallel(4)),
        ])
        .await;
    world.outcome(1).await;
    world.wait_entered(&[2]).await;
    let held = holdings(&world, &[(1, 1), (2, 1), (2, 2), (3, 1)]).await;
    let mut held: Vec<i64> = held.into_iter().map(|h| h.run.0).collect();
    held.sort_unstable();
    assert_eq!(held, [1, 2]);
    live.kill().await;
    assert_eq!(world.outcomes(1).len(), 1, "it is on its way");
}

#[tokio::test]
async fn an_outcome_that_is_asked_for_long_after_it_was_reported_is_reported_again() {
    let world = World::new().await;
    let wall = ManualClock::at(SystemClock.now_ms());
    let start = || run(world.builder().clock(Arc::new(wall.clone())));
    let live = start();
    world.publish(&[trigger(1, "noop", Block::Serial)]).await;
    let first = world.outcome(1).await;
    // The journal knows by then that the broker has it. The broker then loses it.
    live.drain().await;
    let live = start();
    world.publish(&[trigger(2, "noop", Block::Serial)]).await;
    world.outcome(2).await;
    for (later_ms, reports) in [
        (29_999, 1),
        (1, 2),
        (0, 2),
        (29_999, 2),
        (1, 3),
        (59_999, 3),
    ] {
        wall.advance(later_ms);
        assert_eq!(holdings(&world, &[(1, 1), (1, 2)]).await.len(), 1);
        world
            .wait("the next report", || {
                (world.outcomes(1).len() >= reports).then_some(())
            })
            .await;
    }
    live.drain().await;
    assert_eq!(world.outcomes(1), [first.clone(), first.clone(), first]);
    assert_eq!(world.calls.load(Ordering::SeqCst), 2);
}
