//! What a caller was told is unknown counts for a known time and no longer, wherever it lay meanwhile: in the client's queue, in a socket's
//! buffer, on the way, or in a server that stood still.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerOptions, Driver, ErrorKind, Outgoing, QueueId, Refusal};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::proxy::{Link, Proxy};
use tokio::time::{Instant, sleep_until};

use crate::ground::{
    SOON, ack, executor, left, messages, numbers, open, options, publish, take, until,
};

/// How long a trigger may take effect: twice the `request_timeout`.
const COUNTS: Duration = Duration::from_secs(2);

fn short_window() -> NatsOptions {
    NatsOptions {
        duplicate_window: Duration::from_millis(500),
        ..options()
    }
}

/// Messages that fill every buffer on the way.
fn large(queue: &QueueId, numbers: std::ops::Range<usize>) -> Vec<Outgoing> {
    let padding = " ".repeat(500_000);
    let mut batch = messages(queue, numbers);
    for message in &mut batch {
        let number = std::str::from_utf8(&message.payload).unwrap();
        message.payload = Bytes::from(format!("{number}{padding}"));
    }
    batch
}

async fn behind(server: &Nats, queue: &QueueId, options: NatsOptions) -> (Proxy, NatsDriver) {
    let proxy = Proxy::start(server.addr()).unwrap();
    let address = format!("nats://{}", proxy.addr());
    let driver = NatsDriver::connect(&address, options).await.unwrap();
    driver.declare(queue).await.unwrap();
    // The queue and the server's clock are known from now on.
    publish(&driver, &messages(queue, 1_000..1_001)).await;
    let first = take(&driver, queue, 1).await;
    ack(&driver, queue, &first).await;
    (proxy, driver)
}

async fn unanswered(driver: &NatsDriver, batch: &[Outgoing]) {
    let told = driver.publish(batch).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
}

/// Nothing is handed out, and nothing is left.
async fn assert_void(driver: &NatsDriver, queue: &QueueId) {
    until("what came too late is ended", || async {
        let came = driver.fetch(queue, 100, SOON).await.unwrap();
        assert!(came.is_empty(), "too late: {:?}", numbers(&came));
        (left(driver).await == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lay_in_a_half_open_connection_does_not_count_when_it_heals() {
    for version in Version::ALL {
        let server = Nats::start(version).unwrap();
        let queue = executor("one");
        let (proxy, driver) = behind(&server, &queue, short_window()).await;
        let beside = open(&server.url()).await;
        let batch = messages(&queue, 0..10);
        proxy.set(Link::HalfOpen);
        unanswered(&driver, &batch).await;
        // Time is what this is about.
        sleep_until(Instant::now() + COUNTS).await;
        proxy.heal();
        until("they arrive all the same", || async {
            (left(&beside).await == 10).then_some(())
        })
        .await;
        assert_void(&beside, &queue).await;
        // Published again, they are there.
        let again = until("it is published", || async {
            driver.publish(&batch).await.ok()
        })
        .await;
        assert_eq!(again, vec![Ok(()); 10]);
        let came = take(&beside, &queue, 10).await;
        assert_eq!(numbers(&came), (0..10).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waited_in_the_client_does_not_count_after_a_new_connection() {
    let server = Nats::start(Version::V2_12).unwrap();
    let queue = executor("one");
    let (proxy, driver) = behind(&server, &queue, short_window()).await;
    let beside = open(&server.url()).await;
    proxy.set(Link::HalfOpen);
    unanswered(&driver, &large(&queue, 0..60)).await;
    sleep_until(Instant::now() + COUNTS).await;
    proxy.heal();
    // It goes out after all that waited there.
    let last = messages(&queue, 100..101);
    until("it is published", || async {
        driver.publish(&last).await.ok()
    })
    .await;
    let came = take(&beside, &queue, 1).await;
    assert_eq!(numbers(&came), [100]);
    ack(&beside, &queue, &came).await;
    assert_void(&beside, &queue).await;
}

/// The first copy of a message is the one that is kept, and it came too late: the second has to count all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_came_too_late_does_not_stand_in_for_one_in_time() {
    let server = Nats::start(Version::V2_12).unwrap();
    let queue = executor("one");
    let (_proxy, driver) = behind(&server, &queue, options()).await;
    let batch = messages(&queue, 0..10);
    server.pause().unwrap();
    unanswered(&driver, &batch).await;
    // Past the window of deduplication, which is how long triggers count with these options.
    let over = options().duplicate_window + Duration::from_millis(100);
    sleep_until(Instant::now() + over).await;
    server.resume().unwrap();
    let doubted = Cell::new(0);
    until("all are taken", || async {
        let answers = driver.publish(&batch).await.ok()?;
        if answers.iter().all(Result::is_ok) {
            return Some(());
        }
        let unknown = |answer: &Result<(), Refusal>| matches!(answer, Err(Refusal::Unknown { .. }));
        assert!(answers.iter().all(|a| a.is_ok() || unknown(a)));
        doubted.set(doubted.get() + 1);
        assert!(
            doubted.get() < 3,
            "each try is taken for the first one: {answers:?}"
        );
        None
    })
    .await;
    let mut came = numbers(&take(&driver, &queue, 10).await);
    came.dedup();
    assert_eq!(came, (0..10).collect::<Vec<_>>());
}

/// The same while the port's own tries go on: the last of them is in time, and the stream has the first, which is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_in_time_is_not_taken_for_the_first_of_many_tries() {
    let server = Nats::start(Version::V2_12).unwrap();
    let queue = executor("one");
    let options = NatsOptions {
        duplicate_window: COUNTS,
        // The connection is to outlast the pause.
        ping_interval: Duration::from_mins(1),
        ..options()
    };
    let (_proxy, driver) = behind(&server, &queue, options).await;
    let driver = Arc::new(driver);
    let broker = Broker::from_arc(driver.clone(), BrokerOptions::default());
    let batch = messages(&queue, 0..10);
    server.pause().unwrap();
    let published = tokio::spawn({
        let (broker, batch) = (broker.clone(), batch.clone());
        async move { broker.publish(&batch).await.unwrap() }
    });
    // Past the time in which the first copies count.
    sleep_until(Instant::now() + COUNTS + Duration::from_millis(1_500)).await;
    assert!(!published.is_finished(), "it is still being tried");
    server.resume().unwrap();
    let mut answers = published.await.unwrap();
    for _ in 0..3 {
        if answers.iter().all(Result::is_ok) {
            break;
        }
        answers = broker.publish(&batch).await.unwrap();
    }
    assert_eq!(answers, vec![Ok(()); 10]);
    let mut came = numbers(&take(&driver, &queue, 10).await);
    came.dedup();
    assert_eq!(came, (0..10).collect::<Vec<_>>());
}

/// Reports are confirmed or not, and nothing heals what is confirmed and void.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_count_whenever_they_come() {
    let server = Nats::start(Version::V2_12).unwrap();
    let (proxy, driver) = behind(&server, &QueueId::Results, short_window()).await;
    let beside = open(&server.url()).await;
    proxy.set(Link::HalfOpen);
    unanswered(&driver, &messages(&QueueId::Results, 0..3)).await;
    sleep_until(Instant::now() + COUNTS).await;
    proxy.heal();
    let came = take(&beside, &QueueId::Results, 3).await;
    assert_eq!(numbers(&came), [0, 1, 2]);
}
