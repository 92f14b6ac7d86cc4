//! Queues are declared, found and deleted by name.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::fixture::{
    DEADLINE, Fixture, NAMES, ack, assert_counts, assert_nothing, executor, message, messages,
    numbers, publish, take,
};
use crate::address::QueueId;
use crate::driver::{Coverage, Driver, Refusal, SettledTo};

super::cases![
    Nothing: declaring_again_changes_nothing,
    Nothing: queues_are_apart_whatever_their_names,
    Nothing: a_queue_with_messages_is_not_deleted_as_empty,
    Nothing: a_deleted_queue_takes_its_messages_along,
    Nothing: a_message_for_no_queue_is_refused_alone,
    Nothing: fetching_from_no_queue_is_an_error,
    Nothing: existing_queues_are_counted_once,
    Nothing: positions_stay_before_an_unsettled_message,
    SharedByProcesses: a_process_that_never_used_a_queue_counts_it,
    SharedByProcesses: counts_without_the_deliveries_of_others_say_so,
];

async fn declaring_again_changes_nothing(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..3)).await;
    let first = take(&*driver, &queue, 1).await;
    driver.declare(&queue).await.unwrap();
    assert_counts(&*driver, &queue, 2, 1).await;
    ack(&*driver, &queue, &first).await;
    let stats = driver.stats(std::slice::from_ref(&queue)).await.unwrap();
    assert_eq!(stats.queues.iter().filter(|s| s.queue == queue).count(), 1);
    assert_eq!(numbers(&take(&*driver, &queue, 2).await), [1, 2]);
}

async fn queues_are_apart_whatever_their_names(fixture: Fixture) {
    let mut queues: Vec<QueueId> = NAMES
        .iter()
        .map(|(group, executor)| QueueId::Executor {
            group: (*group).into(),
            executor: (*executor).into(),
        })
        .collect();
    queues.extend([QueueId::Results, QueueId::Requests, QueueId::Dead]);
    let driver = fixture.open(&queues).await;
    let one_each: Vec<_> = queues
        .iter()
        .enumerate()
        .map(|(n, queue)| {
            let mut outgoing = message(queue, n);
            outgoing.id = n.to_string();
            outgoing
        })
        .collect();
    publish(&*driver, &one_each).await;
    for (n, queue) in queues.iter().enumerate() {
        let own = take(&*driver, queue, 1).await;
        assert_eq!(numbers(&own), [n], "{queue:?}");
    }
    for queue in &queues {
        assert_counts(&*driver, queue, 0, 1).await;
    }
}

async fn a_queue_with_messages_is_not_deleted_as_empty(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..2)).await;
    assert_counts(&*driver, &queue, 2, 0).await;
    assert!(!driver.delete(&queue, true).await.unwrap(), "two are ready");
    let both = take(&*driver, &queue, 2).await;
    assert!(
        !driver.delete(&queue, true).await.unwrap(),
        "two are unsettled"
    );
    ack(&*driver, &queue, &both).await;
    assert_counts(&*driver, &queue, 0, 0).await;
    assert!(driver.delete(&queue, true).await.unwrap());
    assert!(
        driver
            .stats(std::slice::from_ref(&queue))
            .await
            .unwrap()
            .of(&queue)
            .is_none()
    );
    for only_if_empty in [true, false] {
        let gone = driver.delete(&queue, only_if_empty).await.unwrap();
        assert!(gone, "a missing queue counts as deleted");
    }
}

async fn a_deleted_queue_takes_its_messages_along(fixture: Fixture) {
    let (queue, other) = (executor("one"), executor("two"));
    let driver = fixture.open(&[queue.clone(), other.clone()]).await;
    publish(&*driver, &messages(&queue, 0..100)).await;
    publish(&*driver, &messages(&other, 0..5)).await;
    let unsettled = take(&*driver, &queue, 10).await;
    assert!(driver.delete(&queue, false).await.unwrap());
    driver.declare(&queue).await.unwrap();
    ack(&*driver, &queue, &unsettled).await;
    assert_counts(&*driver, &queue, 0, 0).await;
    assert_nothing(&*driver, &queue).await;
    let new = message(&queue, 1_000);
    publish(&*driver, &[new]).await;
    assert_eq!(numbers(&take(&*driver, &queue, 1).await), [1_000]);
    assert_eq!(take(&*driver, &other, 5).await.len(), 5);
}

async fn a_message_for_no_queue_is_refused_alone(fixture: Fixture) {
    let (queue, missing) = (executor("one"), executor("missing"));
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    let batch = [
        message(&queue, 0),
        message(&missing, 1),
        message(&queue, 2),
        message(&missing, 3),
    ];
    let answers = driver.publish(&batch).await.unwrap();
    let refusal = Err(Refusal::NoQueue(missing.to_string()));
    assert_eq!(answers, [Ok(()), refusal.clone(), Ok(()), refusal]);
    assert_eq!(numbers(&take(&*driver, &queue, 2).await), [0, 2]);
    driver.declare(&missing).await.unwrap();
    assert_nothing(&*driver, &missing).await;
}

