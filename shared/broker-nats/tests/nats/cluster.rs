//! A cluster of three servers with three copies of each stream, of which servers are killed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerError, BrokerOptions, Driver, QueueId, Settlement, StartLog};
use cueline_broker_nats::{NatsDriver, NatsOptions, StreamLimits};
use cueline_test_servers::NatsCluster;
use cueline_test_servers::nats::Version;
use cueline_test_support::{SOON, eventually};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::fixture::{
    FETCH_WAIT, connect_to, declare, executor, messages, numbers, on_each_version, options,
    patient, publish_in_cluster, settle, settlements,
};

const BATCH: usize = 50;

fn three_copies() -> NatsOptions {
    NatsOptions {
        limits: StreamLimits {
            replicas: Some(3),
            ..StreamLimits::default()
        },
        ack_wait: Duration::from_secs(3),
        ..options()
    }
}

async fn connect(cluster: &NatsCluster) -> NatsDriver {
    let servers = [0, 1, 2].map(|i| cluster.url(i)).join(",");
    connect_to(&servers, three_copies()).await
}

/// Starts three servers that have elected a leader, and a driver that has declared the queue.
async fn start(version: Version, queue: &QueueId) -> (NatsCluster, NatsDriver) {
    let starting = spawn_blocking(move || NatsCluster::start_version(version, 3));
    let cluster = starting.await.unwrap().unwrap();
    let driver = connect(&cluster).await;
    eventually("the queue is declared", SOON, async || {
        driver.declare(queue).await
    })
    .await
    .unwrap();
    (cluster, driver)
}

/// Calls `f`, which blocks, while other tasks go on.
async fn in_cluster<E: Debug + Send + 'static>(
    cluster: &Arc<Mutex<NatsCluster>>,
    f: impl FnOnce(&mut NatsCluster) -> Result<(), E> + Send + 'static,
) {
    let cluster = Arc::clone(cluster);
    let done = spawn_blocking(move || f(&mut cluster.lock().unwrap()));
    done.await.unwrap().unwrap();
}

/// Publishes one batch, and repeats it until all of it is confirmed.
async fn publish(driver: &NatsDriver, queue: &QueueId, first: usize) {
    publish_in_cluster(driver, &messages(queue, first..first + BATCH)).await;
}

