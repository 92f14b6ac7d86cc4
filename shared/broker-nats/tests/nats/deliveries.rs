//! Publishing and fetching at the limits of streams and consumers.

use bytes::Bytes;
use cueline_broker::{Driver, ErrorKind, QueueId, Refusal, Settlement};
use cueline_broker_nats::{NatsOptions, StreamLimits};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::{SOON, eventually};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

use crate::fixture::{
    FETCH_WAIT, ack, connect, declare, fetch_all, message, message_count, messages, numbers,
    on_each_version, patient, publish, publish_one, raw_client, settle, start, with_queue,
};

/// Without a report of the server, the driver looks a queue up again after this time.
const LOOKED_UP_AGAIN: Duration = Duration::from_secs(30);

/// A permission such as `cueline.request._._.*` is for one token. A slash in it must not look like a namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_one_token_for_its_job_names_no_namespace() {
    on_each_version(async |version| {
        let server = start(version);
        let driver = connect(&server).await;
        declare(&driver, &QueueId::Requests).await;
        let client = raw_client(&server).await;
        for token in ["team-a%2Freport", "team-a/report", "team-a.report"] {
            let subject = format!("cueline.request._._.{token}");
            client.publish(subject, Bytes::new()).await.unwrap();
        }
        client.flush().await.unwrap();
        let fetched = fetch_all(&driver, &QueueId::Requests, 3).await;
        let topics: Vec<&str> = fetched.iter().map(|d| d.topic.as_str()).collect();
        assert_eq!(
            topics,
            ["team-a%2Freport", "team-a%2Freport", "team-a/report"]
        );
    })
    .await;
}

