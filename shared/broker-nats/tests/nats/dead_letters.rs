//! Dead letters of unusual size, and a dead-letter queue without room.

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use bytes::Bytes;
use cueline_broker::{DeadLetter, DeadLetterSeal, Driver, ErrorKind, QueueId, Settlement};
use cueline_broker_nats::{NatsOptions, StreamLimits};
use cueline_test_servers::nats::Version;

use crate::fixture::{
    ack, connect, fetch_all, message, message_count, on_each_version, patient, publish, raw_client,
    settle, settlements, start, with_queue,
};

fn dead(reason: &str) -> Settlement {
    Settlement::Dead(reason.into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_of_the_largest_size_becomes_a_dead_letter_unchanged() {
    on_each_version(async |version| {
        let server = start(version);
        let (driver, queue) = with_queue(&server, patient()).await;
        driver.declare(&QueueId::Dead).await.unwrap();
        let largest = driver.capabilities().max_payload_bytes;
        assert_eq!(largest, (1 << 20) - (4 << 10));
        // JSON would need six bytes for each of these bytes.
        for (n, byte) in [0x01, b'"', 0xff].into_iter().enumerate() {
            let mut outgoing = message(&queue, n);
            outgoing.payload = Bytes::from(vec![byte; largest]);
            publish(&driver, &[outgoing.clone()]).await;
            let fetched = fetch_all(&driver, &queue, 1).await;
            let reason = "line 1\nline 2".repeat(1_000);
            settle(&driver, &queue, &fetched, dead(&reason)).await;
            let letters = fetch_all(&driver, &QueueId::Dead, 1).await;
            let letter = DeadLetter::decode(&letters[0].payload).unwrap();
            assert!(letter.payload == outgoing.payload, "the payload changed");
            assert!(letter.reason.starts_with("line 1\nline 2line 1\n"));
            let origin = (&*letter.queue, &*letter.topic);
            assert_eq!(origin, ("x.billing.one", "invoices"));
            ack(&driver, &QueueId::Dead, &letters).await;
        }
        assert_eq!(message_count(&driver).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_arrives_as_the_last_line_of_its_dead_letter() {
    let server = start(Version::V2_12);
    let sealing = NatsOptions {
        seal_dead_letters: Some(DeadLetterSeal::new(|letter| {
            [&letter[..], b"\n", &letter[..]].concat()
        })),
        ..patient()
    };
    let (driver, queue) = with_queue(&server, sealing).await;
    driver.declare(&QueueId::Dead).await.unwrap();
    let outgoing = message(&queue, 0);
    publish(&driver, std::slice::from_ref(&outgoing)).await;
    let fetched = fetch_all(&driver, &queue, 1).await;
    settle(&driver, &queue, &fetched, dead("line 1\nline 2")).await;
    let letters = fetch_all(&driver, &QueueId::Dead, 1).await;
    let payload = &letters[0].payload;
    let end = payload.len() / 2;
    assert_eq!(payload[end + 1..], payload[..end]);
    let letter = DeadLetter::decode(&payload[..end]).unwrap();
    assert_eq!(letter.reason, "line 1\nline 2");
    assert_eq!(letter.payload, outgoing.payload);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_too_long_for_a_subject_once_escaped_does_not_cut_the_connection() {
    let server = start(Version::V2_12);
    let driver = connect(&server).await;
    for queue in [QueueId::Requests, QueueId::Dead] {
        driver.declare(&queue).await.unwrap();
    }
    // The driver writes this topic three times as long, and a protocol line may have only 4,096 bytes.
    let topic = "~".repeat(2_000);
    let subject = format!("cueline.request._._.{topic}");
    let client = raw_client(&server).await;
    client.publish(subject, "{".into()).await.unwrap();
    let fetched = fetch_all(&driver, &QueueId::Requests, 1).await;
    assert_eq!(fetched[0].topic, topic);
    settle(&driver, &QueueId::Requests, &fetched, dead("why")).await;
    let letters = fetch_all(&driver, &QueueId::Dead, 1).await;
    let letter = DeadLetter::decode(&letters[0].payload).unwrap();
    assert_eq!((&*letter.reason, &letter.payload[..]), ("why", &b"{"[..]));
    assert!(topic.starts_with(&letter.topic) && letter.topic.len() > 256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_stays_unsettled_when_the_dead_letter_queue_is_full() {
    let server = start(Version::V2_12);
    let limited = NatsOptions {
        limits: StreamLimits {
            queue_limit: Some(2),
            ..StreamLimits::default()
        },
        ..patient()
    };
    let (driver, queue) = with_queue(&server, limited).await;
    driver.declare(&QueueId::Dead).await.unwrap();
    let (mut outcomes, mut last) = (Vec::new(), Vec::new());
    for n in 0..3 {
        publish(&driver, &[message(&queue, n)]).await;
        let fetched = fetch_all(&driver, &queue, 1).await;
        last = settlements(&fetched, &dead("why"));
        let settled = driver.settle(&queue, &last).await;
        outcomes.push(settled.map_err(|e| e.kind()));
    }
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(ErrorKind::Transient)]);
    assert_eq!(message_count(&driver).await, 3);
    let letters = fetch_all(&driver, &QueueId::Dead, 2).await;
    ack(&driver, &QueueId::Dead, &letters).await;
    // The receipt is still valid.
    driver.settle(&queue, &last).await.unwrap();
    let third = fetch_all(&driver, &QueueId::Dead, 1).await;
    let third = DeadLetter::decode(&third[0].payload).unwrap();
    assert_eq!(third.payload, "2");
}

/// The stream drops the second of two messages with one id. An account that may publish dead letters of its own must not
/// suppress those of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_other_client_knows_the_id_of_a_dead_letter() {
    on_each_version(async |version| {
        let server = start(version);
        let (driver, queue) = with_queue(&server, patient()).await;
        driver.declare(&QueueId::Dead).await.unwrap();
        let client = raw_client(&server).await;
        // The message below is the first one in the stream of triggers.
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, "CUELINE_TRIGGERS:1");
        let subject = "cueline.dead.billing.two.invoices";
        let sent = client.publish_with_headers(subject, headers, "forged".into());
        sent.await.unwrap();
        client.flush().await.unwrap();
        publish(&driver, &[message(&queue, 0)]).await;
        let fetched = fetch_all(&driver, &queue, 1).await;
        settle(&driver, &queue, &fetched, dead("why")).await;
        let letters = fetch_all(&driver, &QueueId::Dead, 2).await;
        let letter = DeadLetter::decode(&letters[1].payload).unwrap();
        assert_eq!(letter.reason, "why");
    })
    .await;
}
