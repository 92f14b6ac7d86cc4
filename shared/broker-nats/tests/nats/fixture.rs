//! Helpers of these tests: drivers with short timeouts, messages, and calls that must succeed.
//!
//! Each test starts its own server, which takes about 20 ms, because most tests kill, pause, fill or configure it.

use std::pin::Pin;
use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use cueline_broker::{Delivery, Driver, Outgoing, QueueId, Receipt, Refusal, Settlement};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::proxy::Proxy;
use cueline_test_support::{SOON, eventually};

/// How long a fetch waits for a first message.
pub(crate) const FETCH_WAIT: Duration = Duration::from_secs(1);

/// Runs a test on the oldest and on the current version of the server at the same time.
pub(crate) fn on_each_version<'a>(
    test: impl AsyncFn(Version) + 'a,
) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
    let [oldest, current] = Version::ALL;
    Box::pin(async move {
        tokio::join!(test(oldest), test(current));
    })
}

pub(crate) fn start(version: Version) -> Nats {
    Nats::start(version).unwrap()
}

/// Timeouts of one second, because tests wait for them. A busy machine may stand still for longer, so the helpers below
/// repeat calls that must succeed.
pub(crate) fn options() -> NatsOptions {
    NatsOptions {
        request_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        ping_interval: Duration::from_secs(1),
        max_reconnect_delay: Duration::from_millis(100),
        ..NatsOptions::default()
    }
}

/// Long timeouts, for tests without an outage: each call must succeed, although a busy machine may stand still for ten
/// seconds.
pub(crate) fn patient() -> NatsOptions {
    NatsOptions {
        request_timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(20),
        ping_interval: Duration::from_secs(20),
        ..NatsOptions::default()
    }
}

pub(crate) async fn connect(server: &Nats) -> NatsDriver {
    connect_with(server, patient()).await
}

pub(crate) async fn connect_with(server: &Nats, options: NatsOptions) -> NatsDriver {
    connect_to(&server.url(), options).await
}

pub(crate) async fn connect_to(address: &str, options: NatsOptions) -> NatsDriver {
    eventually("a driver connects", SOON, async || {
        NatsDriver::connect(address, options.clone()).await
    })
    .await
    .unwrap()
}

pub(crate) async fn declare(driver: &NatsDriver, queue: &QueueId) {
    eventually("the queue is declared", SOON, async || {
        driver.declare(queue).await
    })
    .await
    .unwrap();
}

/// A driver and the executor's queue that it declared.
pub(crate) async fn with_queue(server: &Nats, options: NatsOptions) -> (NatsDriver, QueueId) {
    let (driver, queue) = (connect_with(server, options).await, executor("one"));
    declare(&driver, &queue).await;
    (driver, queue)
}

/// The same over a proxy in front of the server.
pub(crate) async fn behind_proxy(
    server: &Nats,
    options: NatsOptions,
) -> (Proxy, NatsDriver, QueueId) {
    let proxy = Proxy::start(server.addr()).unwrap();
    let address = format!("nats://{}", proxy.addr());
    let driver = connect_to(&address, options).await;
    let queue = executor("one");
    declare(&driver, &queue).await;
    (proxy, driver, queue)
}

/// A client of its own, without the driver.
pub(crate) async fn raw_client(server: &Nats) -> Client {
    let connected = eventually("a client connects", SOON, async || {
        async_nats::connect(server.url()).await
    });
    connected.await.unwrap()
}

pub(crate) fn executor(name: &str) -> QueueId {
    QueueId::Executor {
        group: "billing".into(),
        executor: name.into(),
    }
}

/// A message whose id and payload are `number`.
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

pub(crate) async fn publish_one(driver: &NatsDriver, message: &Outgoing) -> Result<(), Refusal> {
    let outcomes = driver.publish(std::slice::from_ref(message)).await.unwrap();
    outcomes.into_iter().next().unwrap()
}

