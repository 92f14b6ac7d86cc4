//! Two schedulers, three workers, PostgreSQL and a broker at 300 fires a second, while each of them in turn is killed, stopped for longer than every lease, and
//! cut off, and people pause, edit and cancel; then the books are compared: what the database says against what the handlers themselves wrote down.
//!
//! `CUELINE_TEST_SEED` chooses other faults than the usual ones, or repeats those of an earlier run. `CUELINE_TEST_FAULTS` sets how many there are: 4 by default, one of each target; 14 has
//! all. `infra/dev/storm` runs many seeds.

use anyhow::Result;
use cueline_tests::Seed;
use cueline_tests::cluster::BrokerServer;
use cueline_tests::storm::Storm;
use tokio::sync::Mutex;

/// Two at once would be too much for a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

async fn storm(name: &str, broker: fn() -> Result<BrokerServer>) -> Result<()> {
    let _alone = ONE_AT_A_TIME.lock().await;
    let faults = std::env::var("CUELINE_TEST_FAULTS");
    let storm = Storm {
        name: name.to_owned(),
        seed: Seed::or(name, 2),
        faults: faults.ok().and_then(|n| n.parse().ok()).unwrap_or(4),
    };
    storm.rage(broker()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_over_nats() -> Result<()> {
    storm("cluster_nats", BrokerServer::nats).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_over_rabbitmq() -> Result<()> {
    storm("cluster_rabbitmq", BrokerServer::rabbit).await
}
