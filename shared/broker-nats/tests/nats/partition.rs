//! A cluster of three servers with three copies of each stream, one of which is cut off from the others.

use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Channel, Driver};
use cueline_broker_nats::{NatsDriver, NatsOptions, StreamLimits};
use cueline_test_servers::NatsCluster;
use cueline_test_servers::nats::Version;
use cueline_test_support::{SOON, eventually};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::fixture::{
    connect_to, declare, executor, fetch_all, message, messages, on_each_version, options,
    publish_in_cluster,
};

/// Elections included.
const WITHIN: Duration = SOON.saturating_mul(2);
/// Announcements that must fail in a row.
const TRIES: usize = 5;
/// Partitions of which one must come before the leader steps down.
const ROUNDS: usize = 3;

fn three_copies() -> NatsOptions {
    NatsOptions {
        limits: StreamLimits {
            replicas: Some(3),
            ..StreamLimits::default()
        },
        // The connections to all servers outlast the partition.
        ping_interval: SOON * 10,
        ..options()
    }
}

async fn connect(cluster: &NatsCluster, server: usize) -> NatsDriver {
    connect_to(&cluster.url(server), three_copies()).await
}

async fn stored_eventually(driver: &NatsDriver) {
    eventually("an announcement is stored", WITHIN, async || {
        let payload = Bytes::from_static(b"stored");
        driver.announce_stored(&Channel::Heartbeats, payload).await
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_server_without_the_majority_announcements_are_received_and_not_stored() {
    on_each_version(received_and_not_stored).await;
}

async fn received_and_not_stored(version: Version) {
    let starting = spawn_blocking(move || NatsCluster::start_version(version, 3));
    let mut cluster = starting.await.unwrap().unwrap();
    let majority = [connect(&cluster, 0).await, connect(&cluster, 1).await];
    let isolated = connect(&cluster, 2).await;
    eventually("the proofs are declared", WITHIN, async || {
        majority[0].declare_proofs().await
    })
    .await
    .unwrap();
    for driver in [&majority[0], &majority[1], &isolated] {
        stored_eventually(driver).await;
    }

    // A majority of which one server is not current may elect no leader.
    for server in 0..3 {
        cluster.wait_until_current(server).unwrap();
    }
    cluster.isolate(2).unwrap();
    let listening = eventually("the driver listens", SOON, async || {
        isolated.listen(&Channel::Heartbeats).await
    });
    let mut heartbeats = listening.await.unwrap();
    for n in 0..TRIES {
        let payload = Bytes::from(n.to_string());
        let stored = isolated.announce_stored(&Channel::Heartbeats, payload);
        assert!(stored.await.is_err(), "try {n}");
        let received = timeout(SOON, heartbeats.recv()).await.unwrap().unwrap();
        assert_eq!(received.payload, n.to_string());
    }
    for driver in &majority {
        stored_eventually(driver).await;
    }

    cluster.heal();
    cluster.wait_until_current(2).unwrap();
    stored_eventually(&isolated).await;
}

/// The partition does not end, so a driver that stayed could never publish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_leaves_a_server_that_is_cut_off_from_the_majority() {
    on_each_version(leaves_a_server).await;
}

async fn leaves_a_server(version: Version) {
    const NAME: &str = "leaving";
    let starting = spawn_blocking(move || NatsCluster::start_version(version, 3));
    let mut cluster = starting.await.unwrap().unwrap();
    let servers = [0, 1, 2].map(|i| cluster.url(i)).join(",");
    let options = NatsOptions {
        connection_name: NAME.into(),
        ..three_copies()
    };
    let (driver, queue) = (connect_to(&servers, options).await, executor("one"));
    declare(&driver, &queue).await;
    for server in 0..3 {
        cluster.wait_until_current(server).unwrap();
    }
    let first = cluster.server_of(NAME).unwrap().unwrap();
    cluster.isolate(first).unwrap();
    publish_in_cluster(&driver, &messages(&queue, 0..10)).await;
    let now = cluster.server_of(NAME).unwrap();
    assert!(now.is_some_and(|now| now != first), "{now:?}");
    fetch_all(&driver, &queue, 10).await;
}

/// The leader keeps a message that it cannot store yet, and its id. Server 2.10 takes a second copy for a duplicate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_the_majority_confirms_nothing_at_the_second_try() {
    on_each_version(confirms_nothing).await;
}

async fn confirms_nothing(version: Version) {
    let starting = spawn_blocking(move || NatsCluster::start_version(version, 3));
    let mut cluster = starting.await.unwrap().unwrap();
    let queue = executor("one");
    declare(&connect(&cluster, 0).await, &queue).await;
    let mut errors = Vec::new();
    // On a machine that stands still, a leader may step down before the second try.
    for round in 0..ROUNDS {
        let leader = cluster.leader_of("CUELINE_TRIGGERS").unwrap();
        let driver = connect(&cluster, leader).await;
        let (first, second) = (2 * round, 2 * round + 1);
        publish_in_cluster(&driver, &messages(&queue, first..second)).await;
        cluster.isolate(leader).unwrap();
        for n in 0..TRIES {
            let published = driver.publish(&[message(&queue, second)]).await;
            let is_confirmed = published.as_ref().is_ok_and(|outcomes| outcomes[0].is_ok());
            assert!(!is_confirmed, "{version:?} try {n}: {published:?}");
            errors.push(format!("{published:?}"));
        }
        let is_second_copy =
            |e: &String| e.contains("waits for a majority") || e.contains("in process");
        if errors.iter().any(is_second_copy) {
            return;
        }
        cluster.heal();
        for server in 0..3 {
            cluster.wait_until_current(server).unwrap();
        }
    }
    panic!("{version:?} no leader had an earlier copy: {errors:?}");
}
