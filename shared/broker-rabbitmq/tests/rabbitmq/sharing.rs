//! Several drivers on one queue. A driver does not keep messages that others could process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cueline_broker::{Coverage, Driver, QueueId, Settlement};
use cueline_broker_rabbitmq::RabbitOptions;
use tokio::time::timeout;

use crate::fixture::{
    DEADLINE, Fixture, eventually, executor, messages, numbers, publish, settle, take,
};

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
    let taken = Arc::new(AtomicUsize::new(0));
    let fetchers = drivers.clone().map(|driver| {
        let taken = Arc::clone(&taken);
        tokio::spawn(async move {
            let mut own = 0;
            // A busy server may deliver nothing for a while.
            while taken.load(Ordering::SeqCst) < COUNT {
                let wait = Duration::from_secs(2);
                let received = driver.fetch(&QueueId::Results, 50, wait).await.unwrap();
                taken.fetch_add(received.len(), Ordering::SeqCst);
                own += received.len();
                settle(&*driver, &QueueId::Results, &received, &Settlement::Ack).await;
            }
            own
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
    let both = async { (one.await.unwrap(), two.await.unwrap()) };
    let (one, two) = timeout(DEADLINE, both).await.unwrap();
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

/// AMQP does not count what another consumer holds. The number of consumers tells whether there is another one.
#[tokio::test(flavor = "multi_thread")]
async fn counts_cover_all_messages_while_no_other_driver_consumes() {
    let fixture = Fixture::shared().await;
    let (watcher, other) = (fixture.open().await, fixture.open().await);
    let queue = executor("one");
    watcher.declare(&queue).await.unwrap();
    let counted = async || {
        let stats = watcher.stats(std::slice::from_ref(&queue)).await;
        let stats = stats.map_err(|e| e.to_string())?;
        let found = stats.of(&queue).ok_or("no answer".to_owned())?;
        Ok::<_, String>((found.ready, found.unsettled, found.coverage))
    };
    // A busy server may leave a question for the counts unanswered.
    let wait_for_counts = async |expected: (u64, u64, Coverage)| {
        eventually(async || match counted().await? {
            counts if counts == expected => Ok(()),
            counts => Err(format!("{counts:?}")),
        })
        .await;
    };
    wait_for_counts((0, 0, Coverage::Unsure)).await;
    publish(&*watcher, &messages(&queue, 0..1)).await;
    take(&*other, &queue, 1).await;
    let nothing = watcher.fetch(&queue, 1, Duration::ZERO).await;
    assert!(nothing.unwrap().is_empty());
    wait_for_counts((0, 0, Coverage::OwnDeliveries)).await;
    drop(other);
    take(&*watcher, &queue, 1).await;
    wait_for_counts((0, 1, Coverage::All)).await;
}
