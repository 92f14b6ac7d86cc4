//! Behaviour of a broker in a file: opening it, damage, full disks, growth.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Driver, ErrorKind, Outgoing, QueueId, Receipt, Settlement, StartLog};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_test_support::SqliteThreads;
use sqlx::{ConnectOptions, Connection};

/// How long a call waits at most. What the tests wait for comes much earlier, except on a machine that stands still.
const WAIT: Duration = Duration::from_mins(1);

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

/// Fetches and acks `count` messages. Returns their numbers in the order of delivery.
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

/// sqlx takes a statement during which the thread ends for one that changed nothing.
#[tokio::test]
async fn a_publish_during_which_the_thread_of_the_file_ends_fails_and_the_next_one_is_written() {
    let threads = SqliteThreads::watch();
    let dir = tempfile::tempdir().unwrap();
    let driver = open(&dir.path().join("broker.db")).await;
    driver.declare(&QueueId::Results).await.unwrap();
    publish(&driver, &messages(0..1, 20)).await;
    threads.end_next("sqlx-sqlite");
    let lost = driver.publish(&messages(1..2, 20)).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Transient, "{lost}");
    publish(&driver, &messages(2..3, 20)).await;
    assert_eq!(consume(&driver, 2).await, [0, 2]);
    driver.close().await;
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
    let log = StartLog {
        group: "billing".into(),
        executor: "one".into(),
    };
    for late in [
        first.declare_log(&log).await,
        first.is_log_empty(&log).await.map(drop),
        first.append(&log, "start".into()).await,
        first.read_log(&log).await.map(drop),
        first.delete_log(&log).await,
    ] {
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
    }

    let second = open(&path).await;
    assert_eq!(consume(&second, 10).await, (0..10).collect::<Vec<_>>());
}

/// Messages are written by statements of several sizes, some of them without a transaction around them.
#[tokio::test]
async fn batches_of_each_size_are_in_the_file_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    let first = open(&path).await;
    first.declare(&QueueId::Results).await.unwrap();
    let mut next = 0;
    for size in [1, 2, 3, 127, 128, 129, 255, 256, 257, 1_000] {
        publish(&first, &messages(next..next + size, 20)).await;
        next += size;
    }
    first.close().await;
    let second = open(&path).await;
    let numbers = consume(&second, next).await;
    assert_eq!(numbers, (0..next).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_possibly_delivered_message_is_marked_redelivered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    let first = open(&path).await;
    first.declare(&QueueId::Results).await.unwrap();
    publish(&first, &messages(0..3, 20)).await;
    assert_eq!(
        first.fetch(&QueueId::Results, 1, WAIT).await.unwrap().len(),
        1
    );
    first.close().await;

    let second = open(&path).await;
    let inherited = second.fetch(&QueueId::Results, 3, WAIT).await.unwrap();
    assert_eq!(inherited.len(), 3);
    assert!(inherited.iter().all(|d| d.redelivered));
    publish(&second, &messages(3..4, 20)).await;
    let fresh = second.fetch(&QueueId::Results, 1, WAIT).await.unwrap();
    assert!(fresh.iter().all(|d| !d.redelivered && d.deliveries == 1));
}

/// Opens a file that must be refused and returns the message. The refused driver must not leave a lock behind.
async fn refused(path: &Path) -> String {
    let refused = EmbeddedDriver::open(path, options()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Permanent, "{refused}");
    assert!(
        refused.to_string().starts_with("failed to open"),
        "{refused}"
    );
    refused.to_string()
}

async fn sql(path: &Path, statement: &'static str) {
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true);
    let mut conn = options.connect().await.unwrap();
    sqlx::raw_sql(statement).execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
}

#[tokio::test]
async fn files_of_others_are_refused_and_left_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    let text = "dear diary, ".repeat(1_000);
    std::fs::write(&path, &text).unwrap();
    assert!(refused(&path).await.contains("not a database"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);

    let path = dir.path().join("other.db");
    sql(
        &path,
        "CREATE TABLE message (id INTEGER PRIMARY KEY, mine TEXT)",
    )
    .await;
    let before = std::fs::read(&path).unwrap();
    assert!(refused(&path).await.contains("another program"));
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let path = dir.path().join("missing").join("broker.db");
    refused(&path).await;
    refused(dir.path()).await;
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    open(&path).await.close().await;
    sql(&path, "PRAGMA user_version = 77").await;
    assert!(refused(&path).await.contains("version 77"));
}

/// Makes a file with messages and closes it.
async fn filled(path: &Path) {
    let driver = open(path).await;
    driver.declare(&QueueId::Results).await.unwrap();
    publish(&driver, &messages(0..2_000, 200)).await;
    driver.close().await;
}