async fn fetching_from_no_queue_is_an_error(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(&[]).await;
    let nothing = driver.fetch(&queue, 1, Duration::ZERO).await;
    assert!(nothing.is_err(), "{nothing:?}");
    driver.settle(&queue, &[]).await.unwrap();
    // A waiting fetch fails when its queue is deleted.
    driver.declare(&queue).await.unwrap();
    let (fetched, deleted) = tokio::join!(
        driver.fetch(&queue, 1, DEADLINE),
        driver.delete(&queue, false)
    );
    assert!(deleted.unwrap());
    assert!(fetched.is_err(), "{fetched:?}");
}

async fn existing_queues_are_counted_once(fixture: Fixture) {
    let (queue, missing) = (executor("one"), executor("missing"));
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..3)).await;
    take(&*driver, &queue, 1).await;
    assert_counts(&*driver, &queue, 2, 1).await;
    let asked = [missing.clone(), queue.clone(), missing, queue.clone()];
    let stats = driver.stats(&asked).await.unwrap();
    assert_eq!(stats.unanswered, [], "a missing queue is no silent one");
    let found: Vec<_> = stats
        .queues
        .iter()
        .filter(|s| asked.contains(&s.queue))
        .map(|s| (&s.queue, s.ready, s.unsettled))
        .collect();
    assert_eq!(found, [(&queue, 2, 1)]);
}

/// Does nothing for a product without positions.
async fn positions_stay_before_an_unsettled_message(fixture: Fixture) {
    let queue = QueueId::Results;
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..3)).await;
    let held = take(&*driver, &queue, 3).await;
    ack(&*driver, &queue, &held[1..]).await;
    assert_counts(&*driver, &queue, 0, 1).await;
    let Some(then) = settled(&*driver, &queue).await else {
        return;
    };
    assert!(then.position < then.newest, "{then:?}");
    publish(&*driver, &messages(&queue, 3..6)).await;
    let newer = take(&*driver, &queue, 3).await;
    ack(&*driver, &queue, &newer).await;
    assert_counts(&*driver, &queue, 0, 1).await;
    let now = settled(&*driver, &queue).await.unwrap();
    assert!(now.position < then.newest, "{then:?}, {now:?}");
    assert!(now.newest > then.newest, "{then:?}, {now:?}");
    ack(&*driver, &queue, &held[..1]).await;
    assert_counts(&*driver, &queue, 0, 0).await;
    let end = settled(&*driver, &queue).await.unwrap();
    assert_eq!((end.position, end.newest), (now.newest, now.newest));
}

async fn settled(driver: &dyn Driver, queue: &QueueId) -> Option<SettledTo> {
    let stats = driver.stats(std::slice::from_ref(queue)).await.unwrap();
    stats.of(queue).unwrap().settled
}

async fn a_process_that_never_used_a_queue_counts_it(fixture: Fixture) {
    let (queue, other) = (executor("one"), executor("two"));
    let user = fixture.open(&[queue.clone(), other.clone()]).await;
    publish(&*user, &messages(&queue, 0..4)).await;
    publish(&*user, &messages(&other, 0..2)).await;
    let stranger = fixture.open(&[]).await;
    let asked = [queue.clone(), other.clone()];
    // Some products update their counts late.
    let give_up = Instant::now() + DEADLINE;
    loop {
        let stats = stranger.stats(&asked).await.unwrap();
        let ready = |queue: &QueueId| stats.of(queue).map(|s| s.ready);
        let counted = (ready(&queue), ready(&other));
        if counted == (Some(4), Some(2)) {
            return;
        }
        assert!(Instant::now() < give_up, "wrong counts: {counted:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn counts_without_the_deliveries_of_others_say_so(fixture: Fixture) {
    let queue = executor("one");
    let holder = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*holder, &messages(&queue, 0..1)).await;
    let held = take(&*holder, &queue, 1).await;
    let stranger = fixture.open(&[]).await;
    let stats = stranger.stats(std::slice::from_ref(&queue)).await.unwrap();
    let counted = stats.of(&queue).unwrap();
    let is_counted = counted.ready + counted.unsettled > 0;
    assert!(
        is_counted || counted.coverage != Coverage::All,
        "{counted:?}"
    );
    ack(&*holder, &queue, &held).await;
    assert_counts(&*holder, &queue, 0, 0).await;
    let stats = holder.stats(std::slice::from_ref(&queue)).await.unwrap();
    let counted = stats.of(&queue).unwrap();
    assert_eq!(counted.coverage, Coverage::All, "it is the only consumer");
}
