//! A worker that cannot reach the broker (G10).

use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_model::{Block, DurationMs, Fence, JobId, OutcomeKind, RunId};
use cueline_protocol::Trigger;
use cueline_worker::{Builder, Error};
use sqlx::Connection;

use crate::fixture::{STORE, run, trigger, with_job};
use crate::lease_fixture::{FENCE_REASON, LeaseFixture};

fn serial(runs: std::ops::RangeInclusive<i64>) -> Vec<Trigger> {
    runs.map(|n| trigger(n, "hold", Block::Serial)).collect()
}

#[tokio::test]
async fn without_the_lease_running_attempts_are_stopped_waiting_ones_returned_and_none_started() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    fixture.publish(&serial(1..=4)).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    lease.link.cut(true);
    lease.clock.advance(Duration::from_secs(20));
    lease.wait_heartbeats(2).await;
    assert_eq!(*lease.stopped.lock().expect("lock"), [], "not yet");
    lease.clock.advance(Duration::from_millis(1));
    lease.wait_fenced(&[1]).await;
    fixture.publish(&serial(5..=5)).await;
    lease.wait_heartbeats(2).await;
    assert_eq!(lease.outcomes(), []);

    lease.clock.advance(Duration::from_secs(8));
    lease.link.cut(false);
    let lost = fixture.outcome(1).await;
    assert_eq!(lost.kind, OutcomeKind::Lost);
    let text = lost.message.expect("a message");
    assert_eq!(text, format!("stopped: {FENCE_REASON}: asked to stop"));
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(5).await.kind, OutcomeKind::Succeeded);
    let returned = fixture.outcome(2).await;
    assert_eq!(
        (returned.message.as_deref(), returned.started_at),
        (Some(FENCE_REASON), None)
    );
    worker.drain().await;
    let mut reported = lease.outcomes();
    reported.retain(|(_, kind)| *kind == OutcomeKind::Returned);
    let returned = [2, 3, 4].map(|run| (run, OutcomeKind::Returned));
    assert_eq!(reported, returned, "in order, once");
    assert_eq!(fixture.started(), [1, 5]);
}

#[tokio::test]
async fn waiting_attempts_go_on_if_the_lease_is_renewed_before_the_failover() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    fixture.publish(&serial(1..=3)).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    lease.link.lose_echoes(usize::MAX);
    lease.clock.advance(Duration::from_millis(23_999));
    lease.wait_fenced(&[1]).await;
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Lost);
    lease.wait_heartbeats(2).await;
    assert_eq!(fixture.started(), [1], "nothing is started");
    fixture.gate.add_permits(2);
    lease.link.lose_echoes(0);
    assert_eq!(fixture.kinds([2, 3]).await, [OutcomeKind::Succeeded; 2]);
    worker.drain().await;
    assert_eq!(fixture.started(), [1, 2, 3]);
    assert_eq!(lease.outcomes().len(), 3);
}

#[tokio::test]
async fn waiting_attempts_are_returned_before_the_failover_without_a_renewal() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    fixture.publish(&serial(1..=3)).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    lease.link.lose_echoes(usize::MAX);
    lease.clock.advance(Duration::from_secs(21));
    lease.wait_fenced(&[1]).await;
    lease.wait_heartbeats(2).await;
    fixture.cancel(2).await;
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Cancelled);
    assert_eq!(fixture.outcomes(3), [], "not yet");
    lease.clock.advance(Duration::from_secs(3));
    let returned = fixture.outcome(3).await;
    assert_eq!(returned.kind, OutcomeKind::Returned);
    assert_eq!(returned.message.as_deref(), Some(FENCE_REASON));
    worker.drain().await;
    assert_eq!(fixture.started(), [1]);
}

/// The worker's server is cut off from the majority, and serves the worker as before.
#[tokio::test]
async fn without_a_stored_heartbeat_the_worker_is_fenced_although_its_own_channel_works() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    fixture.publish(&serial(1..=1)).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    lease.link.cut_off_from_majority(true);
    // Echoes in between would renew the lease.
    for _ in 0..2 {
        lease.clock.advance(Duration::from_secs(11));
        lease.wait_heartbeats(3).await;
    }
    lease.wait_fenced(&[1]).await;
    let held = fixture.holdings(STORE, &[(2, 1)]).await;
    assert_eq!(held, [], "the worker receives orders");
    fixture.publish(&serial(2..=2)).await;
    lease.wait_heartbeats(3).await;
    assert_eq!(fixture.started(), [1]);
    lease.link.cut_off_from_majority(false);
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.started(), [1, 2]);
}