#[tokio::test]
async fn damage_is_an_error_and_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    filled(&path).await;
    let whole = std::fs::read(&path).unwrap();
    let page = 4_096;
    let mut damaged = Vec::new();
    for cut in [1, 50, 100, page / 2, page, page * 3 + 7, whole.len() / 2] {
        damaged.push(whole[..cut].to_vec());
    }
    for start in [0, 20, 100, page, page + 8, page * 8, whole.len() - page] {
        let mut copy = whole.clone();
        let end = copy.len().min(start + 300);
        copy[start..end].fill(0xa5);
        damaged.push(copy);
    }
    let (mut refused, mut failed) = (0, 0);
    for bytes in &damaged {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
        }
        std::fs::write(&path, bytes).unwrap();
        let driver = match EmbeddedDriver::open(&path, options()).await {
            Ok(driver) => driver,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Permanent, "{e}");
                refused += 1;
                continue;
            }
        };
        // The driver opened the damaged file. Calls then work or fail, but must not panic.
        let mut results = vec![driver.publish(&messages(0..10, 10)).await.map(|_| ())];
        for _ in 0..20 {
            match driver.fetch(&QueueId::Results, 500, Duration::ZERO).await {
                Ok(got) => {
                    let acks: Vec<_> = got.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
                    results.push(driver.settle(&QueueId::Results, &acks).await);
                }
                Err(e) => results.push(Err(e)),
            }
        }
        failed += usize::from(results.iter().any(Result::is_err));
        driver.close().await;
    }
    assert!(
        refused >= damaged.len() / 2,
        "{refused} refused, {failed} failed later"
    );
}

#[tokio::test]
async fn a_full_file_loses_nothing_and_works_again_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    let options = EmbeddedOptions {
        file_bytes: 2 << 20,
        ..options()
    };
    let driver = EmbeddedDriver::open(&path, options.clone()).await.unwrap();
    fill_up_and_recover(&driver, None).await;
    driver.close().await;
    assert!(std::fs::metadata(&path).unwrap().len() <= 2 << 20);
    let driver = EmbeddedDriver::open(&path, options).await.unwrap();
    assert!(
        driver
            .fetch(&QueueId::Results, 1, Duration::ZERO)
            .await
            .unwrap()
            .is_empty()
    );
}

/// The same on a really full disk: name a directory on one of 8 MiB.
#[tokio::test]
#[ignore = "needs CUELINE_TEST_SMALL_DISK, a directory on a file system of 8 MiB"]
async fn a_full_disk_loses_nothing_and_works_again_when_there_is_room() {
    let small = std::env::var("CUELINE_TEST_SMALL_DISK").unwrap();
    let dir = tempfile::tempdir_in(small).unwrap();
    let ballast = dir.path().join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let driver = open(&dir.path().join("broker.db")).await;
    fill_up_and_recover(&driver, Some(&ballast)).await;
    driver.close().await;
}

/// A completely full disk accepts no acks either, until `ballast` is removed.
async fn fill_up_and_recover(driver: &EmbeddedDriver, ballast: Option<&Path>) {
    driver.declare(&QueueId::Results).await.unwrap();
    let mut confirmed = 0;
    let full = loop {
        match driver
            .publish(&messages(confirmed..confirmed + 100, 1_000))
            .await
        {
            Ok(answers) => {
                assert!(answers.iter().all(Result::is_ok));
                confirmed += 100;
            }
            Err(e) => break e,
        }
        assert!(confirmed < 100_000, "the disk never became full");
    };
    assert_eq!(full.kind(), ErrorKind::Transient, "{full}");
    assert!(confirmed > 0);
    // The disk is still full: a failed batch must leave nothing in memory.
    driver.publish(&messages(0..100, 1_000)).await.unwrap_err();
    let stats = driver.stats(&[]).await.unwrap().queues;
    let results = stats.iter().find(|s| s.queue == QueueId::Results).unwrap();
    assert_eq!(results.ready, confirmed as u64);
    if let Some(ballast) = ballast {
        std::fs::remove_file(ballast).unwrap();
    }

    assert_eq!(
        consume(driver, confirmed).await,
        (0..confirmed).collect::<Vec<_>>()
    );
    publish(driver, &messages(0..200, 1_000)).await;
    let only_if_empty = true;
    assert!(
        !driver
            .delete(&QueueId::Results, only_if_empty)
            .await
            .unwrap()
    );
    assert_eq!(consume(driver, 200).await, (0..200).collect::<Vec<_>>());
    // Failed batches must not keep reservations either.
    assert!(
        driver
            .delete(&QueueId::Results, only_if_empty)
            .await
            .unwrap()
    );
    driver.declare(&QueueId::Results).await.unwrap();
}

