//! Confirmed messages survive a crash, and settled messages do not return.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Limits;
use super::fixture::{
    DEADLINE, Fixture, ack, assert_counts, assert_nothing, executor, message, messages, numbers,
    publish, settle, sorted, take,
};
use crate::address::QueueId;
use crate::dead::DeadLetter;
use crate::driver::{Driver, Settlement};

super::cases![
    Durable: the_unsettled_comes_back_after_a_restart,
    Durable: the_settled_does_not_come_back_after_a_restart,
    Durable: a_long_backlog_keeps_its_order_over_a_restart,
    Durable: dead_letters_and_queues_survive_a_restart,
    Durable: receipts_from_before_a_restart_are_ignored,
    Durable: a_restart_while_publishing_loses_nothing_that_was_confirmed,
    CountsAcrossRestart: deliveries_count_on_over_a_restart,
];

/// Limits with a short `ack_wait`. After a restart, a broker that remembers its deliveries repeats them only after
/// `ack_wait`; others repeat them at once. It is longer than the disk of a busy machine stands still, because nothing must
/// be delivered again while a case collects messages.
const SOON: Limits = Limits {
    ack_wait: Duration::from_secs(8),
    queue_limit: None,
};

async fn the_unsettled_comes_back_after_a_restart(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open_with(SOON, std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..30)).await;
    let handed_out = take(&*driver, &queue, 20).await;
    ack(&*driver, &queue, &handed_out[5..10]).await;
    // These messages are returned with a long delay. The restart may shorten the delay, but must not lose the messages.
    let how = if driver.capabilities().delayed_retry {
        Settlement::Retry(Duration::from_secs(2))
    } else {
        Settlement::Retry(Duration::ZERO)
    };
    settle(&*driver, &queue, &handed_out[..2], &how).await;

    let driver = fixture.restart_with(SOON, driver).await;
    let all = take(&*driver, &queue, 25).await;
    let expected: Vec<usize> = (0..5).chain(10..30).collect();
    assert_eq!(sorted(&all), expected);
    for delivery in &all {
        let number = numbers(std::slice::from_ref(delivery))[0];
        assert!(
            delivery.redelivered || number >= 20 || !driver.capabilities().counts_across_restart,
            "message {number} was delivered before but is not flagged as redelivered"
        );
    }
    ack(&*driver, &queue, &all).await;
    publish(&*driver, &[message(&queue, 100)]).await;
    let fresh = take(&*driver, &queue, 1).await;
    assert_eq!(numbers(&fresh), [100]);
    assert!(!fresh[0].redelivered);
}

async fn the_settled_does_not_come_back_after_a_restart(fixture: Fixture) {
    let queue = executor("one");
    let mut driver = fixture.open(std::slice::from_ref(&queue)).await;
    for round in 0..3 {
        publish(&*driver, &messages(&queue, round * 100..(round + 1) * 100)).await;
        let all = take(&*driver, &queue, 100).await;
        assert_eq!(
            sorted(&all),
            (round * 100..(round + 1) * 100).collect::<Vec<_>>()
        );
        ack(&*driver, &queue, &all).await;
        driver = fixture.restart(driver).await;
        assert_nothing(&*driver, &queue).await;
        assert_counts(&*driver, &queue, 0, 0).await;
    }
}

async fn a_long_backlog_keeps_its_order_over_a_restart(fixture: Fixture) {
    const COUNT: usize = 20_000;
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..COUNT)).await;
    let driver = fixture.restart(driver).await;
    publish(&*driver, &messages(&queue, COUNT..COUNT + 10)).await;
    let mut next = 0;
    while next < COUNT + 10 {
        let came = take(&*driver, &queue, (COUNT + 10 - next).min(1_000)).await;
        assert_eq!(
            numbers(&came),
            (next..next + came.len()).collect::<Vec<_>>()
        );
        ack(&*driver, &queue, &came).await;
        next += came.len();
    }
}

