//! What the broker holds for an executor is lost while triggers wait in it: they are found missing and published again, and run once each, without
//! a person.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream;
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_tests::roles::{Cluster, database};
use lapin::options::QueueDeleteOptions;
use lapin::{Connection, ConnectionProperties};
use nix::sys::signal::Signal;

/// What is deleted.
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
            ensure!(count > 0, "nothing waited in it");
            return Ok(());
        }
        let context = jetstream::new(async_nats::connect(broker).await?);
        let mut stream = context.get_stream("CUELINE_TRIGGERS").await?;
        ensure!(stream.info().await?.state.messages > 0, "nothing waits");
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

async fn is_healed(broker: String, lost: &[Lost]) -> Result<()> {
    let (_server, store) = database()?;
    let cluster = Cluster::new(store, broker).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.ready(&mut scheduler).await?;
    let mut worker = cluster.worker("one", "signing.key.public", "shell")?;
    cluster.heard("default/one").await?;
    cluster
        .apply(&format!(
            "[[job]]\nname = \"waits\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"echo $CUELINE_RUN_ID >> {}\" }}\n",
            cluster.path("ran").display()
        ))
        .await?;
    let mut runs = Vec::new();
    for lost in lost {
        // What waits in the queue of one that is away and not yet missed.
        worker.signal(Signal::SIGKILL)?;
        worker.end().await?;
        for _ in 0..RUNS {
            runs.push(cluster.trigger("waits").await?);
        }
        for run in &runs[runs.len() - RUNS..] {
            cluster.comes_to(run, "queued").await?;
        }
        lost.delete(&cluster.broker).await?;
        worker = cluster.worker("one", "signing.key.public", "shell")?;
        let done = async {
            for run in &runs {
                // After half a minute they are missed.
                cluster.comes_to(run, "succeeded").await?;
            }
            anyhow::Ok(())
        };
        let done = done.await;
        done.with_context(|| format!("{lost:?}\n{}", cluster.logs()))?;
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
async fn a_deleted_consumer_or_stream_is_healed() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    is_healed(nats.url(), &[Lost::Consumer, Lost::Stream]).await
}

#[tokio::test]
async fn a_deleted_queue_is_healed() -> Result<()> {
    let rabbit = Rabbit::start()?;
    is_healed(rabbit.url("/"), &[Lost::Queue]).await
}
