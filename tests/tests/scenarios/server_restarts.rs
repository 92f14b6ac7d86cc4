//! The database or the broker is killed or stopped, while idle and under load. Afterwards the same processes of Cueline
//! continue, and each run has run once.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::try_eventually;
use cueline_tests::Process;
use cueline_tests::cluster::{Cluster, WITHIN, database};

#[derive(Debug, Clone, Copy)]
enum How {
    Kill,
    Stop,
}

/// The server that is restarted.
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

    /// RabbitMQ may lose queues that were declared shortly before a kill, which is not the subject here.
    fn write_declarations(&self) -> Result<()> {
        match self {
            Self::Rabbit(rabbit) => rabbit.write_declarations(),
            Self::Nats(_) | Self::Postgres(_) => Ok(()),
        }
    }
}

struct Fixture {
    cluster: Cluster,
    scheduler: Process,
    worker: Process,
}

async fn fixture(store: String, broker: String) -> Result<Fixture> {
    let cluster = Cluster::new(store, broker).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let worker = cluster.worker("one")?;
    cluster.wait_for_executor("one").await?;
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
    Ok(Fixture {
        cluster,
        scheduler,
        worker,
    })
}

impl Fixture {
    /// Checks that neither process has ended, so no supervisor is needed.
    fn check_running(&mut self) -> Result<()> {
        self.scheduler.check_running()?;
        self.worker.check_running()
    }

    /// Repeats a command until it succeeds. It fails while a server is away.
    async fn retry(&self, args: &[&str]) -> Result<()> {
        try_eventually(args.join(" "), WITHIN, async || {
            let finished = self.cluster.run(args).await?;
            let success = (finished.status == Some(0)).then_some(());
            anyhow::Ok(success.ok_or(format!("{finished:?}")))
        })
        .await
    }

    /// How often each run has been executed.
    fn executions(&self) -> Result<BTreeMap<i64, usize>> {
        let text = std::fs::read_to_string(self.cluster.path("ran")).unwrap_or_default();
        let mut runs = BTreeMap::new();
        for line in text.lines() {
            *runs.entry(line.parse()?).or_default() += 1;
        }
        Ok(runs)
    }

    async fn wait_for_executions(&self, least: usize) -> Result<()> {
        try_eventually(format!("{least} executions"), WITHIN, async || {
            let count = self.executions()?.len();
            anyhow::Ok((count >= least).then_some(()).ok_or(count))
        })
        .await
    }

    async fn check_restart(&mut self, server: &mut Server, how: How) -> Result<()> {
        // Idle.
        server.write_declarations()?;
        server.restart(how)?;
        self.retry(&["trigger", "now", "--wait"]).await?;
        self.check_running()?;

        // Under load.
        let before = self.executions()?.len();
        self.retry(&["job", "resume", "often"]).await?;
        self.wait_for_executions(before + 8).await?;
        server.restart(how)?;
        self.wait_for_executions(before + 40).await?;
        self.retry(&["job", "pause", "often"]).await?;
        self.check_running()?;
        self.check_all_ran_once().await
    }

    /// Compares the database with what the jobs recorded.
    async fn check_all_ran_once(&self) -> Result<()> {
        try_eventually("every run has ended", WITHIN, async || {
            let live = ["scheduled", "dispatching", "queued", "running"];
            let mut list = vec!["run", "list", "-o", "json"];
            list.extend(live.iter().flat_map(|state| ["--state", *state]));
            // A server that was restarted may not answer yet.
            let finished = self.cluster.run(&list).await?;
            if finished.status != Some(0) {
                return Ok(Err(format!("{finished:?}")));
            }
            let runs = finished.json()?["runs"].take();
            let none = runs.as_array().is_some_and(Vec::is_empty);
            anyhow::Ok(none.then_some(()).ok_or(runs.to_string()))
        })
        .await?;
        let list = ["run", "list", "--limit", "1000", "-o", "json"];
        let runs = self.cluster.run(&list).await?.json()?;
        let executions = self.executions()?;
        let mut succeeded = 0;
        for run in runs["runs"].as_array().context("a list")? {
            let times = executions
                .get(&run["id"].as_i64().context("an id")?)
                .copied();
            // The job was paused before its trigger was published.
            let paused = times.is_none()
                && ["skipped", "cancelled"].contains(&run["state"].as_str().unwrap_or_default());
            ensure!(
                paused || (run["state"] == "succeeded" && times == Some(1)),
                "executed {times:?} times: {run}"
            );
            succeeded += usize::from(!paused);
        }
        ensure!(
            succeeded == executions.len(),
            "{succeeded} of {}",
            executions.len()
        );
        Ok(())
    }
}

async fn check_restarts(mut fixture: Fixture, mut server: Server) -> Result<()> {
    for how in [How::Stop, How::Kill] {
        let checked = fixture.check_restart(&mut server, how).await;
        checked.with_context(|| format!("{how:?}\n{}", fixture.cluster.logs()))?;
    }
    fixture.worker.terminate().await?;
    fixture.scheduler.terminate().await
}

#[tokio::test]
async fn scheduler_and_worker_survive_nats_restarts() -> Result<()> {
    let (_postgres, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    check_restarts(fixture(store, nats.url()).await?, Server::Nats(nats)).await
}

#[tokio::test]
async fn scheduler_and_worker_survive_rabbitmq_restarts() -> Result<()> {
    let (_postgres, store) = database()?;
    let rabbit = Rabbit::start()?;
    check_restarts(
        fixture(store, rabbit.url("/")).await?,
        Server::Rabbit(rabbit),
    )
    .await
}

#[tokio::test]
async fn scheduler_and_worker_survive_postgresql_restarts() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    let postgres = Postgres::start()?;
    let store = postgres.url(&postgres.create_database()?);
    check_restarts(
        fixture(store, nats.url()).await?,
        Server::Postgres(postgres),
    )
    .await
}
