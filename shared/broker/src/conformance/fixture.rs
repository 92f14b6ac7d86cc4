//! The fixture of a case: a place for its broker, the drivers opened there, and helpers to publish, fetch and assert.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{Harness, Limits};
use crate::address::QueueId;
use crate::driver::{Delivery, Driver, Outgoing, Receipt, Refusal, Settlement};

/// The time limit for anything that a case waits for. It is long, because test machines may be slow.
pub(super) const DEADLINE: Duration = Duration::from_mins(1);

pub(super) struct Fixture {
    pub(super) harness: Arc<dyn Harness>,
    pub(super) place: String,
}

impl Fixture {
    pub(super) fn new(harness: Arc<dyn Harness>, place: String) -> Self {
        Self { harness, place }
    }

    /// A driver with default limits and these queues declared.
    pub(super) async fn open(&self, queues: &[QueueId]) -> Arc<dyn Driver> {
        self.open_with(Limits::default(), queues).await
    }

    pub(super) async fn open_with(&self, limits: Limits, queues: &[QueueId]) -> Arc<dyn Driver> {
        let driver = self.harness.open(&self.place, limits).await;
        for queue in queues {
            driver.declare(queue).await.unwrap();
        }
        driver
    }

    /// Crashes the broker and opens it again at the same place.
    pub(super) async fn restart(&self, driver: Arc<dyn Driver>) -> Arc<dyn Driver> {
        self.restart_with(Limits::default(), driver).await
    }

    pub(super) async fn restart_with(
        &self,
        limits: Limits,
        driver: Arc<dyn Driver>,
    ) -> Arc<dyn Driver> {
        self.harness.crash(&self.place, driver).await;
        self.harness.open(&self.place, limits).await
    }
}

/// Groups and executors whose names products must escape, or could confuse with each other.
pub(super) const NAMES: [(&str, &str); 9] = [
    ("a", "b.c"),
    ("a.b", "c"),
    ("a", "_any"),
    ("a", "B.C"),
    ("a*", ">"),
    ("a b", "#"),
    ("größe", "报表"),
    ("%", "%2E"),
    ("'", "\""),
];

pub(super) fn executor(name: &str) -> QueueId {
    QueueId::Executor {
        group: "billing".into(),
        executor: name.into(),
    }
}

/// A message whose payload is `number`.
pub(super) fn message(queue: &QueueId, number: usize) -> Outgoing {
    Outgoing {
        queue: queue.clone(),
        topic: "invoices".into(),
        id: format!("{queue}:{number}"),
        payload: Bytes::from(number.to_string()),
    }
}

pub(super) fn messages(queue: &QueueId, numbers: impl IntoIterator<Item = usize>) -> Vec<Outgoing> {
    numbers.into_iter().map(|n| message(queue, n)).collect()
}

pub(super) fn number(delivery: &Delivery) -> usize {
    std::str::from_utf8(&delivery.payload)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("not a payload of this suite: {:?}", delivery.payload))
}

pub(super) fn numbers(deliveries: &[Delivery]) -> Vec<usize> {
    deliveries.iter().map(number).collect()
}

pub(super) fn sorted(deliveries: &[Delivery]) -> Vec<usize> {
    let mut numbers = numbers(deliveries);
    numbers.sort_unstable();
    numbers
}

/// Publishes in batches of the size that the driver allows. Panics unless all messages are accepted.
pub(super) async fn publish(driver: &dyn Driver, messages: &[Outgoing]) {
    for batch in messages.chunks(driver.capabilities().max_batch) {
        let answers = driver.publish(batch).await.unwrap();
        assert_eq!(answers, vec![Ok(()); batch.len()]);
    }
}

pub(super) async fn publish_one(driver: &dyn Driver, message: &Outgoing) -> Result<(), Refusal> {
    let answers = driver.publish(std::slice::from_ref(message)).await.unwrap();
    assert_eq!(answers.len(), 1);
    answers.into_iter().next().unwrap()
}

/// Fetches until `count` messages have arrived, and never asks for more.
pub(super) async fn take(driver: &dyn Driver, queue: &QueueId, count: usize) -> Vec<Delivery> {
    let give_up = Instant::now() + DEADLINE;
    let mut taken: Vec<Delivery> = Vec::with_capacity(count);
    while taken.len() < count {
        assert!(
            Instant::now() < give_up,
            "{} of {count} messages were delivered from {queue}",
            taken.len()
        );
        let wait = Duration::from_secs(1);
        let more = driver.fetch(queue, count - taken.len(), wait).await;
        taken.extend(more.unwrap());
    }
    taken
}

/// Asserts that the queue has no ready message now.
pub(super) async fn assert_nothing(driver: &dyn Driver, queue: &QueueId) {
    let unexpected = driver
        .fetch(queue, 10, Duration::from_millis(100))
        .await
        .unwrap();
    assert!(
        unexpected.is_empty(),
        "unexpected in {queue}: {unexpected:?}"
    );
}

pub(super) async fn settle(
    driver: &dyn Driver,
    queue: &QueueId,
    deliveries: &[Delivery],
    how: &Settlement,
) {
    let settlements: Vec<(Receipt, Settlement)> = deliveries
        .iter()
        .map(|delivery| (delivery.receipt, how.clone()))
        .collect();
    driver.settle(queue, &settlements).await.unwrap();
}

pub(super) async fn ack(driver: &dyn Driver, queue: &QueueId, deliveries: &[Delivery]) {
    settle(driver, queue, deliveries, &Settlement::Ack).await;
}

/// Asserts the numbers of ready and unsettled messages. Waits for them until the deadline, because some products update
/// their counts late.
pub(super) async fn assert_counts(
    driver: &dyn Driver,
    queue: &QueueId,
    ready: u64,
    unsettled: u64,
) {
    let give_up = Instant::now() + DEADLINE;
    loop {
        let stats = driver.stats(std::slice::from_ref(queue)).await.unwrap();
        let found = stats.of(queue).map(|stats| (stats.ready, stats.unsettled));
        if found == Some((ready, unsettled)) {
            return;
        }
        assert!(
            Instant::now() < give_up,
            "{queue} has {found:?} ready and unsettled, not {ready} and {unsettled}"
        );
        sleep(Duration::from_millis(20)).await;
    }
}

/// Asserts that `numbers` holds each number from 0 to `count` - 1 exactly once.
pub(super) fn assert_each_once(numbers: &[usize], count: usize) {
    let distinct: BTreeSet<usize> = numbers.iter().copied().collect();
    assert_eq!(numbers.len(), distinct.len(), "some came twice");
    assert_eq!(distinct.len(), count, "some did not come");
    assert_eq!(distinct.last().copied(), count.checked_sub(1));
}
