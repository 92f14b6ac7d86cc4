//! Unsettled and returned messages are delivered again.

use std::time::Duration;

use tokio::time::Instant;

use super::Limits;
use super::fixture::{
    DEADLINE, Fixture, ack, assert_counts, assert_nothing, executor, messages, numbers, publish,
    settle, sorted, take,
};
use crate::driver::Settlement;

super::cases![
    Nothing: the_unsettled_comes_again_after_ack_wait,
    Nothing: an_ack_within_ack_wait_keeps_it_away,
    Nothing: a_receipt_from_before_a_redelivery_is_ignored,
    Nothing: a_returned_message_comes_again_at_once,
    Nothing: a_waiting_fetch_gets_a_returned_message,
    DelayedRetry: a_message_returned_with_a_delay_comes_after_it,
    DelayedRetry: a_delay_holds_back_no_other_message,
];

/// Longer than a busy machine stands still: a message must not be delivered again between two fetches of one round.
const SHORT: Limits = Limits {
    ack_wait: Duration::from_secs(7),
    queue_limit: None,
};

async fn the_unsettled_comes_again_after_ack_wait(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open_with(SHORT, std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..50)).await;
    let start = Instant::now();
    let first = take(&*driver, &queue, 50).await;
    let mut waited = Duration::ZERO;
    for round in 2..4 {
        let again = take(&*driver, &queue, 50).await;
        waited += SHORT.ack_wait;
        assert!(start.elapsed() >= waited, "delivered again before ack_wait");
        assert_eq!(sorted(&again), numbers(&first));
        for delivery in &again {
            assert!(delivery.redelivered);
            assert_eq!(delivery.deliveries, round);
        }
    }
}

async fn an_ack_within_ack_wait_keeps_it_away(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open_with(SHORT, std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..2)).await;
    let start = Instant::now();
    let both = take(&*driver, &queue, 2).await;
    ack(&*driver, &queue, &both[..1]).await;
    let acked_in_time = start.elapsed() < SHORT.ack_wait;
    let again = take(&*driver, &queue, 1).await;
    if acked_in_time {
        assert_eq!(numbers(&again), [1]);
        ack(&*driver, &queue, &again).await;
        assert_nothing(&*driver, &queue).await;
    }
}

async fn a_receipt_from_before_a_redelivery_is_ignored(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open_with(SHORT, std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..1)).await;
    let first = take(&*driver, &queue, 1).await;
    let second = take(&*driver, &queue, 1).await;
    assert_ne!(first[0].receipt, second[0].receipt);
    ack(&*driver, &queue, &first).await;
    let third = take(&*driver, &queue, 1).await;
    assert_eq!(third[0].deliveries, 3);
    ack(&*driver, &queue, &third).await;
    assert_counts(&*driver, &queue, 0, 0).await;
}

async fn a_returned_message_comes_again_at_once(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..1_000)).await;
    let first = take(&*driver, &queue, 1_000).await;
    let how = Settlement::Retry(Duration::ZERO);
    settle(&*driver, &queue, &first, &how).await;
    let again = take(&*driver, &queue, 1_000).await;
    assert_eq!(sorted(&again), (0..1_000).collect::<Vec<_>>());
    assert!(again.iter().all(|d| d.redelivered && d.deliveries == 2));
    ack(&*driver, &queue, &again).await;
    assert_nothing(&*driver, &queue).await;
}

async fn a_waiting_fetch_gets_a_returned_message(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..1)).await;
    let first = take(&*driver, &queue, 1).await;
    let how = Settlement::Retry(Duration::ZERO);
    let start = Instant::now();
    let (again, ()) = tokio::join!(
        driver.fetch(&queue, 1, DEADLINE),
        settle(&*driver, &queue, &first, &how)
    );
    assert_eq!(numbers(&again.unwrap()), [0]);
    assert!(start.elapsed() < DEADLINE, "came late");
}

async fn a_message_returned_with_a_delay_comes_after_it(fixture: Fixture) {
    const DELAY: Duration = Duration::from_secs(1);
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..3)).await;
    let first = take(&*driver, &queue, 3).await;
    let start = Instant::now();
    settle(&*driver, &queue, &first, &Settlement::Retry(DELAY)).await;
    let again = take(&*driver, &queue, 3).await;
    assert!(
        start.elapsed() >= DELAY,
        "delivered after {:?}",
        start.elapsed()
    );
    assert_eq!(sorted(&again), [0, 1, 2]);
    assert!(again.iter().all(|d| d.redelivered));
}

async fn a_delay_holds_back_no_other_message(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..3)).await;
    let first = take(&*driver, &queue, 1).await;
    let how = Settlement::Retry(Duration::from_hours(1));
    settle(&*driver, &queue, &first, &how).await;
    let others = take(&*driver, &queue, 2).await;
    assert_eq!(numbers(&others), [1, 2]);
    // A delay beyond the range of any clock must not crash the driver; the message stays delayed.
    let how = Settlement::Retry(Duration::MAX);
    settle(&*driver, &queue, &others, &how).await;
    assert_nothing(&*driver, &queue).await;
}