#[tokio::test]
async fn after_a_pause_no_attempt_goes_on_even_if_the_lease_is_renewed_at_once() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder().concurrency(2));
    fixture.publish(&serial(1..=3)).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    lease.clock.advance(Duration::from_mins(1));
    let kinds = fixture.kinds([1, 2, 3]).await;
    assert_eq!(kinds[0], OutcomeKind::Lost);
    assert_eq!(kinds[1..], [OutcomeKind::Returned; 2]);
    fixture.gate.add_permits(1);
    fixture.publish(&serial(4..=4)).await;
    assert_eq!(fixture.outcome(4).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.started(), [1, 4]);
}

#[tokio::test]
async fn a_trigger_that_comes_without_the_lease_stays_with_the_broker() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    fixture.publish(&serial(1..=1)).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    lease.link.lose_echoes(usize::MAX);
    lease.clock.advance(Duration::from_secs(21));
    lease.wait_fenced(&[1]).await;
    // A fetch that began before the fence takes the trigger, and no other fetch follows.
    fixture.publish(&serial(2..=2)).await;
    lease.wait_heartbeats(2).await;
    assert_eq!(fixture.outcomes(2), []);
    fixture.gate.add_permits(1);
    lease.link.lose_echoes(0);
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.outcomes(2).len(), 1);
    assert_eq!(fixture.started(), [1, 2]);
}

#[tokio::test]
async fn after_a_lost_echo_heartbeats_are_sent_more_often() {
    let lease = LeaseFixture::new().await;
    lease.link.lose_echoes(1);
    let builder = lease.builder().heartbeat_every(Duration::from_mins(1));
    let builder = builder.fence_after(Duration::from_secs(200));
    let worker = run(builder.failover_after(Duration::from_mins(5)));
    let noop = trigger(1, "noop", Block::Serial);
    lease.fixture.publish(&[noop]).await;
    lease.fixture.outcome(1).await;
    worker.drain().await;
}

#[tokio::test]
async fn lost_echoes_fence_only_after_the_fence_time() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    fixture.publish(&serial(1..=1)).await;
    fixture.wait_started(&[1]).await;
    for _ in 0..4 {
        lease.link.lose_echoes(1);
        lease.clock.advance(Duration::from_secs(15));
        lease.wait_heartbeats(3).await;
    }
    assert_eq!(*lease.stopped.lock().expect("lock"), []);
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn orders_that_a_busy_event_loop_drops_do_not_end_the_lease() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    fixture.publish(&serial(1..=1)).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    let file = fixture.state_dir().join("journal.db");
    let url = format!("sqlite://{}", file.display());
    let mut other = sqlx::SqliteConnection::connect(&url).await.expect("open");
    let lock = sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await;
    lock.expect("locked");
    // The event loop tries to journal the trigger, and does nothing else meanwhile.
    fixture.publish(&serial(2..=2)).await;
    fixture.wait_fetched().await;
    for n in 0..10_000 {
        fixture.cancel(1_000 + n).await;
        tokio::task::yield_now().await;
    }
    for _ in 0..4 {
        lease.wait_heartbeats(3).await;
        lease.clock.advance(Duration::from_secs(15));
    }
    lease.wait_heartbeats(3).await;
    assert_eq!(*lease.stopped.lock().expect("lock"), []);
    let free = sqlx::query("ROLLBACK").execute(&mut other).await;
    free.expect("free again");
    fixture.gate.add_permits(2);
    assert_eq!(fixture.kinds([1, 2]).await, [OutcomeKind::Succeeded; 2]);
    worker.drain().await;
}

