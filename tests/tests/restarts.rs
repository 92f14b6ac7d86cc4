//! The database and the brokers are killed and stopped, while nothing happens and while jobs fire: afterwards everything goes on, with the same
//! processes of ours, and each run has run once.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_tests::roles::{Cluster, Process, WITHIN, database};
use cueline_tests::until;

#[derive(Debug, Clone, Copy)]
enum How {
    Kill,
    Stop,
}

/// A server that is restarted.
enum Server {
    Nats(Nats),
    Rabbit(Rabbit),
    Postgres(Postgres),
}

impl Server {
    fn restart(&mut self, how: How) -> Result<()> {
        match (self, how) {
            (Self::Nats(nats), How::Kill) => nats.kill().and_then(|()| nats.start_again()),
            (Self::Nats(nats), How::Stop) => nats.stop().and_then(|()| nats.start_again()),
            (Self::Rabbit(rabbit), how) => {
                match how {
                    How::Kill => rabbit.kill()?,
                    How::Stop => rabbit.stop()?,
                }
                rabbit.start_again()
            }
            (Self::Postgres(postgres), how) => {
                match how {
                    How::Kill => postgres.kill()?,
                    How::Stop => postgres.stop()?,
                }
                postgres.start_again()
            }
        }
    }

    /// A broker of this version may lose queues that it has just made; that is another test's matter.
    fn settle(&self) -> Result<()> {
        match self {
            Self::Rabbit(rabbit) => rabbit.write_declarations(),
            Self::Nats(_) | Self::Postgres(_) => Ok(()),
        }
    }
}

struct Ours {
    cluster: Cluster,
    scheduler: Process,
    worker: Process,
}

async fn ours(store: String, broker: String) -> Result<Ours> {
    let cluster = Cluster::new(store, broker).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.ready(&mut scheduler).await?;
    let worker = cluster.worker("one", "signing.key.public", "shell")?;
    cluster.heard("default/one").await?;
    let ran = cluster.path("ran");
    cluster
        .apply(&format!(
            r#"
[[job]]
name = "now"
schedule = {{ manual = true }}
handler = {{ shell = "echo $CUELINE_RUN_ID >> {0}" }}

[[job]]
name = "often"
schedule = {{ every = "250ms" }}
misfire = {{ policy = "catch_up", grace = "1h", catch_up_limit = 10000 }}
dispatch_deadline = "10m"
enabled = false
handler = {{ shell = "echo $CUELINE_RUN_ID >> {0}" }}
"#,
            ran.display()
        ))
        .await?;
    Ok(Ours {
        cluster,
        scheduler,
        worker,
    })
}

impl Ours {
    /// Neither has ended, which a supervisor would have had to make good.
    fn are_there(&mut self) -> Result<()> {
        for process in [&mut self.scheduler, &mut self.worker] {
            let ended = process.child.try_wait()?;
            ensure!(ended.is_none(), "it ended, {ended:?}: {}", process.said());
        }
        Ok(())
    }

    /// Asks until it is answered well: while a server is away it is not.
    async fn insist(&self, what: &[&str]) -> Result<()> {
        until(&what.join(" "), WITHIN, async || {
            let said = self.cluster.run(what).await?;
            Ok((said.status == Some(0)).then_some(()))
        })
        .await
    }

    /// How often each run has run.
    fn ran(&self) -> Result<BTreeMap<i64, usize>> {
        let text = std::fs::read_to_string(self.cluster.path("ran")).unwrap_or_default();
        let mut runs = BTreeMap::new();
        for line in text.lines() {
            *runs.entry(line.parse()?).or_default() += 1;
        }
        Ok(runs)
    }

    async fn after_a_restart(&mut self, server: &mut Server, how: How) -> Result<()> {
        // Idle.
        server.settle()?;
        server.restart(how)?;
        self.insist(&["trigger", "now", "--wait"]).await?;
        self.are_there()?;

        // Under load.
        let before = self.ran()?.len();
        self.insist(&["job", "resume", "often"]).await?;
        let more = async |more: usize| {
            let what = format!("{more} runs more");
            let enough = async || Ok((self.ran()?.len() >= before + more).then_some(()));
            until(&what, WITHIN, enough).await
        };
        more(8).await?;
        server.restart(how)?;
        more(40).await?;
        self.insist(&["job", "pause", "often"]).await?;
        self.are_there()?;
        self.all_ran_once().await
    }

    /// What the database says against what the jobs wrote down.
    async fn all_ran_once(&self) -> Result<()> {
        let mut found = String::new();
        let quiet = until("no run is alive", WITHIN, async || {
            let live = ["scheduled", "dispatching", "queued", "running"];
            let mut list = vec!["run", "list", "-o", "json"];
            list.extend(live.iter().flat_map(|state| ["--state", *state]));
            let runs = self.cluster.run(&list).await?.json()?;
            found = runs["runs"].to_string();
            Ok(runs["runs"]
                .as_array()
                .is_some_and(Vec::is_empty)
                .then_some(()))
        });
        quiet.await.with_context(|| found.clone())?;
        let list = ["run", "list", "--limit", "1000", "-o", "json"];
        let runs = self.cluster.run(&list).await?.json()?;
        let ran = self.ran()?;
        let mut succeeded = 0;
        for run in runs["runs"].as_array().context("a list")? {
            let times = ran.get(&run["id"].as_i64().context("an id")?).copied();
            // The pause met it before its trigger had gone out.
            let paused = times.is_none()
                && ["skipped", "cancelled"].contains(&run["state"].as_str().unwrap_or_default());
            ensure!(
                paused || (run["state"] == "succeeded" && times == Some(1)),
                "it ran {times:?} times: {run}"
            );
            succeeded += usize::from(!paused);
        }
        ensure!(succeeded == ran.len(), "{succeeded} of {}", ran.len());
        Ok(())
    }
}

async fn restarts(mut ours: Ours, mut server: Server) -> Result<()> {
    for how in [How::Stop, How::Kill] {
        let done = ours.after_a_restart(&mut server, how).await;
        done.with_context(|| format!("{how:?}\n{}", ours.cluster.logs()))?;
    }
    ours.worker.terminate().await?;
    ours.scheduler.terminate().await
}

#[tokio::test]
async fn nats_restarts_and_nobody_else_has_to() -> Result<()> {
    let (_postgres, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    restarts(ours(store, nats.url()).await?, Server::Nats(nats)).await
}

#[tokio::test]
async fn rabbitmq_restarts_and_nobody_else_has_to() -> Result<()> {
    let (_postgres, store) = database()?;
    let rabbit = Rabbit::start()?;
    restarts(ours(store, rabbit.url("/")).await?, Server::Rabbit(rabbit)).await
}

#[tokio::test]
async fn postgresql_restarts_and_nobody_else_has_to() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    let postgres = Postgres::start()?;
    let store = postgres.url(&postgres.create_database()?);
    restarts(ours(store, nats.url()).await?, Server::Postgres(postgres)).await
}
