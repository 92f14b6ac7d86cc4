//! Several drivers on one queue. A driver does not keep messages that others could process.

use std::time::Duration;

use cueline_broker::{Driver, QueueId, Settlement};
use cueline_broker_rabbitmq::RabbitOptions;

use crate::fixture::{Fixture, executor, messages, numbers, publish, settle, take};

#[tokio::test(flavor = "multi_thread")]
async fn prefetched_messages_return_to_the_queue_without_fetches() {
    let fixture = Fixture::shared().await;
    let options = RabbitOptions {
        idle_after: Duration::from_millis(300),
        ..fixture.options()
    };
    let (greedy, other) = (fixture.open_with(options).await, fixture.open().await);
    let queue = executor("one");
    greedy.declare(&queue).await.unwrap();
    // A fetch with a large prefetch from an empty queue.
    let nothing = greedy.fetch(&queue, 500, Duration::from_millis(50)).await;
    assert!(nothing.unwrap().is_empty());
    publish(&*greedy, &messages(&queue, 0..100)).await;
    // The server delivers them to the driver that no longer fetches. That driver must return them.
    let mut received = numbers(&take(&*other, &queue, 100).await);
    received.sort_unstable();
    assert_eq!(received, (0..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_consumers_share_the_work() {
    const COUNT: usize = 2_000;
    let fixture = Fixture::shared().await;
    let drivers = [fixture.open().await, fixture.open().await];
    drivers[0].declare(&QueueId::Results).await.unwrap();
    let fetchers = drivers.clone().map(|driver| {
        tokio::spawn(async move {
            let mut own = 0;
            loop {
                let wait = Duration::from_secs(2);
                let received = driver.fetch(&QueueId::Results, 50, wait).await.unwrap();
                if received.is_empty() {
                    return own;
                }
                own += received.len();
                settle(&*driver, &QueueId::Results, &received, &Settlement::Ack).await;
            }
        })
    });
    for start in (0..COUNT).step_by(100) {
        publish(
            &*drivers[0],
            &messages(&QueueId::Results, start..start + 100),
        )
        .await;
    }
    let [one, two] = fetchers;
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    assert_eq!(one + two, COUNT);
    assert!(one > COUNT / 10 && two > COUNT / 10, "{one} and {two}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_prefetch_keeps_the_order() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..4_000)).await;
    // Nothing is settled, so each larger prefetch needs a new consumer. The order must stay the same.
    let mut all = Vec::new();
    while all.len() < 4_000 {
        all.extend(take(&*driver, &queue, 1).await);
        all.extend(take(&*driver, &queue, 399).await);
    }
    assert_eq!(numbers(&all), (0..4_000).collect::<Vec<_>>());
    settle(&*driver, &queue, &all, &Settlement::Ack).await;
    assert!(driver.delete(&queue, true).await.unwrap(), "it is empty");
}
