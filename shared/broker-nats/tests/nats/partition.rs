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

use crate::fixture::{connect_to, on_each_version, options};

/// Elections included.
const WITHIN: Duration = SOON.saturating_mul(2);
/// Announcements that must fail in a row.
const TRIES: usize = 5;

async fn connect(cluster: &NatsCluster, server: usize) -> NatsDriver {
    let three_copies = NatsOptions {
        limits: StreamLimits {
            replicas: Some(3),
            ..StreamLimits::default()
        },
        // The connections to all servers outlast the partition.
        ping_interval: SOON * 10,
        ..options()
    };
    connect_to(&cluster.url(server), three_copies).await
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