/// Fetches and acks. If an ack is lost, its message is delivered again.
async fn fetch_and_ack(driver: &NatsDriver, queue: &QueueId) -> Result<Vec<usize>, BrokerError> {
    let fetched = driver.fetch(queue, 200, FETCH_WAIT).await?;
    let acks = settlements(&fetched, &Settlement::Ack);
    let _ = driver.settle(queue, &acks).await;
    Ok(numbers(&fetched))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_each_server_is_killed_in_turn_no_confirmed_message_is_lost() {
    on_each_version(no_confirmed_message_is_lost).await;
}

async fn no_confirmed_message_is_lost(version: Version) {
    const ROUNDS: usize = 60;
    let queue = executor("one");
    let (cluster, publisher) = start(version, &queue).await;
    let fetcher = connect(&cluster).await;
    let cluster = Arc::new(Mutex::new(cluster));
    let publishing = async {
        for round in 0..ROUNDS {
            let server = round / 20;
            match round % 20 {
                // Kill one server at a time, during a publish. The other two are always a majority.
                7 => {
                    let kill = in_cluster(&cluster, move |c| c.kill(server));
                    tokio::join!(publish(&publisher, &queue, round * BATCH), kill);
                    continue;
                }
                13 => in_cluster(&cluster, move |c| c.restart(server)).await,
                // A majority of which one server is not current may elect no leader (seen with server 2.10).
                19 => in_cluster(&cluster, move |c| c.wait_until_current(server)).await,
                _ => {}
            }
            publish(&publisher, &queue, round * BATCH).await;
        }
    };
    let fetching = async {
        let mut missing: BTreeSet<usize> = (0..ROUNDS * BATCH).collect();
        let all = eventually("all messages are fetched", SOON * 8, async || {
            let last = fetch_and_ack(&fetcher, &queue).await;
            for number in last.iter().flatten() {
                missing.remove(number);
            }
            let (count, first) = (missing.len(), missing.first());
            match first {
                None => Ok(()),
                Some(first) => Err(format!(
                    "{count} are missing from {first} on, and the last fetch was {last:?}"
                )),
            }
        });
        if let Err(e) = all.await {
            let stats = fetcher.stats(&[]).await;
            let servers = cluster.lock().unwrap().state();
            panic!("{version:?} {e}\n{stats:?}\n{servers}");
        }
    };
    let both = async { tokio::join!(publishing, fetching) };
    timeout(SOON * 10, both).await.unwrap();
    eventually("the queue is empty", SOON, async || {
        let _ = fetch_and_ack(&fetcher, &queue).await;
        let stats = fetcher.stats(&[]).await.map_err(|e| e.to_string())?;
        match stats
            .queues
            .iter()
            .map(|s| s.ready + s.unsettled)
            .sum::<u64>()
        {
            0 => Ok(()),
            count => Err(format!("{count} messages are left")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_confirmed_and_nothing_is_lost() {
    let queue = executor("one");
    let (mut cluster, driver) = start(Version::V2_12, &queue).await;
    publish(&driver, &queue, 0).await;
    // Two of the servers that confirmed the batch would otherwise be away, and the third might not have it yet.
    for server in 0..3 {
        cluster.wait_until_current(server).unwrap();
    }
    cluster.kill(1).unwrap();
    cluster.kill(2).unwrap();
    let outcomes = driver.publish(&messages(&queue, BATCH..2 * BATCH)).await;
    let none_confirmed = outcomes
        .as_ref()
        .map_or(true, |all| all.iter().all(Result::is_err));
    assert!(none_confirmed, "{outcomes:?}");
    let cluster = Arc::new(Mutex::new(cluster));
    in_cluster(&cluster, |c| c.restart(1)).await;
    publish(&driver, &queue, BATCH).await;
    let mut fetched = BTreeSet::new();
    eventually("all messages are fetched", SOON, async || {
        if let Ok(more) = driver.fetch(&queue, 200, FETCH_WAIT).await {
            fetched.extend(numbers(&more));
        }
        if fetched.len() == 2 * BATCH {
            Ok(())
        } else {
            Err(format!("{} of {}", fetched.len(), 2 * BATCH))
        }
    })
    .await
    .unwrap();
}

/// A leader tells that a request is complete before the other servers have agreed to its deliveries, which follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_three_copies_a_full_batch_arrives_at_once() {
    on_each_version(full_batches_arrive).await;
}

async fn full_batches_arrive(version: Version) {
    const FETCHES: usize = 10;
    let queue = executor("one");
    let starting = spawn_blocking(move || NatsCluster::start_version(version, 3));
    let cluster = starting.await.unwrap().unwrap();
    let options = NatsOptions {
        limits: three_copies().limits,
        ..patient()
    };
    let driver = connect_to(&cluster.url(0), options).await;
    declare(&driver, &queue).await;
    for n in 0..FETCHES {
        publish(&driver, &queue, n * BATCH).await;
    }
    let mut fetched = BTreeSet::new();
    eventually("all messages are fetched", SOON, async || {
        let batch = driver.fetch(&queue, BATCH, FETCH_WAIT).await;
        // There may be an election.
        let early = batch
            .as_ref()
            .is_err_and(|e| e.to_string().contains("Batch Completed"));
        assert!(!early, "{batch:?}");
        if let Ok(batch) = batch {
            settle(&driver, &queue, &batch, Settlement::Ack).await;
            fetched.extend(numbers(&batch));
        }
        let missing = FETCHES * BATCH - fetched.len();
        if missing == 0 { Ok(()) } else { Err(missing) }
    })
    .await
    .unwrap();
}

/// The consumer of a reader may be on a server whose copy of the stream lags behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_log_is_read_up_to_the_last_confirmed_record() {
    let (_cluster, driver) = start(Version::V2_12, &executor("one")).await;
    let broker = Broker::new(driver, BrokerOptions::default());
    let log = StartLog {
        group: "billing".into(),
        executor: "one".into(),
    };
    broker.declare_log(&log).await.unwrap();
    for n in 0..100 {
        let record = Bytes::from(n.to_string());
        broker.append(&log, record.clone()).await.unwrap();
        let records = broker.read_log(&log).await.unwrap();
        // A retry may have stored a record twice.
        assert!(records.len() > n, "{} of {}", records.len(), n + 1);
        assert_eq!(records.last(), Some(&record));
    }
}

/// The log of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The number of warnings about the only copy of a stream.
    fn warnings(&self) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.matches("only copy of this stream").count()
    }
}

/// On one thread, so that the log has what the driver says.
#[tokio::test]
async fn the_only_copy_of_a_stream_is_warned_about_once_unless_it_is_configured() {
    let starting = spawn_blocking(|| NatsCluster::start(3));
    let cluster = starting.await.unwrap().unwrap();
    let log = Log::default();
    let sink = log.clone();
    let lines = tracing_subscriber::fmt().with_writer(move || sink.clone());
    let _logging = tracing::subscriber::set_default(lines.finish());
    let connected = async |replicas| {
        let limits = StreamLimits {
            replicas,
            ..StreamLimits::default()
        };
        let options = NatsOptions {
            limits,
            ..options()
        };
        connect_to(&cluster.url(0), options).await
    };
    let declare = async |driver: &NatsDriver| {
        let declared = eventually("the proofs are declared", SOON, async || {
            driver.declare_proofs().await
        });
        declared.await.unwrap();
    };
    let one_copy = connected(Some(1)).await;
    declare(&one_copy).await;
    assert_eq!(log.warnings(), 0, "it is configured");
    let unset = connected(None).await;
    declare(&unset).await;
    declare(&unset).await;
    assert_eq!(log.warnings(), 1);
    // The setting also applies to a stream that exists.
    let three_copies = connected(Some(3)).await;
    declare(&three_copies).await;
    let unset = connected(None).await;
    declare(&unset).await;
    assert_eq!(log.warnings(), 1);
}
