//! A trigger whose publish was not confirmed is valid until its deadline and void afterwards. This holds wherever the
//! trigger was in between: in the client's queue, a socket's buffer, the network, or a paused server.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerOptions, Driver, ErrorKind, Outgoing, QueueId, Refusal};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::proxy::{Link, Proxy};
use cueline_test_support::{SOON, eventually};
use tokio::time::{Instant, sleep_until};

use crate::fixture::{
    FETCH_WAIT, ack, behind_proxy, connect, declare, drain, fetch_all, message_count, messages,
    numbers, on_each_version, options, publish, start,
};

/// The time from sending a trigger to its deadline: twice the `request_timeout`.
const VALID_FOR: Duration = Duration::from_secs(2);

fn short_window() -> NatsOptions {
    NatsOptions {
        duplicate_window: Duration::from_millis(500),
        ..options()
    }
}

/// Options with a window as long as triggers are valid. A stream with an expired copy then reports the next copy as a
/// duplicate.
fn long_window() -> NatsOptions {
    NatsOptions {
        duplicate_window: VALID_FOR,
        ..options()
    }
}

/// A driver behind a proxy. It has looked the queue up and read the server's clock.
async fn warmed_up(server: &Nats, options: NatsOptions) -> (Proxy, NatsDriver, QueueId) {
    let (proxy, driver, queue) = behind_proxy(server, options).await;
    publish(&driver, &messages(&queue, 1_000..1_001)).await;
    drain(&driver, &queue).await;
    (proxy, driver, queue)
}

/// Messages that fill every buffer on the way to the server.
fn large_messages(queue: &QueueId, numbers: std::ops::Range<usize>) -> Vec<Outgoing> {
    let padding = " ".repeat(500_000);
    let mut batch = messages(queue, numbers);
    for message in &mut batch {
        let number = std::str::from_utf8(&message.payload).unwrap();
        message.payload = Bytes::from(format!("{number}{padding}"));
    }
    batch
}

async fn publish_without_confirmation(driver: &NatsDriver, batch: &[Outgoing]) {
    let error = driver.publish(batch).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
}

/// These tests are about time, so they really wait.
async fn wait(duration: Duration) {
    sleep_until(Instant::now() + duration).await;
}

/// Asserts that no message is delivered and none is left. Copies of `valid` may be left, because its publish may have been
/// repeated.
async fn assert_all_expired(driver: &NatsDriver, queue: &QueueId, valid: Option<usize>) {
    eventually("expired messages are ended", SOON, async || {
        let fetched = driver.fetch(queue, 100, FETCH_WAIT).await;
        let fetched = fetched.map_err(|e| e.to_string())?;
        let numbers = numbers(&fetched);
        let all_valid = numbers.iter().all(|n| Some(*n) == valid);
        assert!(all_valid, "expired: {numbers:?}");
        ack(driver, queue, &fetched).await;
        match message_count(driver).await {
            0 => Ok(()),
            count => Err(format!("{count} messages")),
        }
    })
    .await
    .unwrap();
}

