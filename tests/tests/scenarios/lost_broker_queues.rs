//! The broker loses an executor's queue while triggers wait in it and others arrive. Reconciliation publishes them
//! again, and each runs once.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream;
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use lapin::options::QueueDeleteOptions;
use lapin::{Connection, ConnectionProperties};
use serde_json::json;

/// What the test deletes.
#[derive(Debug, Clone, Copy)]
enum Lost {
    /// NATS: the executor's consumer. Its messages stay in the stream.
    Consumer,
    /// NATS: the stream of all triggers.
    Stream,
    /// RabbitMQ: the executor's queue.
    Queue,
}

impl Lost {
    async fn delete(self, broker: &str) -> Result<()> {
        if let Self::Queue = self {
            let connection = Connection::connect(broker, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            let options = QueueDeleteOptions::default();
            let count = channel
                .queue_delete("cueline.x.default.one".into(), options)
                .await?;
            ensure!(count > 0, "no trigger was in the queue");
            return Ok(());
        }
        let patient = async_nats::ConnectOptions::new().connection_timeout(WITHIN);
        let mut context = jetstream::new(patient.connect(broker).await?);
        context.set_timeout(WITHIN);
        let mut stream = context.get_stream("CUELINE_TRIGGERS").await?;
        ensure!(
            stream.info().await?.state.messages > 0,
            "no trigger is in the stream"
        );
        match self {
            Self::Consumer => {
                stream.delete_consumer("default~one").await?;
            }
            _ => {
                context.delete_stream("CUELINE_TRIGGERS").await?;
            }
        }
        Ok(())
    }
}

const RUNS: usize = 5;

/// After this time the scheduler asks the executor whether it holds a queued attempt. All runs must be triggered before the
/// scheduler considers the killed worker dead, also on a machine that stands still for ten seconds.
const FAILOVER: &str = "20s";

/// Jobs whose triggers keep the queue busy. Nearly all of them meet a busy lane and cost no process.
const LOAD: usize = 10;

fn jobs(cluster: &Cluster) -> String {
    let load = (0..LOAD).map(|n| {
        format!(
            r#"
[[job]]
name = "load-{n}"
schedule = {{ every = "100ms" }}
block = "discard"
handler = {{ shell = "sleep 5" }}
"#
        )
    });
    let waits = format!(
        r#"
[[job]]
name = "waits"
schedule = {{ manual = true }}
handler = {{ shell = "echo $CUELINE_RUN_ID >> {}" }}
"#,
        cluster.path("ran").display()
    );
    load.chain([waits]).collect()
}

/// Triggers a run over the API, which is quicker than a command.
async fn trigger(cluster: &Cluster, number: usize) -> Result<String> {
    // The key makes the request safe to repeat.
    let body = json!({ "idempotency_key": number.to_string() });
    let answer = cluster.client.post("/jobs/waits/trigger", &body).await?;
    Ok(answer["runs"][0].to_string())
}

async fn lost_triggers_run(broker: String, lost: &[Lost]) -> Result<()> {
    let (_server, store) = database()?;
    let cluster = Cluster::new(store, broker).await?;
    let failover = ["--failover-after", FAILOVER];
    let mut scheduler = cluster.scheduler(&failover)?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut worker = cluster.worker_with("one", "signing.key.public", &failover)?;
    cluster.wait_for_executor("one").await?;
    cluster.apply(&jobs(&cluster)).await?;
    let mut runs = Vec::new();
    for lost in lost {
        // The triggers wait in the queue of a worker that was killed a moment ago.
        worker.kill().await?;
        for _ in 0..RUNS {
            let run = trigger(&cluster, runs.len()).await?;
            runs.push(run);
        }
        for run in &runs[runs.len() - RUNS..] {
            cluster.wait_for_state(run, "queued").await?;
        }
        lost.delete(&cluster.broker).await?;
        worker.start()?;
        for run in &runs {
            let succeeded = cluster.wait_for_state(run, "succeeded").await;
            succeeded.with_context(|| format!("{lost:?}\n{}", cluster.logs()))?;
        }
    }
    let text = std::fs::read_to_string(cluster.path("ran"))?;
    let mut times = BTreeMap::<&str, usize>::new();
    for run in text.lines() {
        *times.entry(run).or_default() += 1;
    }
    ensure!(
        times.len() == runs.len() && times.values().all(|n| *n == 1),
        "{times:?}"
    );
    worker.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn triggers_lost_with_a_nats_consumer_or_stream_are_published_again() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    lost_triggers_run(nats.url(), &[Lost::Consumer, Lost::Stream]).await
}

#[tokio::test]
async fn triggers_lost_with_a_rabbitmq_queue_are_published_again() -> Result<()> {
    let broker = Rabbit::shared_vhost()?;
    lost_triggers_run(broker, &[Lost::Queue]).await
}
