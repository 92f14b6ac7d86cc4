//! Fault storms: two schedulers, three workers, PostgreSQL and a broker at 300 fires a second. Each component is
//! killed, stopped for longer than every lease, and disconnected, up to three at once. The disk of one worker becomes
//! full, where a file system can be mounted. Meanwhile operators pause, edit and cancel.
//!
//! `CUELINE_TEST_SEED` selects other faults than the usual ones, or repeats those of an earlier storm.
//! `CUELINE_TEST_FAULTS` sets their number. The default is 5, one of each kind of target. 99 has all.
//! With `CUELINE_TEST_STANDBY=1`, PostgreSQL has a synchronous standby, which one of all faults promotes.
//! `infra/dev/storm` runs many seeds, and the storms on broker clusters, which `make test` leaves out.

use anyhow::Result;
use cueline_tests::Seed;
use cueline_tests::storm::servers::{BrokerServer, StoreServer};
use cueline_tests::storm::{Storm, run_storm};
use tokio::sync::Mutex;

/// Two at once would be too much for a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

async fn storm(name: &str, broker: fn() -> Result<BrokerServer>) -> Result<()> {
    let _alone = ONE_AT_A_TIME.lock().await;
    let faults = std::env::var("CUELINE_TEST_FAULTS");
    let storm = Storm {
        name: name.to_owned(),
        seed: Seed::fixed(name, 2),
        faults: faults.ok().and_then(|n| n.parse().ok()).unwrap_or(5),
    };
    let standby = std::env::var("CUELINE_TEST_STANDBY").is_ok_and(|given| given == "1");
    let database = if standby {
        StoreServer::pair()?
    } else {
        StoreServer::single()?
    };
    run_storm(&storm, broker()?, database).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_storm_keeps_all_guarantees() -> Result<()> {
    storm("storm_nats", BrokerServer::nats).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_storm_keeps_all_guarantees() -> Result<()> {
    storm("storm_rabbitmq", BrokerServer::rabbit).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long; infra/dev/storm nats-cluster runs it"]
async fn nats_cluster_storm_keeps_all_guarantees() -> Result<()> {
    storm("storm_nats_cluster", BrokerServer::nats_cluster).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long; infra/dev/storm rabbitmq-cluster runs it"]
async fn rabbitmq_cluster_storm_keeps_all_guarantees() -> Result<()> {
    storm("storm_rabbitmq_cluster", BrokerServer::rabbit_cluster).await
}