async fn dead_letters_and_queues_survive_a_restart(fixture: Fixture) {
    let (queue, empty) = (executor("one"), executor("empty"));
    let driver = fixture
        .open(&[queue.clone(), empty.clone(), QueueId::Dead])
        .await;
    publish(&*driver, &messages(&queue, 0..3)).await;
    let all = take(&*driver, &queue, 3).await;
    settle(&*driver, &queue, &all, &Settlement::Dead("why".into())).await;
    let driver = fixture.restart(driver).await;
    for queue in [&queue, &empty] {
        // A fetch from a missing queue fails, so this also checks that the queue exists.
        assert_nothing(&*driver, queue).await;
        assert_counts(&*driver, queue, 0, 0).await;
    }
    let dead = take(&*driver, &QueueId::Dead, 3).await;
    for delivery in &dead {
        assert_eq!(DeadLetter::decode(&delivery.payload).unwrap().reason, "why");
    }
}

async fn receipts_from_before_a_restart_are_ignored(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open_with(SOON, std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..10)).await;
    let before = take(&*driver, &queue, 10).await;
    let driver = fixture.restart_with(SOON, driver).await;
    let after = take(&*driver, &queue, 10).await;
    ack(&*driver, &queue, &before).await;
    assert_counts(&*driver, &queue, 0, 10).await;
    ack(&*driver, &queue, &after).await;
    assert_counts(&*driver, &queue, 0, 0).await;
}

/// Publishes single messages until the broker fails. Returns the confirmed ones.
async fn publish_until_it_ends(
    driver: Arc<dyn Driver>,
    queue: QueueId,
    first: usize,
) -> Vec<usize> {
    let mut confirmed = Vec::new();
    for n in first..first + 300 {
        match driver.publish(&[message(&queue, n)]).await {
            Ok(answers) => {
                assert_eq!(answers, [Ok(())]);
                confirmed.push(n);
            }
            Err(_) => break,
        }
    }
    confirmed
}

async fn a_restart_while_publishing_loses_nothing_that_was_confirmed(fixture: Fixture) {
    let queue = executor("one");
    let limits = Limits {
        ack_wait: Duration::from_secs(1),
        ..SOON
    };
    let mut driver = fixture
        .open_with(limits, std::slice::from_ref(&queue))
        .await;
    let mut confirmed = Vec::new();
    for round in 0..3 {
        let mut publishers = JoinSet::new();
        for publisher in 0..4 {
            publishers.spawn(publish_until_it_ends(
                Arc::clone(&driver),
                queue.clone(),
                (round * 4 + publisher) * 1_000,
            ));
        }
        // Some messages are confirmed by now, and others are still being published.
        let some = take(&*driver, &queue, 50).await;
        drop(some);
        driver = fixture.restart_with(limits, driver).await;
        for part in publishers.join_all().await {
            confirmed.extend(part);
        }
    }
    let mut lost: BTreeSet<usize> = confirmed.into_iter().collect();
    let give_up = Instant::now() + DEADLINE;
    // A fetch without messages does not mean that none is left: the product may be slow.
    while !lost.is_empty() {
        assert!(
            Instant::now() < give_up,
            "messages were confirmed but lost: {lost:?}"
        );
        let wait = limits.ack_wait * 3;
        let more = driver.fetch(&queue, 1_000, wait).await.unwrap();
        for number in numbers(&more) {
            lost.remove(&number);
        }
        ack(&*driver, &queue, &more).await;
    }
}

async fn deliveries_count_on_over_a_restart(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open_with(SOON, std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..2)).await;
    take(&*driver, &queue, 1).await;
    let driver = fixture.restart_with(SOON, driver).await;
    let mut all = take(&*driver, &queue, 2).await;
    all.sort_by_key(|d| d.payload.clone());
    assert_eq!((all[0].deliveries, all[0].redelivered), (2, true));
    assert_eq!((all[1].deliveries, all[1].redelivered), (1, false));
}
