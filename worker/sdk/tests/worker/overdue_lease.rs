//! A worker whose lease is overdue: it was not renewed for half of `fence_after`, and has not ended (G10). A broker that
//! restarts delivers triggers and takes records of starts before it can store a heartbeat.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};
use cueline_protocol::Trigger;
use cueline_worker::{Readiness, StopReason};

use crate::fixture::{RunningWorker, STORE, run_with_readiness, trigger};
use crate::lease_fixture::{FENCE_REASON, LeaseFixture};

/// The lease ends after 20 s, and is overdue after 10 s.
const OVERDUE: Duration = Duration::from_secs(11);
/// Then the lease has ended, and waiting attempts stay for 4 s.
const TO_FENCE: Duration = Duration::from_secs(10);

fn hold(run: i64, block: Block) -> Trigger {
    trigger(run, "hold", block)
}

/// A worker that has had its lease.
async fn start(lease: &LeaseFixture) -> RunningWorker {
    start_with_readiness(lease).await.0
}

async fn start_with_readiness(lease: &LeaseFixture) -> (RunningWorker, Readiness) {
    let started = run_with_readiness(lease.builder());
    lease
        .fixture
        .publish(&[trigger(100, "noop", Block::Parallel(9))])
        .await;
    lease.fixture.outcome(100).await;
    started
}

/// The broker stores no heartbeat any more, and everything else works.
fn make_overdue(lease: &LeaseFixture) {
    lease.link.cut_off_from_majority(true);
    lease.clock.advance(OVERDUE);
}

fn renew(lease: &LeaseFixture) {
    lease.link.cut_off_from_majority(false);
}

/// The record of a start is confirmed, and the worker had time to act on it.
async fn confirm_start(lease: &LeaseFixture) {
    let confirmed = || lease.link.confirmed_starts.load(Ordering::SeqCst);
    let before = confirmed();
    lease.link.lose_confirmations_of_starts(false);
    let more = || (confirmed() > before).then_some(());
    lease.fixture.wait("a confirmation", more).await;
    lease.wait_heartbeats(3).await;
}

#[tokio::test]
async fn a_trigger_that_comes_while_the_lease_is_overdue_starts_after_the_renewal() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let (worker, readiness) = start_with_readiness(&lease).await;
    make_overdue(&lease);
    fixture.publish(&[hold(1, Block::Serial)]).await;
    lease.wait_heartbeats(3).await;
    assert!(fixture.started().is_empty(), "its lease may end soon");
    let problem = readiness.problem().unwrap_or_default();
    assert!(problem.contains("overdue"), "{problem}");
    let held = fixture.holdings(STORE, &[(1, 1)]).await;
    assert_eq!(held, [], "it is not accepted");
    renew(&lease);
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    assert_eq!(readiness.problem(), None);
    worker.drain().await;
    assert_eq!(fixture.outcomes(1).len(), 1);
}

/// A scheduler that asks must not count it as lost.
#[tokio::test]
async fn a_worker_that_holds_triggers_back_says_that_it_is_behind() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    make_overdue(&lease);
    // A fetch that began before takes it, and no other fetch follows.
    fixture.publish(&[hold(1, Block::Serial)]).await;
    lease.wait_heartbeats(3).await;
    let is_fetched = fixture.queue_ready().await == 0;
    assert!(fixture.is_behind(STORE).await || !is_fetched);
    renew(&lease);
    fixture.gate.add_permits(1);
    fixture.outcome(1).await;
    worker.drain().await;
}

#[tokio::test]
async fn without_a_renewal_the_trigger_goes_back_to_the_broker() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    make_overdue(&lease);
    fixture.publish(&[hold(1, Block::Serial)]).await;
    lease.wait_heartbeats(3).await;
    lease.clock.advance(TO_FENCE);
    let back = async || {
        let ready = fixture.queue_ready().await;
        (ready == 1).then_some(()).ok_or(ready)
    };
    cueline_test_support::eventually("the trigger in its queue", cueline_test_support::SOON, back)
        .await
        .expect("in time");
    assert_eq!(lease.outcomes().len(), 1, "that of run 100");
    renew(&lease);
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.started(), [1]);
}

