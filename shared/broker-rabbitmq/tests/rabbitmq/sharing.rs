//! Several processes on one queue: a driver takes what it needs and keeps nothing that others could use.

use std::time::Duration;

use cueline_broker::{Driver, QueueId, Settlement};
use cueline_broker_rabbitmq::RabbitOptions;

use crate::world::{World, executor, messages, numbers, publish, settle, take};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_ahead_goes_back_when_nobody_fetches() {
    let world = World::new().await;
    let options = RabbitOptions {
        idle_after: Duration::from_millis(300),
        ..world.options()
    };
    let (greedy, other) = (world.open_with(options).await, world.open().await);
    let queue = executor("one");
    greedy.declare(&queue).await.unwrap();
    // A large prefetch, and nothing there yet.
    let nothing = greedy.fetch(&queue, 500, Duration::from_millis(50)).await;
    assert!(nothing.unwrap().is_empty());
    publish(&*greedy, &messages(&queue, 0..100)).await;
    // Sent ahead to the one that does not fetch any more; it has to give them back.
    let mut came = numbers(&take(&*other, &queue, 100).await);
    came.sort_unstable();
    assert_eq!(came, (0..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_fetch_share_the_work() {
    const COUNT: usize = 2_000;
    let world = World::new().await;
    let drivers = [world.open().await, world.open().await];
    drivers[0].declare(&QueueId::Results).await.unwrap();
    let fetchers = drivers.clone().map(|driver| {
        tokio::spawn(async move {
            let mut own = 0;
            loop {
                let wait = Duration::from_secs(2);
                let came = driver.fetch(&QueueId::Results, 50, wait).await.unwrap();
                if came.is_empty() {
                    return own;
                }
                own += came.len();
                settle(&*driver, &QueueId::Results, &came, &Settlement::Ack).await;
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
async fn the_prefetch_follows_what_is_held() {
    let world = World::new().await;
    let driver = world.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..4_000)).await;
    // Nothing is settled: each larger prefetch needs a new consumer, and none of that may change the order.
    let mut all = Vec::new();
    while all.len() < 4_000 {
        all.extend(take(&*driver, &queue, 1).await);
        all.extend(take(&*driver, &queue, 399).await);
    }
    assert_eq!(numbers(&all), (0..4_000).collect::<Vec<_>>());
    settle(&*driver, &queue, &all, &Settlement::Ack).await;
    assert!(driver.delete(&queue, true).await.unwrap(), "it is empty");
}