/// Asserts that each message is delivered, the first copies in order. A message may be stored under more than one id.
async fn assert_each_is_delivered(driver: &NatsDriver, queue: &QueueId, count: usize) {
    let mut first_copies = Vec::new();
    eventually("all messages are fetched", SOON, async || {
        if let Ok(more) = driver.fetch(queue, 100, FETCH_WAIT).await {
            for number in numbers(&more) {
                if !first_copies.contains(&number) {
                    first_copies.push(number);
                }
            }
        }
        let fetched = first_copies.len();
        (fetched == count).then_some(()).ok_or(fetched)
    })
    .await
    .unwrap();
    assert_eq!(first_copies, (0..count).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_that_a_half_open_connection_delayed_beyond_its_deadline_is_void() {
    on_each_version(async |version| {
        let server = start(version);
        let (proxy, driver, queue) = warmed_up(&server, short_window()).await;
        let direct = connect(&server).await;
        let batch = messages(&queue, 0..10);
        proxy.set(Link::HalfOpen);
        publish_without_confirmation(&driver, &batch).await;
        wait(VALID_FOR).await;
        proxy.heal();
        // A message may be stored under more than one id.
        let arrived = eventually("all messages arrive", SOON, async || {
            let count = message_count(&direct).await;
            if count >= 10 { Ok(()) } else { Err(count) }
        });
        arrived.await.unwrap();
        assert_all_expired(&direct, &queue, None).await;
        // The messages are valid when they are published again.
        publish(&driver, &batch).await;
        let fetched = fetch_all(&direct, &queue, 10).await;
        assert_eq!(numbers(&fetched), (0..10).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_that_waited_in_the_client_is_void_on_a_new_connection() {
    let server = start(Version::V2_12);
    let (proxy, driver, queue) = warmed_up(&server, short_window()).await;
    let direct = connect(&server).await;
    proxy.set(Link::HalfOpen);
    publish_without_confirmation(&driver, &large_messages(&queue, 0..60)).await;
    wait(VALID_FOR).await;
    proxy.heal();
    // The client sends this message after all waiting ones.
    publish(&driver, &messages(&queue, 100..101)).await;
    let fetched = fetch_all(&direct, &queue, 1).await;
    assert_eq!(numbers(&fetched), [100]);
    ack(&direct, &queue, &fetched).await;
    assert_all_expired(&direct, &queue, Some(100)).await;
}

/// The stream keeps the first copy, which has expired. The second copy must still be valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_copy_does_not_stand_in_for_a_valid_one() {
    let server = start(Version::V2_12);
    let options = NatsOptions {
        // The connection is lost during the pause.
        ping_interval: Duration::from_millis(300),
        ..long_window()
    };
    let (_proxy, driver, queue) = warmed_up(&server, options).await;
    let batch = messages(&queue, 0..10);
    server.pause().unwrap();
    publish_without_confirmation(&driver, &batch).await;
    wait(VALID_FOR + Duration::from_millis(100)).await;
    server.resume().unwrap();
    let unknown_tries = Cell::new(0);
    eventually("all are confirmed", SOON, async || {
        let outcomes = driver.publish(&batch).await.map_err(|e| {
            // The copies of a try without an answer may have expired, too. The next try may then find these.
            unknown_tries.set(0);
            e.to_string()
        })?;
        if outcomes.iter().all(Result::is_ok) {
            return Ok(());
        }
        let is_expected = |outcome: &Result<(), Refusal>| {
            matches!(outcome, Ok(()) | Err(Refusal::Unknown { .. }))
        };
        assert!(outcomes.iter().all(is_expected), "{outcomes:?}");
        unknown_tries.set(unknown_tries.get() + 1);
        assert!(
            unknown_tries.get() < 3,
            "each try counts as a duplicate of the first: {outcomes:?}"
        );
        Err(format!("{outcomes:?}"))
    })
    .await
    .unwrap();
    assert_each_is_delivered(&driver, &queue, 10).await;
}

/// The same while `Broker` retries. Its last try is in time, but the stream has the first copy, which is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_many_tries_is_not_taken_for_an_expired_first_one() {
    let server = start(Version::V2_12);
    let options = NatsOptions {
        // The connection stays open during the pause.
        ping_interval: Duration::from_mins(1),
        ..long_window()
    };
    let (_proxy, driver, queue) = warmed_up(&server, options).await;
    let driver = Arc::new(driver);
    let broker = Broker::from_arc(driver.clone(), BrokerOptions::default());
    let batch = messages(&queue, 0..10);
    server.pause().unwrap();
    let published = tokio::spawn({
        let (broker, batch) = (broker.clone(), batch.clone());
        async move { broker.publish(&batch).await.unwrap() }
    });
    wait(VALID_FOR + Duration::from_millis(1_500)).await;
    assert!(!published.is_finished(), "the broker still retries");
    server.resume().unwrap();
    let mut outcomes = published.await.unwrap();
    for _ in 0..3 {
        if outcomes.iter().all(Result::is_ok) {
            break;
        }
        outcomes = broker.publish(&batch).await.unwrap();
    }
    assert_eq!(outcomes, vec![Ok(()); 10]);
    assert_each_is_delivered(&driver, &queue, 10).await;
}

/// The publisher of reports relies on a confirmation, and would not publish a void report again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_have_no_deadline() {
    let server = start(Version::V2_12);
    let (proxy, driver, _) = warmed_up(&server, short_window()).await;
    declare(&driver, &QueueId::Results).await;
    let direct = connect(&server).await;
    proxy.set(Link::HalfOpen);
    publish_without_confirmation(&driver, &messages(&QueueId::Results, 0..3)).await;
    wait(VALID_FOR).await;
    proxy.heal();
    let fetched = fetch_all(&direct, &QueueId::Results, 3).await;
    assert_eq!(numbers(&fetched), [0, 1, 2]);
}