/// At a delivery limit, the consumer would leave the message in the work queue for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_has_no_last_delivery() {
    on_each_version(async |version| {
        let server = start(version);
        let (driver, queue) = with_queue(&server, patient()).await;
        publish(&driver, &messages(&queue, 0..1)).await;
        for deliveries in 1..20 {
            let fetched = fetch_all(&driver, &queue, 1).await;
            assert_eq!(fetched[0].deliveries, deliveries);
            let retry = Settlement::Retry(Duration::ZERO);
            settle(&driver, &queue, &fetched, retry).await;
        }
        let last = fetch_all(&driver, &queue, 1).await;
        ack(&driver, &queue, &last).await;
        assert_eq!(message_count(&driver).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_refuses_messages_and_keeps_those_that_it_has() {
    on_each_version(async |version| {
        let server = start(version);
        let small = NatsOptions {
            limits: StreamLimits {
                max_bytes: Some(20_000),
                ..StreamLimits::default()
            },
            ..patient()
        };
        let (driver, queue) = with_queue(&server, small).await;
        let mut batch = messages(&queue, 0..1_000);
        for message in &mut batch {
            message.payload = Bytes::from(format!("{:0100}", message.id.parse::<u32>().unwrap()));
        }
        let outcomes = driver.publish(&batch).await.unwrap();
        let stored = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!((20..200).contains(&stored), "{stored}");
        assert_eq!(outcomes[..stored], vec![Ok(()); stored]);
        let full = Err(Refusal::Full {
            queue: queue.to_string(),
            limit: stored as u64,
        });
        assert_eq!(outcomes[stored..], vec![full; 1_000 - stored]);
        let all = fetch_all(&driver, &queue, stored).await;
        assert_eq!(numbers(&all), (0..stored).collect::<Vec<_>>());
        ack(&driver, &queue, &all).await;
        eventually("there is room", SOON, async || {
            publish_one(&driver, &batch[999]).await
        })
        .await
        .unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_another_process_deletes_is_gone_for_all() {
    on_each_version(async |version| {
        let server = start(version);
        let options = NatsOptions {
            // A request without a reply takes this long. The test allows one.
            request_timeout: Duration::from_secs(10),
            ..patient()
        };
        let (driver, queue) = with_queue(&server, options).await;
        let other = connect(&server).await;
        publish(&driver, &messages(&queue, 0..1)).await;
        let first = fetch_all(&driver, &queue, 1).await;
        ack(&driver, &queue, &first).await;
        let start = Instant::now();
        let (fetched, deleted) =
            tokio::join!(driver.fetch(&queue, 10, SOON), other.delete(&queue, false));
        assert!(deleted.unwrap());
        let mut error = fetched.unwrap_err();
        if error.kind() == ErrorKind::Transient {
            // A request that reaches the server during the deletion may get no reply. The next request gets one.
            error = driver.fetch(&queue, 10, FETCH_WAIT).await.unwrap_err();
        }
        assert_eq!(error.kind(), ErrorKind::Permanent, "{error}");
        let elapsed = start.elapsed();
        assert!(elapsed < LOOKED_UP_AGAIN, "the fetch failed too late");
        // The server reports the deletion.
        let no_queue = Refusal::NoQueue(queue.to_string());
        eventually(
            "the publisher knows of the deletion",
            SOON,
            async || match publish_one(&driver, &message(&queue, 5)).await {
                Err(refusal) if refusal == no_queue => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await
        .unwrap();
        let elapsed = start.elapsed();
        assert!(
            elapsed < LOOKED_UP_AGAIN,
            "the publish was refused too late"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_dropped_fetch_come_with_the_next_one() {
    on_each_version(async |version| {
        let server = start(version);
        let options = NatsOptions {
            // No message is delivered again while the test runs.
            ack_wait: SOON * 5,
            ..patient()
        };
        let (driver, queue) = with_queue(&server, options.clone()).await;
        let start = Instant::now();
        let mut all = Vec::new();
        for n in 0..200 {
            let one = messages(&queue, n..n + 1);
            // Drop the fetch at a random point of its work: whichever branch ends first wins.
            tokio::select! {
                fetched = driver.fetch(&queue, 3, SOON) => all.extend(fetched.unwrap()),
                () = publish(&driver, &one) => {}
            }
        }
        while message_count(&driver).await > all.len() as u64 {
            all.extend(driver.fetch(&queue, 10, FETCH_WAIT).await.unwrap());
        }
        assert!(start.elapsed() < options.ack_wait, "{:?}", start.elapsed());
        assert!(all.len() > 50, "{}", all.len());
        assert!(all.iter().all(|d| !d.redelivered));
        assert!(numbers(&all).is_sorted());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_may_be_larger_than_the_window_and_an_id_longer_than_a_header() {
    let server = start(Version::V2_10);
    let narrow = NatsOptions {
        max_in_flight: 3,
        ..patient()
    };
    let (driver, queue) = with_queue(&server, narrow).await;
    let mut batch = messages(&queue, 0..500);
    batch[7].id = "i".repeat(10_000);
    publish(&driver, &batch).await;
    let all = fetch_all(&driver, &queue, 500).await;
    assert_eq!(numbers(&all), (0..500).collect::<Vec<_>>());
    ack(&driver, &queue, &all).await;
    assert_eq!(message_count(&driver).await, 0);
}

/// A scheduler must not run out of memory because another client fills the results queue with large messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_asks_for_16_mib_at_most() {
    const COUNT: usize = 24;
    on_each_version(async |version| {
        let server = start(version);
        let (driver, queue) = with_queue(&server, patient()).await;
        let largest = driver.capabilities().max_payload_bytes;
        for number in 0..COUNT {
            let mut outgoing = message(&queue, number);
            outgoing.payload = Bytes::from(vec![b'x'; largest]);
            publish(&driver, &[outgoing]).await;
        }
        let mut left = COUNT;
        while left > 0 {
            let fetched = driver.fetch(&queue, COUNT, FETCH_WAIT).await.unwrap();
            let bytes: usize = fetched.iter().map(|d| d.payload.len()).sum();
            assert!(bytes <= 16 << 20, "{bytes} bytes");
            ack(&driver, &queue, &fetched).await;
            left -= fetched.len();
        }
        assert_eq!(message_count(&driver).await, 0);
    })
    .await;
}

/// A stream may have messages from before the server's limit was lowered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_larger_than_a_fetch_asks_for_is_delivered() {
    on_each_version(async |version| {
        let large = |_: &Path| Ok("max_payload: 33554432".to_owned());
        let mut server = Nats::start_with(version, large).unwrap();
        let declaring = connect(&server).await;
        declare(&declaring, &QueueId::Requests).await;
        let client = raw_client(&server).await;
        let sizes = [10, 17 << 20, 20];
        for bytes in sizes {
            let payload = Bytes::from(vec![b'x'; bytes]);
            // The reply says that the stream has stored it.
            client
                .request("cueline.request._._.report", payload)
                .await
                .unwrap();
        }
        declaring.close().await;
        server.stop().unwrap();
        server.configure("max_payload: 1048576").unwrap();
        server.start_again().unwrap();
        let driver = connect(&server).await;
        let fetched = fetch_all(&driver, &QueueId::Requests, sizes.len()).await;
        let arrived: Vec<usize> = fetched.iter().map(|d| d.payload.len()).collect();
        assert_eq!(arrived, sizes);
    })
    .await;
}
