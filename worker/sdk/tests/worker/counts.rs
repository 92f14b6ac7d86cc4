//! What a worker counts for metrics.

use std::time::Duration;

use cueline_broker::Settlement;
use cueline_model::{Block, JobId, OutcomeKind};
use cueline_worker::{Readiness, TimeCounts, WorkerCounts};

use crate::fixture::{Fixture, own_queue, run_with_readiness, trigger, with_job};

/// Waits until these counts are as expected.
async fn wait_for(
    fixture: &Fixture,
    readiness: &Readiness,
    expected: &str,
    is_expected: impl Fn(&WorkerCounts) -> bool,
) {
    let found = || is_expected(&readiness.counts()).then_some(());
    fixture.wait(expected, found).await;
}

#[tokio::test]
async fn lanes_and_the_attempts_that_wait_in_them_are_counted() {
    let fixture = Fixture::new().await;
    let builder = fixture.builder().concurrency(1);
    let (worker, readiness) = run_with_readiness(builder);
    let of_other_job = with_job(trigger(4, "gate", Block::Serial), |job| job.id = JobId(2));
    let mut triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
    triggers.push(of_other_job);
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    let expected = "two busy lanes, one of which waits for a free slot";
    wait_for(&fixture, &readiness, expected, |counts| {
        (counts.running, counts.waiting) == (1, 3)
            && (counts.busy_lanes, counts.waiting_lanes) == (2, 1)
    })
    .await;
    fixture.gate.add_permits(4);
    assert_eq!(
        fixture.kinds([1, 2, 3, 4]).await,
        [OutcomeKind::Succeeded; 4]
    );
    wait_for(&fixture, &readiness, "no busy lane", |counts| {
        (counts.waiting, counts.busy_lanes, counts.waiting_lanes) == (0, 0, 0)
    })
    .await;
    worker.drain().await;
}

#[tokio::test]
async fn the_steps_of_an_attempt_are_timed() {
    let fixture = Fixture::new().await;
    let (worker, readiness) = run_with_readiness(fixture.builder());
    let mut retry = trigger(2, "noop", Block::Parallel(4));
    retry.attempt = 2;
    fixture
        .publish(&[trigger(1, "noop", Block::Parallel(4)), retry])
        .await;
    fixture.outcome(1).await;
    fixture.outcome(2).await;
    worker.drain().await;
    let times = readiness.times();
    let count = |counts: TimeCounts| {
        let bounded = counts.buckets.iter().map(|(_, n)| n).sum::<u64>();
        bounded + counts.above
    };
    assert_eq!(count(times.duration), 2, "{times:?}");
    assert_eq!(count(times.start_wait), 2, "{times:?}");
    // The due time of a retry is not known. The fire time of these triggers is long past.
    assert_eq!(times.start_lateness.above, 1, "{times:?}");
    assert_eq!(count(times.start_lateness), 1, "{times:?}");
}

#[tokio::test]
async fn triggers_that_the_broker_delivers_again_are_counted() {
    let fixture = Fixture::new().await;
    let first = trigger(1, "noop", Block::Serial);
    fixture.publish(std::slice::from_ref(&first)).await;
    // Another consumer returns it.
    let queue = own_queue();
    let wait = Duration::from_secs(5);
    let taken = fixture.broker.fetch(&queue, 1, wait).await.expect("fetch");
    let back = Settlement::Retry(Duration::ZERO);
    let settlements = [(taken[0].receipt, back)];
    let settled = fixture.broker.settle(&queue, &settlements).await;
    settled.expect("settle");
    let (worker, readiness) = run_with_readiness(fixture.builder());
    fixture.outcome(1).await;
    fixture.publish(&[trigger(2, "noop", Block::Serial)]).await;
    fixture.outcome(2).await;
    worker.drain().await;
    let counts = readiness.counts();
    assert_eq!((counts.received, counts.redelivered), (2, 1), "{counts:?}");
}
