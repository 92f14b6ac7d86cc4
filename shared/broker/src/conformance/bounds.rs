//! Each limit is enforced, with the refusal that the port defines.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::Limits;
use super::fixture::{
    DEADLINE, Fixture, ack, assert_counts, executor, message, messages, numbers, publish,
    publish_one, take,
};
use crate::driver::Refusal;
use crate::error::ErrorKind;

super::cases![
    Nothing: the_largest_batch_is_taken_and_a_larger_one_refused,
    Nothing: the_largest_payload_is_taken_and_a_larger_one_refused_alone,
    Nothing: payloads_and_topics_come_back_as_they_were,
    ExactLimit: a_full_queue_refuses_and_has_room_after_acks,
    Nothing: a_queue_far_past_its_limit_refuses_and_has_room_later,
    Nothing: a_fetch_is_bounded_by_max,
    Nothing: a_fetch_waits_and_wakes,
    Nothing: a_fetch_gives_up_after_its_wait,
    Nothing: a_cancelled_fetch_loses_nothing,
];

async fn the_largest_batch_is_taken_and_a_larger_one_refused(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    let max = driver.capabilities().max_batch;
    assert_eq!(driver.publish(&[]).await.unwrap(), []);
    let answers = driver.publish(&messages(&queue, 0..max)).await.unwrap();
    assert_eq!(answers, vec![Ok(()); max]);
    let refused = driver
        .publish(&messages(&queue, max..=2 * max))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Permanent);
    assert_eq!(
        numbers(&take(&*driver, &queue, max).await),
        (0..max).collect::<Vec<_>>()
    );
    assert_counts(&*driver, &queue, 0, max as u64).await;
}

async fn the_largest_payload_is_taken_and_a_larger_one_refused_alone(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    let limit = driver.capabilities().max_payload_bytes;
    let largest = Bytes::from(vec![b'a'; limit]);
    let mut batch = messages(&queue, 0..3);
    batch[0].payload = largest.clone();
    batch[1].payload = Bytes::from(vec![b'b'; limit + 1]);
    let bytes = limit + 1;
    let answers = driver.publish(&batch).await.unwrap();
    assert_eq!(
        answers,
        [Ok(()), Err(Refusal::TooLarge { bytes, limit }), Ok(())]
    );
    let came = take(&*driver, &queue, 2).await;
    assert!(came[0].payload == largest, "the largest came back changed");
    assert_eq!(numbers(&came[1..]), [2]);
}

async fn payloads_and_topics_come_back_as_they_were(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    let everything: Vec<u8> = (0..=255).collect();
    let sent: [(&str, Bytes); 5] = [
        ("plain", Bytes::from("text")),
        ("empty", Bytes::new()),
        ("bytes", Bytes::from(everything)),
        ("a.b *>#/% 报表", Bytes::from("\0")),
        ("'; DROP TABLE message; --", Bytes::from("it's")),
    ];
    for (n, (topic, payload)) in sent.iter().enumerate() {
        let mut outgoing = message(&queue, n);
        outgoing.topic = (*topic).into();
        outgoing.payload = payload.clone();
        assert_eq!(publish_one(&*driver, &outgoing).await, Ok(()), "{topic}");
    }
    let came = take(&*driver, &queue, sent.len()).await;
    let came: Vec<(&str, Bytes)> = came
        .iter()
        .map(|d| (d.topic.as_str(), d.payload.clone()))
        .collect();
    assert_eq!(came, sent);
}

async fn a_full_queue_refuses_and_has_room_after_acks(fixture: Fixture) {
    let limits = Limits {
        queue_limit: Some(20),
        ..Limits::default()
    };
    let (queue, other) = (executor("one"), executor("two"));
    let driver = fixture
        .open_with(limits, &[queue.clone(), other.clone()])
        .await;
    publish(&*driver, &messages(&queue, 0..15)).await;
    let mut batch = messages(&queue, 15..25);
    batch.push(message(&other, 0));
    let answers = driver.publish(&batch).await.unwrap();
    let full = Err(Refusal::Full {
        queue: queue.to_string(),
        limit: 20,
    });
    assert_eq!(answers[..5], vec![Ok(()); 5]);
    assert_eq!(answers[5..10], vec![full.clone(); 5]);
    assert_eq!(answers[10], Ok(()), "another queue has room");

    let some = take(&*driver, &queue, 3).await;
    assert_eq!(publish_one(&*driver, &message(&queue, 30)).await, full);
    ack(&*driver, &queue, &some).await;
    assert_counts(&*driver, &queue, 17, 0).await;
    publish(&*driver, &messages(&queue, 40..43)).await;
    assert_eq!(publish_one(&*driver, &message(&queue, 50)).await, full);
    let expected: Vec<usize> = (3..20).chain(40..43).collect();
    assert_eq!(numbers(&take(&*driver, &queue, 20).await), expected);
}

