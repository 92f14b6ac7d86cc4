//! Fault storms: two schedulers, three workers, PostgreSQL and a broker at 300 fires a second. Each component in turn
//! is killed, stopped for longer than every lease, and disconnected. Meanwhile operators pause, edit and cancel.
//!
//! `CUELINE_TEST_SEED` selects other faults than the usual ones, or repeats those of an earlier storm.
//! `CUELINE_TEST_FAULTS` sets their number. The default is 4, one of each kind of target. 14 has all.
//! `infra/dev/storm` runs many seeds.

use anyhow::Result;
use cueline_tests::Seed;
use cueline_tests::storm::cluster::BrokerServer;
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
        faults: faults.ok().and_then(|n| n.parse().ok()).unwrap_or(4),
    };
    run_storm(&storm, broker()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_storm_keeps_all_guarantees() -> Result<()> {
    storm("storm_nats", BrokerServer::nats).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_storm_keeps_all_guarantees() -> Result<()> {
    storm("storm_rabbitmq", BrokerServer::rabbit).await
}
