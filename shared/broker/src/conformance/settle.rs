//! Acks are final, dead letters keep their reason, and unknown receipts are ignored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::fixture::{
    DEADLINE, Fixture, ack, assert_counts, assert_each_once, assert_nothing, executor, message,
    messages, number, numbers, publish, settle, sorted, take,
};
use crate::address::QueueId;
use crate::dead::DeadLetter;
use crate::driver::{Receipt, Settlement};

super::cases![
    Nothing: an_ack_in_any_order_is_final,
    Nothing: unknown_receipts_are_ignored,
    Nothing: settling_twice_changes_nothing,
    Nothing: one_call_settles_each_in_its_own_way,
    Nothing: a_dead_letter_keeps_its_reason_and_origin,
    Nothing: a_dead_letter_refused_again_stays_a_dead_letter,
    Nothing: consumers_of_one_queue_never_share_a_message,
    Nothing: stats_count_ready_and_unsettled,
];

async fn an_ack_in_any_order_is_final(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..100)).await;
    let all = take(&*driver, &queue, 100).await;
    let (odd, even): (Vec<_>, Vec<_>) = all.into_iter().partition(|d| number(d) % 2 == 1);
    ack(&*driver, &queue, &odd).await;
    assert_counts(&*driver, &queue, 0, 50).await;
    for one in even.iter().rev() {
        ack(&*driver, &queue, std::slice::from_ref(one)).await;
    }
    assert_counts(&*driver, &queue, 0, 0).await;
    assert_nothing(&*driver, &queue).await;
}

async fn unknown_receipts_are_ignored(fixture: Fixture) {
    let (queue, other) = (executor("one"), executor("two"));
    let driver = fixture.open(&[queue.clone(), other.clone()]).await;
    publish(&*driver, &messages(&queue, 0..3)).await;
    let all = take(&*driver, &queue, 3).await;
    for how in [
        Settlement::Ack,
        Settlement::Retry(Duration::ZERO),
        Settlement::Dead("no such".into()),
    ] {
        let unknown: Vec<_> = [0, 1, 77, u64::MAX]
            .into_iter()
            .filter(|receipt| all.iter().all(|d| d.receipt.0 != *receipt))
            .map(|receipt| (Receipt(receipt), how.clone()))
            .collect();
        driver.settle(&queue, &unknown).await.unwrap();
        // The receipts are known, but belong to another queue.
        settle(&*driver, &other, &all, &how).await;
    }
    driver.settle(&queue, &[]).await.unwrap();
    assert_counts(&*driver, &queue, 0, 3).await;
    assert_counts(&*driver, &other, 0, 0).await;
}

async fn settling_twice_changes_nothing(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..2)).await;
    let first = take(&*driver, &queue, 1).await;
    ack(&*driver, &queue, &first).await;
    ack(&*driver, &queue, &first).await;
    settle(&*driver, &queue, &first, &Settlement::Retry(Duration::ZERO)).await;
    settle(&*driver, &queue, &first, &Settlement::Dead("late".into())).await;
    assert_eq!(numbers(&take(&*driver, &queue, 1).await), [1]);
    assert_counts(&*driver, &queue, 0, 1).await;
}

async fn one_call_settles_each_in_its_own_way(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(&[queue.clone(), QueueId::Dead]).await;
    publish(&*driver, &messages(&queue, 0..30)).await;
    let all = take(&*driver, &queue, 30).await;
    let settlements: Vec<_> = all
        .iter()
        .map(|delivery| {
            let how = match number(delivery) % 3 {
                0 => Settlement::Ack,
                1 => Settlement::Retry(Duration::ZERO),
                _ => Settlement::Dead(format!("reason {}", number(delivery))),
            };
            (delivery.receipt, how)
        })
        .collect();
    driver.settle(&queue, &settlements).await.unwrap();
    let again = take(&*driver, &queue, 10).await;
    assert_eq!(sorted(&again), (1..30).step_by(3).collect::<Vec<_>>());
    let dead = take(&*driver, &QueueId::Dead, 10).await;
    let mut reasons: Vec<String> = dead
        .iter()
        .map(|d| DeadLetter::decode(&d.payload).unwrap().reason)
        .collect();
    reasons.sort();
    let mut expected: Vec<String> = (2..30).step_by(3).map(|n| format!("reason {n}")).collect();
    expected.sort();
    assert_eq!(reasons, expected);
    ack(&*driver, &queue, &again).await;
    assert_counts(&*driver, &queue, 0, 0).await;
}