#[tokio::test]
async fn the_file_does_not_grow_while_messages_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    let driver = open(&path).await;
    driver.declare(&QueueId::Results).await.unwrap();
    for round in 0..60 {
        publish(&driver, &messages(round * 500..(round + 1) * 500, 1_000)).await;
        consume(&driver, 500).await;
    }
    driver.close().await;
    let bytes = std::fs::metadata(&path).unwrap().len();
    // 30 MB went through the file, half a megabyte at a time.
    assert!(bytes < 3_000_000, "{bytes} bytes");
}

#[tokio::test]
async fn a_dropped_driver_has_written_all_confirmed_messages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    let driver = open(&path).await;
    driver.declare(&QueueId::Results).await.unwrap();
    publish(&driver, &messages(0..100, 20)).await;
    drop(driver);
    let waiting = EmbeddedOptions {
        lock_wait: WAIT,
        ..options()
    };
    let driver = EmbeddedDriver::open(&path, waiting).await.unwrap();
    assert_eq!(consume(&driver, 100).await, (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn dead_letters_past_the_limit_stay_unsettled_and_acks_beside_them_count() {
    let dir = tempfile::tempdir().unwrap();
    let small = EmbeddedOptions {
        queue_limit: 10,
        // Longer than a busy machine stands still: the receipts must be valid when they are settled.
        ack_wait: Duration::from_secs(8),
        ..options()
    };
    let driver = EmbeddedDriver::open(&dir.path().join("broker.db"), small)
        .await
        .unwrap();
    driver.declare(&QueueId::Results).await.unwrap();
    for round in 0..2 {
        publish(&driver, &messages(0..10, 10)).await;
        let got = driver.fetch(&QueueId::Results, 10, WAIT).await.unwrap();
        // 8 dead letters move in the first round. In the second, 2 find room and 6 do not.
        let settlements: Vec<_> = got
            .iter()
            .enumerate()
            .map(|(i, d)| match i {
                0 | 1 => (d.receipt, Settlement::Ack),
                _ => (d.receipt, Settlement::Dead("no good".into())),
            })
            .collect();
        let settled = driver.settle(&QueueId::Results, &settlements).await;
        assert_eq!(settled.is_err(), round == 1, "{settled:?}");
    }
    let stats = driver.stats(&[]).await.unwrap().queues;
    let counts: Vec<_> = stats
        .iter()
        .map(|s| (s.queue.clone(), s.ready, s.unsettled))
        .collect();
    assert!(
        counts
            .iter()
            .any(|(queue, ready, unsettled)| *queue == QueueId::Results && ready + unsettled == 6),
        "{counts:?}"
    );
    assert!(counts.contains(&(QueueId::Dead, 10, 0)), "{counts:?}");
    // The unmoved messages are delivered again and can be settled otherwise.
    assert_eq!(consume(&driver, 6).await.len(), 6);
}

#[tokio::test]
async fn a_queue_in_place_of_a_deleted_one_starts_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    let driver = open(&path).await;
    for count in [100, 10] {
        driver.declare(&QueueId::Results).await.unwrap();
        publish(&driver, &messages(0..count, 20)).await;
        assert!(driver.delete(&QueueId::Results, false).await.unwrap());
    }
    driver.declare(&QueueId::Results).await.unwrap();
    driver.close().await;
    let driver = open(&path).await;
    let stats = driver.stats(&[]).await.unwrap().queues;
    assert!(stats.iter().all(|s| s.ready == 0), "{stats:?}");
}

#[tokio::test]
async fn large_messages_do_not_pile_up_in_memory_and_come_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    let small = EmbeddedOptions {
        memory_bytes: 100_000,
        ..options()
    };
    let driver = EmbeddedDriver::open(&path, small).await.unwrap();
    driver.declare(&QueueId::Results).await.unwrap();
    for round in 0..10 {
        publish(&driver, &messages(round * 10..(round + 1) * 10, 50_000)).await;
    }
    assert_eq!(consume(&driver, 100).await, (0..100).collect::<Vec<_>>());
    // Settled messages no longer count against the limits. New messages stay in memory again or are read from the file,
    // in order either way.
    publish(&driver, &messages(0..1_000, 50)).await;
    assert_eq!(
        consume(&driver, 1_000).await,
        (0..1_000).collect::<Vec<_>>()
    );
}