#[tokio::test]
async fn a_start_whose_record_is_confirmed_while_the_lease_is_overdue_waits_for_the_renewal() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    lease.link.lose_confirmations_of_starts(true);
    fixture.publish(&[hold(1, Block::Serial)]).await;
    fixture.wait_settled().await;
    make_overdue(&lease);
    confirm_start(&lease).await;
    assert!(fixture.started().is_empty());
    renew(&lease);
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.started(), [1]);
}

#[tokio::test]
async fn without_a_renewal_a_recorded_start_is_returned() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    lease.link.lose_confirmations_of_starts(true);
    fixture.publish(&[hold(1, Block::Serial)]).await;
    fixture.wait_settled().await;
    make_overdue(&lease);
    confirm_start(&lease).await;
    lease.clock.advance(TO_FENCE);
    let returned = fixture.outcome(1).await;
    assert_eq!(returned.kind, OutcomeKind::Returned);
    assert_eq!(returned.message.as_deref(), Some(FENCE_REASON));
    renew(&lease);
    worker.drain().await;
    assert!(fixture.started().is_empty());
}

#[tokio::test]
async fn a_cancelled_run_with_a_recorded_start_never_starts() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    lease.link.lose_confirmations_of_starts(true);
    fixture.publish(&[hold(1, Block::Serial)]).await;
    fixture.wait_settled().await;
    make_overdue(&lease);
    confirm_start(&lease).await;
    fixture.cancel(1).await;
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Cancelled);
    renew(&lease);
    fixture.publish(&[trigger(2, "noop", Block::Serial)]).await;
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert!(fixture.started().is_empty());
    assert_eq!(fixture.outcomes(1).len(), 1);
}

#[tokio::test]
async fn an_attempt_that_waits_in_its_lane_starts_after_the_renewal() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    fixture
        .publish(&[hold(1, Block::Serial), hold(2, Block::Serial)])
        .await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    make_overdue(&lease);
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    lease.wait_heartbeats(3).await;
    assert_eq!(fixture.started(), [1], "what runs may end, and no more");
    renew(&lease);
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.started(), [1, 2]);
}

/// An idle lane that had accepted run 1 without starting it would discard run 2. If the lease ended then, neither would
/// have run.
#[tokio::test]
async fn an_idle_discard_lane_discards_nothing_while_nothing_may_start() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    make_overdue(&lease);
    fixture
        .publish(&[hold(1, Block::Discard), hold(2, Block::Discard)])
        .await;
    lease.wait_heartbeats(3).await;
    assert_eq!(fixture.outcomes(2), []);
    renew(&lease);
    // Now one of them meets the other, which starts.
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Discarded);
    fixture.wait_started(&[1]).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn a_cover_lane_stops_no_handler_for_a_trigger_that_may_not_start() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    fixture.publish(&[hold(1, Block::Cover)]).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    make_overdue(&lease);
    fixture.publish(&[hold(2, Block::Cover)]).await;
    lease.wait_heartbeats(3).await;
    assert_eq!(*lease.stopped.lock().expect("lock"), []);
    renew(&lease);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Covered);
    let stopped = (1, StopReason::Covered);
    assert_eq!(*lease.stopped.lock().expect("lock"), [stopped]);
    fixture.wait_started(&[1, 2]).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn a_cancellation_passes_the_triggers_that_are_held_back() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    fixture.publish(&[hold(2, Block::Parallel(9))]).await;
    fixture.wait_started(&[2]).await;
    fixture.wait_settled().await;
    make_overdue(&lease);
    fixture.publish(&[hold(1, Block::Parallel(9))]).await;
    lease.wait_heartbeats(3).await;
    fixture.cancel(1).await;
    fixture.cancel(2).await;
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Cancelled);
    assert_eq!(fixture.outcomes(1), []);
    renew(&lease);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Cancelled);
    worker.drain().await;
    assert_eq!(fixture.started(), [2]);
}

#[tokio::test]
async fn a_drain_waits_for_no_renewal() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = start(&lease).await;
    make_overdue(&lease);
    fixture.publish(&[hold(1, Block::Serial)]).await;
    lease.wait_heartbeats(3).await;
    worker.drain().await;
    assert!(fixture.started().is_empty());
    let returned = fixture.outcomes(1);
    let in_queue = fixture.queue_ready().await;
    assert_eq!(
        returned.len() as u64 + in_queue,
        1,
        "{returned:?}: what was fetched is returned, the rest stays"
    );
    assert!(returned.iter().all(|o| o.kind == OutcomeKind::Returned));
}