async fn a_queue_far_past_its_limit_refuses_and_has_room_later(fixture: Fixture) {
    const LIMIT: usize = 20;
    let limits = Limits {
        queue_limit: Some(LIMIT as u64),
        ..Limits::default()
    };
    let (queue, other) = (executor("one"), executor("two"));
    let driver = fixture
        .open_with(limits, &[queue.clone(), other.clone()])
        .await;
    let full = Err(Refusal::Full {
        queue: queue.to_string(),
        limit: LIMIT as u64,
    });
    publish(&*driver, &messages(&queue, 0..LIMIT)).await;
    let mut taken = LIMIT;
    loop {
        let answer = publish_one(&*driver, &message(&queue, taken)).await;
        if answer == full {
            break;
        }
        assert_eq!(answer, Ok(()));
        taken += 1;
        assert!(taken < LIMIT * 10, "{taken} messages in a queue of {LIMIT}");
    }
    publish(&*driver, &messages(&other, 0..1)).await;
    let all = take(&*driver, &queue, taken).await;
    assert_eq!(numbers(&all), (0..taken).collect::<Vec<_>>());
    ack(&*driver, &queue, &all).await;
    assert_counts(&*driver, &queue, 0, 0).await;
    let give_up = Instant::now() + DEADLINE;
    while publish_one(&*driver, &message(&queue, taken)).await == full {
        assert!(
            Instant::now() < give_up,
            "the queue is empty but still refuses messages"
        );
    }
    assert_eq!(numbers(&take(&*driver, &queue, 1).await), [taken]);
}

async fn a_fetch_is_bounded_by_max(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    publish(&*driver, &messages(&queue, 0..100)).await;
    let wait = Duration::from_secs(1);
    assert!(driver.fetch(&queue, 0, wait).await.unwrap().is_empty());
    // All messages are ready, but the product may be slow.
    let wait = DEADLINE;
    let mut all = Vec::new();
    for max in [1, 2, 7, 30] {
        let came = driver.fetch(&queue, max, wait).await.unwrap();
        assert!(
            !came.is_empty() && came.len() <= max,
            "{} of {max}",
            came.len()
        );
        all.extend(numbers(&came));
    }
    let rest = take(&*driver, &queue, 100 - all.len()).await;
    all.extend(numbers(&rest));
    assert_eq!(all, (0..100).collect::<Vec<_>>());
}

async fn a_fetch_waits_and_wakes(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    for n in 0..20 {
        let waiting = tokio::spawn({
            let (driver, queue) = (Arc::clone(&driver), queue.clone());
            async move { driver.fetch(&queue, 10, DEADLINE * 2).await }
        });
        tokio::task::yield_now().await;
        publish(&*driver, &[message(&queue, n)]).await;
        let published = Instant::now();
        let came = waiting.await.unwrap().unwrap();
        assert_eq!(numbers(&came), [n]);
        assert!(published.elapsed() < DEADLINE, "woke too late");
        ack(&*driver, &queue, &came).await;
    }
}

async fn a_fetch_gives_up_after_its_wait(fixture: Fixture) {
    let queue = executor("one");
    let driver = fixture.open(std::slice::from_ref(&queue)).await;
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let start = Instant::now();
        assert!(driver.fetch(&queue, 5, wait).await.unwrap().is_empty());
        assert!(start.elapsed() >= wait, "gave up early");
        assert!(start.elapsed() < wait + DEADLINE, "gave up late");
    }
}

async fn a_cancelled_fetch_loses_nothing(fixture: Fixture) {
    const COUNT: usize = 200;
    let queue = executor("one");
    let limits = Limits {
        ack_wait: Duration::from_secs(1),
        queue_limit: None,
    };
    let driver = fixture
        .open_with(limits, std::slice::from_ref(&queue))
        .await;
    let mut all = Vec::new();
    for n in 0..COUNT {
        let fetch = driver.fetch(&queue, 1, DEADLINE);
        let one = [message(&queue, n)];
        // Drop the fetch at a random point of its work: whichever branch ends first wins.
        tokio::select! {
            () = publish(&*driver, &one) => {}
            came = fetch => {
                let came = came.unwrap();
                all.extend(numbers(&came));
                ack(&*driver, &queue, &came).await;
                publish(&*driver, &one).await;
            }
        }
    }
    let give_up = Instant::now() + DEADLINE;
    all.sort_unstable();
    all.dedup();
    while all.len() < COUNT && Instant::now() < give_up {
        let came = driver
            .fetch(&queue, COUNT, Duration::from_secs(1))
            .await
            .unwrap();
        ack(&*driver, &queue, &came).await;
        all.extend(numbers(&came));
        all.sort_unstable();
        all.dedup();
    }
    assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
}
