//! Replies that leave a message's fate unknown, and requests without a reply. Each affects only its own message.

use cueline_broker::{Driver, ErrorKind, QueueId, Refusal, Settlement};
use cueline_broker_nats::{NatsOptions, StreamLimits};
use cueline_test_servers::nats::Version;
use cueline_test_support::{SOON, eventually};
use futures_util::StreamExt as _;

use crate::fixture::{
    fetch_all, message, message_count, messages, patient, publish, raw_client, settlements, start,
    with_queue,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_reply_makes_one_message_of_its_batch_unknown() {
    let server = start(Version::V2_12);
    let (driver, queue) = with_queue(&server, patient()).await;
    // A client sends these replies in place of a stream that does not exist.
    let client = raw_client(&server).await;
    let mut requests = client.subscribe("cueline.request.>").await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let reply = request.reply.unwrap();
            client.publish(reply, "not JSON".into()).await.unwrap();
        }
    });
    let unreadable = message(&QueueId::Requests, 1);
    let batch = [message(&queue, 0), unreadable.clone(), message(&queue, 2)];
    let outcomes = driver.publish(&batch).await.unwrap();
    assert_eq!((&outcomes[0], &outcomes[2]), (&Ok(()), &Ok(())));
    let unknown =
        matches!(&outcomes[1], Err(Refusal::Unknown { queue, .. }) if queue == "requests");
    assert!(unknown, "{outcomes:?}");
    // If all replies of a batch are unreadable, the call fails and the caller retries it.
    let error = driver.publish(&[unreadable]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_is_looked_up_once_for_a_batch() {
    let server = start(Version::V2_12);
    let limited = NatsOptions {
        limits: StreamLimits {
            queue_limit: Some(2),
            ..StreamLimits::default()
        },
        ..patient()
    };
    let (driver, queue) = with_queue(&server, limited).await;
    // The first publish also looks up the server's clock.
    publish(&driver, &messages(&queue, 0..2)).await;
    let client = raw_client(&server).await;
    let subject = "$JS.API.STREAM.INFO.CUELINE_TRIGGERS";
    let mut lookups = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    let outcomes = driver.publish(&messages(&queue, 2..52)).await.unwrap();
    let full = Err(Refusal::Full {
        queue: queue.to_string(),
        limit: 2,
    });
    assert_eq!(outcomes, vec![full; 50]);
    // This message comes after those of the driver, which have been answered.
    client.publish(subject, "last".into()).await.unwrap();
    let mut count = 0;
    while lookups.next().await.unwrap().payload != "last" {
        count += 1;
    }
    assert_eq!(count, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_without_responders_are_not_settled_while_the_consumer_exists() {
    let mut server = start(Version::V2_12);
    let (driver, queue) = with_queue(&server, patient()).await;
    publish(&driver, &messages(&queue, 0..3)).await;
    let fetched = fetch_all(&driver, &queue, 3).await;
    let acks = settlements(&fetched, &Settlement::Ack);
    // This looks like a consumer without a leader: acks have no responders.
    server.stop().unwrap();
    server
        .configure("mappings = { \"$JS.ACK.>\": \"nowhere.>\" }")
        .unwrap();
    server.start_again().unwrap();
    eventually("the driver is connected", SOON, async || {
        driver.stats(&[]).await
    })
    .await
    .unwrap();
    let error = driver.settle(&queue, &acks).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    server.stop().unwrap();
    server.configure("").unwrap();
    server.start_again().unwrap();
    // The receipts are still valid.
    eventually("the acks are settled", SOON, async || {
        driver.settle(&queue, &acks).await
    })
    .await
    .unwrap();
    assert_eq!(message_count(&driver).await, 0);
}

/// The server does not answer for one queue. The others are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_without_an_answer_is_listed_as_such() {
    let mut server = start(Version::V2_12);
    let (driver, queue) = with_queue(&server, patient()).await;
    driver.declare(&QueueId::Results).await.unwrap();
    driver.declare(&QueueId::Requests).await.unwrap();
    publish(&driver, &messages(&queue, 0..3)).await;
    let asked = [queue.clone(), QueueId::Results, QueueId::Requests];
    let stats = driver.stats(&asked).await.unwrap();
    assert_eq!(stats.unanswered, []);
    // This looks like a stream without a leader: the request has no responders.
    server.stop().unwrap();
    server
        .configure("mappings = { \"$JS.API.CONSUMER.INFO.CUELINE_RESULTS.results\": \"nowhere\" }")
        .unwrap();
    server.start_again().unwrap();
    let stats = eventually("the driver is connected", SOON, async || {
        let stats = driver.stats(&asked).await.map_err(|e| e.to_string())?;
        let is_counted = stats.of(&queue).is_some() && stats.of(&QueueId::Requests).is_some();
        is_counted.then_some(stats).ok_or("not yet".to_owned())
    });
    let stats = stats.await.unwrap();
    assert_eq!(stats.unanswered, [QueueId::Results]);
    assert!(stats.is_unanswered(&QueueId::Results));
    assert_eq!(stats.of(&QueueId::Results), None);
    assert_eq!(stats.of(&queue).map(|s| s.ready), Some(3));
}