/// Publishes until a call succeeds. All its outcomes must be confirmations. The ids keep a repeated message from being
/// stored twice.
pub(crate) async fn publish(driver: &NatsDriver, batch: &[Outgoing]) {
    let published = eventually("a publish succeeds", SOON, async || {
        driver.publish(batch).await
    });
    assert_eq!(published.await.unwrap(), vec![Ok(()); batch.len()]);
}

/// Publishes until all of the batch is confirmed, elections included.
pub(crate) async fn publish_in_cluster(driver: &NatsDriver, batch: &[Outgoing]) {
    eventually("the batch is confirmed", SOON * 2, async || {
        let outcomes = driver.publish(batch).await.map_err(|e| e.to_string())?;
        let refused = outcomes.into_iter().find_map(Result::err);
        refused.map_or(Ok(()), |refusal| Err(refusal.to_string()))
    })
    .await
    .unwrap();
}

pub(crate) fn numbers(deliveries: &[Delivery]) -> Vec<usize> {
    deliveries
        .iter()
        .map(|d| std::str::from_utf8(&d.payload).unwrap().parse().unwrap())
        .collect()
}

/// Fetches until there are `count` messages. Repeats failed fetches.
pub(crate) async fn fetch_all(driver: &NatsDriver, queue: &QueueId, count: usize) -> Vec<Delivery> {
    let mut fetched = Vec::new();
    eventually("all messages are fetched", SOON, async || {
        if let Ok(more) = driver.fetch(queue, count - fetched.len(), FETCH_WAIT).await {
            fetched.extend(more);
        }
        if fetched.len() == count {
            Ok(())
        } else {
            Err(format!("{} of {count}", fetched.len()))
        }
    })
    .await
    .unwrap();
    fetched
}

pub(crate) fn settlements(deliveries: &[Delivery], how: &Settlement) -> Vec<(Receipt, Settlement)> {
    deliveries
        .iter()
        .map(|d| (d.receipt, how.clone()))
        .collect()
}

pub(crate) async fn settle(
    driver: &NatsDriver,
    queue: &QueueId,
    deliveries: &[Delivery],
    how: Settlement,
) {
    let settlements = settlements(deliveries, &how);
    eventually("the messages are settled", SOON, async || {
        driver.settle(queue, &settlements).await
    })
    .await
    .unwrap();
}

pub(crate) async fn ack(driver: &NatsDriver, queue: &QueueId, deliveries: &[Delivery]) {
    settle(driver, queue, deliveries, Settlement::Ack).await;
}

/// Fetches and acks until the queues hold nothing. A message whose publish was repeated may be there twice.
pub(crate) async fn drain(driver: &NatsDriver, queue: &QueueId) {
    eventually("the queue is empty", SOON, async || {
        let count = message_count(driver).await;
        if count == 0 {
            return Ok(());
        }
        if let Ok(fetched) = driver.fetch(queue, 1_000, FETCH_WAIT).await {
            // If an ack is lost, its message is delivered again.
            let acks = settlements(&fetched, &Settlement::Ack);
            let _ = driver.settle(queue, &acks).await;
        }
        Err(format!("{count} messages"))
    })
    .await
    .unwrap();
}

/// Counts the ready and unsettled messages of all queues.
pub(crate) async fn message_count(driver: &NatsDriver) -> u64 {
    let stats = eventually("the queues are counted", SOON, async || {
        driver.stats(&[]).await
    });
    let queues = stats.await.unwrap().queues;
    queues.iter().map(|s| s.ready + s.unsettled).sum()
}

pub(crate) async fn wait_for_message_count(driver: &NatsDriver, expected: u64) {
    eventually(
        "the queues hold the expected number of messages",
        SOON,
        async || match message_count(driver).await {
            count if count == expected => Ok(()),
            count => Err(format!("{count} instead of {expected}")),
        },
    )
    .await
    .unwrap();
}
