//! What the tests of this crate stand on: servers, drivers with short waits, and the words that cases are written in.

use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{
    Delivery, Driver, Outgoing, QueueId, QueueStats, Receipt, Refusal, Settlement,
};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use tokio::time::{Instant, sleep};

/// What should happen has to happen within this time; a slow machine needs some of it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// For a fetch of what is there.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// Short waits: outages are the point here.
pub(crate) fn options() -> NatsOptions {
    NatsOptions {
        request_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        ping_interval: Duration::from_secs(1),
        max_reconnect_delay: Duration::from_millis(100),
        ..NatsOptions::default()
    }
}

pub(crate) async fn open(address: &str) -> NatsDriver {
    NatsDriver::connect(address, options()).await.unwrap()
}

/// A driver with these queues declared.
pub(crate) async fn with(address: &str, queues: &[QueueId]) -> NatsDriver {
    let driver = open(address).await;
    for queue in queues {
        driver.declare(queue).await.unwrap();
    }
    driver
}

pub(crate) fn executor(name: &str) -> QueueId {
    QueueId::Executor {
        group: "billing".into(),
        executor: name.into(),
    }
}

pub(crate) fn message(queue: &QueueId, number: usize) -> Outgoing {
    Outgoing {
        queue: queue.clone(),
        topic: "invoices".into(),
        id: number.to_string(),
        payload: Bytes::from(number.to_string()),
    }
}

pub(crate) fn messages(queue: &QueueId, numbers: std::ops::Range<usize>) -> Vec<Outgoing> {
    numbers.map(|n| message(queue, n)).collect()
}

pub(crate) async fn publish(driver: &NatsDriver, batch: &[Outgoing]) {
    let answers = driver.publish(batch).await.unwrap();
    assert_eq!(answers, vec![Ok(()); batch.len()]);
}

pub(crate) async fn publish_one(driver: &NatsDriver, message: &Outgoing) -> Result<(), Refusal> {
    let answers = driver.publish(std::slice::from_ref(message)).await.unwrap();
    answers.into_iter().next().unwrap()
}

pub(crate) fn numbers(deliveries: &[Delivery]) -> Vec<usize> {
    deliveries
        .iter()
        .map(|d| std::str::from_utf8(&d.payload).unwrap().parse().unwrap())
        .collect()
}

/// Fetches until `count` messages have come, whatever fails meanwhile.
pub(crate) async fn take(driver: &NatsDriver, queue: &QueueId, count: usize) -> Vec<Delivery> {
    let give_up = Instant::now() + DEADLINE;
    let mut taken = Vec::new();
    while taken.len() < count {
        assert!(Instant::now() < give_up, "{} of {count} came", taken.len());
        if let Ok(more) = driver.fetch(queue, count - taken.len(), SOON).await {
            taken.extend(more);
        }
    }
    taken
}

pub(crate) async fn settle(
    driver: &NatsDriver,
    queue: &QueueId,
    deliveries: &[Delivery],
    how: Settlement,
) {
    let settlements: Vec<(Receipt, Settlement)> = deliveries
        .iter()
        .map(|d| (d.receipt, how.clone()))
        .collect();
    driver.settle(queue, &settlements).await.unwrap();
}

pub(crate) async fn ack(driver: &NatsDriver, queue: &QueueId, deliveries: &[Delivery]) {
    settle(driver, queue, deliveries, Settlement::Ack).await;
}

/// Ready and unsettled together, in all queues.
pub(crate) async fn left(driver: &NatsDriver) -> u64 {
    let stats: Vec<QueueStats> = driver.stats(&[]).await.unwrap();
    stats.iter().map(|s| s.ready + s.unsettled).sum()
}

/// Waits until `what` gives something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    expected: &str,
    mut what: impl FnMut() -> F,
) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = what().await {
            return found;
        }
        assert!(
            Instant::now() < give_up,
            "not within {DEADLINE:?}: {expected}"
        );
        sleep(Duration::from_millis(20)).await;
    }
}
