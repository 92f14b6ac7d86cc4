//! A cluster of three servers with three copies of each stream, of which servers are killed.

use std::collections::BTreeSet;
use std::time::Duration;

use cueline_broker::{Driver, QueueId, Settlement};
use cueline_broker_nats::{NatsDriver, NatsOptions, StreamLimits};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::{SOON, eventually};
use tokio::time::timeout;

use crate::fixture::{
    FETCH_WAIT, executor, messages, numbers, on_each_version, options, settlements,
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

async fn connect(cluster: &[Nats]) -> NatsDriver {
    let servers: Vec<String> = cluster.iter().map(Nats::url).collect();
    let driver = NatsDriver::connect(&servers.join(","), three_copies()).await;
    driver.unwrap()
}

/// Starts three servers that have elected a leader, and a driver that has declared the queue. Another process may take
/// a port before its server listens there. The servers then never find each other, and others are started.
async fn start(version: Version, queue: &QueueId) -> (Vec<Nats>, NatsDriver) {
    let mut failure = None;
    for _ in 0..4 {
        let cluster = Nats::cluster(version, 3).unwrap();
        let driver = connect(&cluster).await;
        let declared = eventually("the queue is declared", SOON, async || {
            driver.declare(queue).await
        });
        match declared.await {
            Ok(()) => return (cluster, driver),
            Err(e) => failure = Some(e),
        }
    }
    panic!("{failure:?}");
}

/// Publishes one batch, and repeats it until all of it is confirmed.
async fn publish(driver: &NatsDriver, queue: &QueueId, first: usize) {
    let batch = messages(queue, first..first + BATCH);
    eventually("the batch is confirmed", SOON, async || {
        let outcomes = driver.publish(&batch).await.map_err(|e| e.to_string())?;
        let refused = outcomes.into_iter().find_map(Result::err);
        refused.map_or(Ok(()), |refusal| Err(refusal.to_string()))
    })
    .await
    .unwrap();
}

/// Fetches and acks. If an ack is lost, its message is delivered again.
async fn fetch_and_ack(driver: &NatsDriver, queue: &QueueId) -> Vec<usize> {
    let Ok(fetched) = driver.fetch(queue, 200, FETCH_WAIT).await else {
        return Vec::new();
    };
    let acks = settlements(&fetched, &Settlement::Ack);
    let _ = driver.settle(queue, &acks).await;
    numbers(&fetched)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_each_server_is_killed_in_turn_no_confirmed_message_is_lost() {
    on_each_version(no_confirmed_message_is_lost).await;
}

async fn no_confirmed_message_is_lost(version: Version) {
    const ROUNDS: usize = 60;
    let queue = executor("one");
    let (mut cluster, publisher) = start(version, &queue).await;
    let fetcher = connect(&cluster).await;

    let publishing = async {
        for round in 0..ROUNDS {
            // Kill one server at a time, during a publish. The other two are always a majority.
            let server = &mut cluster[round / 20];
            if round % 20 == 7 {
                let kill = async { server.kill().unwrap() };
                tokio::join!(publish(&publisher, &queue, round * BATCH), kill);
                continue;
            }
            if round % 20 == 17 {
                server.start_again().unwrap();
            }
            publish(&publisher, &queue, round * BATCH).await;
        }
    };
    let fetching = async {
        let mut missing: BTreeSet<usize> = (0..ROUNDS * BATCH).collect();
        eventually("all messages are fetched", SOON * 3, async || {
            for number in fetch_and_ack(&fetcher, &queue).await {
                missing.remove(&number);
            }
            match missing.len() {
                0 => Ok(()),
                count => Err(format!("{count} are missing")),
            }
        })
        .await
        .unwrap();
    };
    let both = async { tokio::join!(publishing, fetching) };
    timeout(SOON * 4, both).await.unwrap();
    eventually("the queue is empty", SOON, async || {
        fetch_and_ack(&fetcher, &queue).await;
        let stats = fetcher.stats(&[]).await.map_err(|e| e.to_string())?;
        match stats.iter().map(|s| s.ready + s.unsettled).sum::<u64>() {
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
    cluster[1].kill().unwrap();
    cluster[2].kill().unwrap();
    let outcomes = driver.publish(&messages(&queue, BATCH..2 * BATCH)).await;
    let none_confirmed = outcomes
        .as_ref()
        .map_or(true, |all| all.iter().all(Result::is_err));
    assert!(none_confirmed, "{outcomes:?}");
    cluster[1].start_again().unwrap();
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