async fn a_dead_letter_keeps_its_reason_and_origin(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(&[queue.clone(), QueueId::Dead]).await;
    let payloads = [
        Bytes::from("{\"v\":9}"),
        Bytes::from_static(b"\xff\x00\xfe"),
    ];
    for payload in &payloads {
        let mut outgoing = message(&queue, 0);
        outgoing.payload = payload.clone();
        outgoing.id = format!("{payload:?}");
        publish(&*driver, &[outgoing]).await;
    }
    let all = take(&*driver, &queue, 2).await;
    let how = Settlement::Dead("unknown version 9, \"known\" is 1\n".into());
    settle(&*driver, &queue, &all, &how).await;
    assert_counts(&*driver, &queue, 0, 0).await;

    let dead = take(&*driver, &QueueId::Dead, 2).await;
    let letters: Vec<DeadLetter> = dead
        .iter()
        .map(|d| DeadLetter::decode(&d.payload).unwrap())
        .collect();
    for (letter, payload) in letters.iter().zip(&payloads) {
        assert_eq!(letter.reason, "unknown version 9, \"known\" is 1\n");
        assert_eq!(letter.queue, queue.to_string());
        assert_eq!(letter.topic, "invoices");
        assert_eq!(letter.payload, payload);
        assert!(letter.at_ms > 1_600_000_000_000, "{}", letter.at_ms);
    }
    ack(&*driver, &QueueId::Dead, &dead).await;
    assert_counts(&*driver, &QueueId::Dead, 0, 0).await;
}

async fn a_dead_letter_refused_again_stays_a_dead_letter(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(&[queue.clone(), QueueId::Dead]).await;
    publish(&*driver, &messages(&queue, 0..1)).await;
    let all = take(&*driver, &queue, 1).await;
    settle(&*driver, &queue, &all, &Settlement::Dead("first".into())).await;
    let dead = take(&*driver, &QueueId::Dead, 1).await;
    let how = Settlement::Dead("second".into());
    settle(&*driver, &QueueId::Dead, &dead, &how).await;
    let still = take(&*driver, &QueueId::Dead, 1).await;
    let letter = DeadLetter::decode(&still[0].payload).unwrap();
    assert_eq!(letter.reason, "first");
    assert_eq!(letter.payload, Bytes::from("0"));
}

async fn consumers_of_one_queue_never_share_a_message(fixture: Fixture) {
    const COUNT: usize = 3_000;
    let queue = QueueId::Requests;
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let mut consumers = JoinSet::new();
    for max in [1, 3, 10, 100] {
        let (driver, queue) = (Arc::clone(&driver), queue.clone());
        let taken = Arc::clone(&taken);
        consumers.spawn(async move {
            let mut own = Vec::new();
            // A busy broker may deliver nothing for a while.
            while taken.load(Ordering::SeqCst) < COUNT {
                let came = driver
                    .fetch(&queue, max, Duration::from_secs(1))
                    .await
                    .unwrap();
                taken.fetch_add(came.len(), Ordering::SeqCst);
                own.extend(numbers(&came));
                ack(&*driver, &queue, &came).await;
            }
            own
        });
    }
    for start in (0..COUNT).step_by(50) {
        publish(&*driver, &messages(&queue, start..start + 50)).await;
    }
    let all = timeout(DEADLINE, consumers.join_all())
        .await
        .unwrap()
        .concat();
    assert_each_once(&all, COUNT);
}

async fn stats_count_ready_and_unsettled(fixture: Fixture) {
    let (queue, other) = (executor("one"), QueueId::Requests);
    let driver = fixture.open(&[queue.clone(), other.clone()]).await;
    publish(&*driver, &messages(&queue, 0..10)).await;
    assert_counts(&*driver, &queue, 10, 0).await;
    assert_counts(&*driver, &other, 0, 0).await;
    let some = take(&*driver, &queue, 4).await;
    assert_counts(&*driver, &queue, 6, 4).await;
    ack(&*driver, &queue, &some[..1]).await;
    assert_counts(&*driver, &queue, 6, 3).await;
    let how = Settlement::Retry(Duration::ZERO);
    settle(&*driver, &queue, &some[1..2], &how).await;
    // A returned message may count as ready or unsettled until it is delivered again.
    let again = take(&*driver, &queue, 7).await;
    assert!(numbers(&again).contains(&number(&some[1])));
    assert_counts(&*driver, &queue, 0, 9).await;
}
