//! Message ids: how long a stream remembers them, and that no guarantee relies on them.

use std::time::Duration;

use cueline_broker::Driver;
use cueline_broker_nats::NatsOptions;
use cueline_test_servers::nats::Version;
use cueline_test_support::{SOON, eventually};

use crate::fixture::{
    ack, connect_with, fetch_all, message_count, messages, numbers, on_each_version, patient,
    publish, start, with_queue,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_forgets_the_ids_of_acked_messages() {
    on_each_version(async |version| {
        let mut server = start(version);
        let (driver, queue) = with_queue(&server, patient()).await;
        let batch = messages(&queue, 0..3);
        for _ in 0..2 {
            publish(&driver, &batch).await;
        }
        let all = fetch_all(&driver, &queue, 3).await;
        ack(&driver, &queue, &all).await;
        assert_eq!(message_count(&driver).await, 0, "each was stored once");
        server.kill().unwrap();
        server.start_again().unwrap();
        publish(&driver, &batch).await;
        assert_eq!(numbers(&fetch_all(&driver, &queue, 3).await), [0, 1, 2]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_can_be_used_again_after_the_window_and_in_a_new_queue() {
    let server = start(Version::V2_10);
    let (driver, queue) = with_queue(&server, patient()).await;
    let first = messages(&queue, 0..1);
    publish(&driver, &first).await;
    driver.delete(&queue, false).await.unwrap();
    driver.declare(&queue).await.unwrap();
    publish(&driver, &first).await;
    let again = fetch_all(&driver, &queue, 1).await;
    ack(&driver, &queue, &again).await;

    let short = NatsOptions {
        prefix: "short".into(),
        duplicate_window: Duration::from_millis(300),
        ..patient()
    };
    let (driver, queue) = with_queue(&server, short).await;
    eventually("a second copy is stored", SOON, async || {
        publish(&driver, &first).await;
        match message_count(&driver).await {
            // A publish that is repeated after a lost answer may store one more.
            2.. => Ok(queue.clone()),
            count => Err(format!("{count} messages")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_window_every_message_is_stored() {
    let server = start(Version::V2_12);
    let no_window = NatsOptions {
        duplicate_window: Duration::ZERO,
        ..patient()
    };
    let driver = connect_with(&server, no_window.clone()).await;
    assert!(!driver.capabilities().deduplicates);
    let (driver, queue) = with_queue(&server, no_window).await;
    for _ in 0..2 {
        publish(&driver, &messages(&queue, 0..3)).await;
    }
    let all = fetch_all(&driver, &queue, 6).await;
    assert_eq!(numbers(&all), [0, 1, 2, 0, 1, 2]);
}
