//! Answers that say nothing, and questions that nobody answers: each concerns its own message, and is no word about what became of it.

use async_nats::Client;
use cueline_broker::{Driver, ErrorKind, QueueId, Refusal, Settlement};
use cueline_broker_nats::{NatsDriver, NatsOptions, StreamLimits};
use cueline_test_servers::nats::{Nats, Version};
use futures_util::StreamExt as _;

use crate::ground::{executor, left, message, messages, options, publish, take, until, with};

async fn raw(server: &Nats) -> Client {
    async_nats::connect(server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_cannot_be_read_is_about_one_message_of_its_batch() {
    let server = Nats::start(Version::V2_12).unwrap();
    let queue = executor("one");
    let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
    // In the place of a stream that is not there.
    let client = raw(&server).await;
    let mut requests = client.subscribe("cueline.request.>").await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let reply = request.reply.unwrap();
            client.publish(reply, "so to say".into()).await.unwrap();
        }
    });
    let odd = message(&QueueId::Requests, 1);
    let batch = [message(&queue, 0), odd.clone(), message(&queue, 2)];
    let answers = driver.publish(&batch).await.unwrap();
    assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
    let unknown = matches!(&answers[1], Err(Refusal::Unknown { queue, .. }) if queue == "requests");
    assert!(unknown, "{answers:?}");
    // Where that is all, nothing is known of any message, and whoever publishes tries again by itself.
    let told = driver.publish(&[odd]).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_looked_at_once_for_all_that_it_refuses() {
    let server = Nats::start(Version::V2_12).unwrap();
    let queue = executor("one");
    let limited = NatsOptions {
        limits: StreamLimits {
            queue_limit: Some(2),
            ..StreamLimits::default()
        },
        ..options()
    };
    let driver = NatsDriver::connect(&server.url(), limited).await.unwrap();
    driver.declare(&queue).await.unwrap();
    // The server's clock has been read from now on, which is a look as well.
    publish(&driver, &messages(&queue, 0..2)).await;
    let client = raw(&server).await;
    let subject = "$JS.API.STREAM.INFO.CUELINE_TRIGGERS";
    let mut looks = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    let answers = driver.publish(&messages(&queue, 2..52)).await.unwrap();
    let full = Err(Refusal::Full {
        queue: queue.to_string(),
        limit: 2,
    });
    assert_eq!(answers, vec![full; 50]);
    // Ours comes after those of the driver, which have been answered.
    client.publish(subject, "last".into()).await.unwrap();
    let mut count = 0;
    while looks.next().await.unwrap().payload != "last" {
        count += 1;
    }
    assert_eq!(count, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_that_nobody_heard_are_not_settled_while_the_consumer_is_there() {
    let mut server = Nats::start(Version::V2_12).unwrap();
    let queue = executor("one");
    let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
    publish(&driver, &messages(&queue, 0..3)).await;
    let held = take(&driver, &queue, 3).await;
    let acks: Vec<_> = held.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
    // As without a leader: acks reach nobody.
    server.stop().unwrap();
    server
        .configure("mappings = { \"$JS.ACK.>\": \"nobody.>\" }")
        .unwrap();
    server.start_again().unwrap();
    until("the driver is back", || async {
        driver.stats(&[]).await.ok()
    })
    .await;
    let told = driver.settle(&queue, &acks).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    server.stop().unwrap();
    server.configure("").unwrap();
    server.start_again().unwrap();
    // The receipts are still good.
    until("they are settled", || async {
        driver.settle(&queue, &acks).await.ok()
    })
    .await;
    assert_eq!(left(&driver).await, 0);
}
