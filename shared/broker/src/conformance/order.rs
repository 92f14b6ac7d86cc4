//! Each queue delivers its messages in the order of publication.

use std::sync::Arc;

use super::fixture::{
    Fixture, ack, assert_each_once, assert_nothing, executor, message, messages, number, numbers,
    publish, publish_one, take,
};
use crate::address::QueueId;

super::cases![
    Nothing: messages_come_in_the_order_of_publication,
    Nothing: a_batch_for_many_queues_keeps_the_order_of_each,
    Nothing: a_long_backlog_keeps_its_order,
    Nothing: publishing_while_fetching_keeps_the_order,
    SharedByProcesses: a_consumer_that_stops_fetching_leaves_all_messages_to_the_other,
    Nothing: concurrent_publishers_lose_nothing_and_keep_their_own_order,
    Deduplicates: the_same_id_twice_leaves_one_message,
];

async fn messages_come_in_the_order_of_publication(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    for n in 0..10 {
        publish(&*driver, &[message(&queue, n)]).await;
    }
    publish(&*driver, &messages(&queue, 10..500)).await;
    for n in 500..510 {
        publish(&*driver, &[message(&queue, n)]).await;
    }
    let all = take(&*driver, &queue, 510).await;
    assert_eq!(numbers(&all), (0..510).collect::<Vec<_>>());
    for delivery in &all {
        assert_eq!(delivery.topic, "invoices");
        assert!(!delivery.redelivered);
        assert_eq!(delivery.deliveries, 1);
    }
    ack(&*driver, &queue, &all).await;
}

async fn a_batch_for_many_queues_keeps_the_order_of_each(fixture: Fixture) {
    let queues: Vec<QueueId> = (0..7).map(|i| executor(&format!("e{i}"))).collect();
    let driver = fixture.open(&queues).await;
    let batch: Vec<_> = (0..700).map(|n| message(&queues[n % 7], n)).collect();
    publish(&*driver, &batch).await;
    for (i, queue) in queues.iter().enumerate() {
        let came = take(&*driver, queue, 100).await;
        assert_eq!(numbers(&came), (i..700).step_by(7).collect::<Vec<_>>());
    }
}

async fn a_long_backlog_keeps_its_order(fixture: Fixture) {
    const COUNT: usize = 20_000;
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..COUNT)).await;
    let mut next = 0;
    while next < COUNT {
        let came = take(&*driver, &queue, (COUNT - next).min(700)).await;
        assert_eq!(
            numbers(&came),
            (next..next + came.len()).collect::<Vec<_>>()
        );
        ack(&*driver, &queue, &came).await;
        next += came.len();
    }
    assert_nothing(&*driver, &queue).await;
}

async fn publishing_while_fetching_keeps_the_order(fixture: Fixture) {
    const COUNT: usize = 30_000;
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    let publisher = tokio::spawn({
        let (driver, queue) = (Arc::clone(&driver), queue.clone());
        async move {
            for start in (0..COUNT).step_by(500) {
                publish(&*driver, &messages(&queue, start..start + 500)).await;
            }
        }
    });
    // Fetch more slowly than the publisher publishes: the queue outgrows the driver's buffer and then runs empty.
    let mut next = 0;
    while next < COUNT {
        let came = take(&*driver, &queue, (COUNT - next).min(100)).await;
        assert_eq!(
            numbers(&came),
            (next..next + came.len()).collect::<Vec<_>>()
        );
        ack(&*driver, &queue, &came).await;
        next += came.len();
    }
    publisher.await.unwrap();
    assert_nothing(&*driver, &queue).await;
}

async fn concurrent_publishers_lose_nothing_and_keep_their_own_order(fixture: Fixture) {
    const PUBLISHERS: usize = 8;
    const EACH: usize = 100;
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    let mut publishers = tokio::task::JoinSet::new();
    for publisher in 0..PUBLISHERS {
        let (driver, queue) = (Arc::clone(&driver), queue.clone());
        publishers.spawn(async move {
            for i in 0..EACH {
                let taken = publish_one(&*driver, &message(&queue, publisher * EACH + i)).await;
                assert_eq!(taken, Ok(()));
            }
        });
    }
    let all = take(&*driver, &queue, PUBLISHERS * EACH).await;
    publishers.join_all().await;
    assert_each_once(&numbers(&all), PUBLISHERS * EACH);
    for publisher in 0..PUBLISHERS {
        let own: Vec<usize> = all
            .iter()
            .map(number)
            .filter(|n| n / EACH == publisher)
            .collect();
        assert!(own.is_sorted(), "publisher {publisher}: {own:?}");
    }
}

async fn the_same_id_twice_leaves_one_message(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    for _ in 0..2 {
        publish(&*driver, &messages(&queue, 0..20)).await;
    }
    let all = take(&*driver, &queue, 20).await;
    assert_each_once(&numbers(&all), 20);
    assert_nothing(&*driver, &queue).await;
}

/// The other consumer would get the first messages late, after the later ones.
async fn a_consumer_that_stops_fetching_leaves_all_messages_to_the_other(fixture: Fixture) {
    let queue = executor("one");
    let first = fixture.open(std::slice::from_ref(&queue)).await;
    let second = fixture.open(&[]).await;
    assert_nothing(&*first, &queue).await;
    publish(&*second, &messages(&queue, 0..8)).await;
    first.stop_fetching(&queue).await.unwrap();
    publish(&*second, &messages(&queue, 8..16)).await;
    let came = take(&*second, &queue, 16).await;
    assert_eq!(numbers(&came), (0..16).collect::<Vec<_>>());
    ack(&*second, &queue, &came).await;
    second.stop_fetching(&queue).await.unwrap();
    publish(&*second, &messages(&queue, 16..17)).await;
    assert_eq!(take(&*first, &queue, 1).await.len(), 1, "it fetches again");
    let missing = executor("never_fetched");
    first.stop_fetching(&missing).await.unwrap();
}