#[tokio::test]
async fn an_attempt_with_fence_keep_goes_on() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    let kept = with_job(trigger(1, "hold", Block::Serial), |job| {
        job.id = JobId(2);
        job.fence = Fence::Keep;
    });
    let second = Trigger {
        run: RunId(3),
        ..kept.clone()
    };
    fixture.publish(&[kept, second]).await;
    fixture.wait_started(&[1]).await;
    fixture.publish(&serial(2..=2)).await;
    fixture.wait_started(&[1, 2]).await;
    fixture.wait_settled().await;
    lease.link.cut(true);
    lease.clock.advance(Duration::from_secs(40));
    lease.wait_fenced(&[2]).await;
    fixture.gate.add_permits(1);
    let returned = || (!lease.returned.lock().expect("lock").is_empty()).then_some(());
    fixture.wait("run 1 to return", returned).await;
    assert_eq!(*lease.returned.lock().expect("lock"), [(1, None)]);
    lease.link.cut(false);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Lost);
    assert_eq!(fixture.outcome(3).await.kind, OutcomeKind::Returned);
    worker.drain().await;
    assert_eq!(fixture.started(), [1, 2]);
}

#[tokio::test]
async fn a_fenced_handler_that_does_not_stop_is_dropped_before_the_failover() {
    let lease = LeaseFixture::new().await;
    let fixture = &lease.fixture;
    let worker = run(lease.builder());
    let patient = with_job(trigger(1, "stubborn", Block::Serial), |job| {
        job.kill_grace = DurationMs::secs(3_600);
    });
    fixture.publish(&[patient]).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    lease.clock.advance(Duration::from_secs(28));
    let lost = fixture.outcome(1).await;
    assert_eq!(lost.kind, OutcomeKind::Lost);
    let text = lost.message.expect("a message");
    assert!(text.contains("did not stop within its grace"), "{text}");
    worker.drain().await;
}

#[tokio::test]
async fn a_fenced_worker_announces_that_it_accepts_nothing() {
    let lease = LeaseFixture::new().await;
    let mut heartbeats = lease.fixture.listen_to_heartbeats().await;
    lease.link.lose_echoes(2);
    let worker = run(lease.builder());
    let mut seen = Vec::new();
    while seen.last() != Some(&false) {
        seen.push(heartbeats.next().await.draining);
    }
    assert!(seen.len() >= 4, "{seen:?}");
    assert_eq!(seen.iter().filter(|draining| !**draining).count(), 1);
    worker.drain().await;
}

#[tokio::test]
async fn a_worker_that_may_not_declare_its_queue_sends_heartbeats_until_it_is_declared() {
    let lease = LeaseFixture::new().await;
    let mut heartbeats = lease.fixture.listen_to_heartbeats().await;
    lease.link.forbid_declaring(true);
    let worker = run(lease.builder());
    let refused = || (lease.link.refused.load(Ordering::SeqCst) >= 2).then_some(());
    lease.fixture.wait("refused declarations", refused).await;
    let heartbeat = heartbeats.next().await;
    assert!(heartbeat.draining && !heartbeat.gone);
    lease.link.forbid_declaring(false);
    let noop = trigger(1, "noop", Block::Serial);
    lease.fixture.publish(&[noop]).await;
    lease.fixture.outcome(1).await;
    worker.drain().await;
}

#[tokio::test]
async fn inconsistent_lease_times_are_refused() {
    let lease = LeaseFixture::new().await;
    let refusal = |builder: Builder| match builder.build() {
        Err(Error::Setting { field, problem, .. }) => (field, problem),
        other => panic!("{other:?}"),
    };
    let (field, problem) = refusal(
        lease
            .builder()
            .heartbeat_every(Duration::from_secs(5))
            .fence_after(Duration::from_secs(10)),
    );
    assert_eq!(field, "fence_after");
    assert!(
        problem.contains("more than twice heartbeat_every"),
        "{problem}"
    );
    let (field, problem) = refusal(
        lease
            .builder()
            .fence_after(Duration::from_secs(20))
            .failover_after(Duration::from_secs(20)),
    );
    assert_eq!(field, "failover_after");
    assert!(problem.contains("six fifths of fence_after"), "{problem}");
    let off = lease.builder().fence_after(Duration::ZERO);
    assert!(off.in_process_scheduler().build().is_ok());
}
