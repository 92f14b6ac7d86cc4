//! What is particular to a broker in a file: opening it, damage, full disks, growth.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Driver, ErrorKind, Outgoing, QueueId, Receipt, Settlement};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};

const WAIT: Duration = Duration::from_secs(5);

fn options() -> EmbeddedOptions {
    EmbeddedOptions {
        lock_wait: Duration::ZERO,
        ..EmbeddedOptions::default()
    }
}

async fn open(path: &Path) -> EmbeddedDriver {
    EmbeddedDriver::open(path, options()).await.unwrap()
}

fn messages(range: std::ops::Range<usize>, bytes: usize) -> Vec<Outgoing> {
    range
        .map(|i| Outgoing {
            queue: QueueId::Results,
            topic: "t".into(),
            id: i.to_string(),
            payload: Bytes::from(format!("{i:0bytes$}")),
        })
        .collect()
}

async fn publish(driver: &EmbeddedDriver, batch: &[Outgoing]) {
    let answers = driver.publish(batch).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// Fetches and acks `count` messages; their numbers in the order they came.
async fn consume(driver: &EmbeddedDriver, count: usize) -> Vec<usize> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let got = driver.fetch(&QueueId::Results, 1_000, WAIT).await.unwrap();
        assert!(!got.is_empty(), "only {} of {count} came", numbers.len());
        numbers.extend(got.iter().map(|d| {
            std::str::from_utf8(&d.payload)
                .unwrap()
                .parse::<usize>()
                .unwrap()
        }));
        let acks: Vec<(Receipt, Settlement)> =
            got.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
        driver.settle(&QueueId::Results, &acks).await.unwrap();
    }
    numbers
}

#[tokio::test]
async fn a_closed_file_is_free_for_the_next_and_a_closed_driver_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    let first = open(&path).await;
    first.declare(&QueueId::Results).await.unwrap();
    publish(&first, &messages(0..10, 20)).await;
    let refused = EmbeddedDriver::open(&path, options()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Transient);
    assert!(refused.to_string().contains("another process"), "{refused}");

    first.close().await;
    let late = first.publish(&messages(0..1, 20)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Closed);
    let late = first.fetch(&QueueId::Results, 1, WAIT).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Closed);

    let second = open(&path).await;
    assert_eq!(consume(&second, 10).await, (0..10).collect::<Vec<_>>());
}
