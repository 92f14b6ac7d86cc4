//! A composition, as the scenarios see it: an API, a command, executors, and processes that die.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream;
use cueline_broker::{Driver as _, Outgoing, QueueId};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN};
use cueline_tests::{Finished, Process, Standalone};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The runs of a dead worker are moved soon.
const TIMES: [&str; 2] = ["--failover-after", "5s"];

enum Composition {
    /// The server is gone while it is down.
    Standalone(TempDir, Box<Option<Standalone>>),
    Cluster(Box<Cluster>, Vec<Process>, Vec<Process>),
}

/// A server or a cluster.
pub(super) struct Server {
    composition: Composition,
    /// The names of its executors, sorted.
    pub(super) executors: Vec<String>,
}

impl Server {
    pub(super) async fn standalone() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let standalone = Standalone::start(&folder.path().join("data"), &[]).await?;
        Self::new(Composition::Standalone(folder, Box::new(Some(standalone)))).await
    }

    /// Two schedulers and two workers.
    pub(super) async fn cluster(store: String, broker: String) -> Result<Self> {
        let cluster = Cluster::new(store, broker).await?;
        let mut first = cluster.scheduler(&TIMES)?;
        cluster.wait_until_ready(&mut first).await?;
        let second = cluster.scheduler_beside(&TIMES)?;
        let mut workers = Vec::new();
        for name in ["w1", "w2"] {
            workers.push(cluster.worker_with(name, "signing.key.public", &TIMES)?);
        }
        for name in ["w1", "w2"] {
            cluster.wait_for_executor(name).await?;
        }
        let schedulers = vec![first, second];
        Self::new(Composition::Cluster(Box::new(cluster), schedulers, workers)).await
    }

    async fn new(composition: Composition) -> Result<Self> {
        let mut server = Self {
            composition,
            executors: Vec::new(),
        };
        server.executors = try_eventually("an executor is alive", WITHIN, async || {
            let list = server.get("/executors").await?;
            let list = list["executors"].as_array().context("a list")?;
            let names: Vec<String> = list
                .iter()
                .filter_map(|executor| executor["name"].as_str().map(str::to_owned))
                .collect();
            anyhow::Ok(if names.is_empty() {
                Err("none")
            } else {
                Ok(names)
            })
        })
        .await?;
        Ok(server)
    }

    fn running(standalone: Option<&Standalone>) -> Result<&Standalone> {
        standalone.context("the server is down")
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value> {
        match &self.composition {
            Composition::Standalone(_, server) => {
                Self::running((**server).as_ref())?.get(path).await
            }
            Composition::Cluster(cluster, ..) => cluster.client.get(path).await,
        }
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        match &self.composition {
            Composition::Standalone(_, server) => {
                Self::running((**server).as_ref())?.post(path, body).await
            }
            Composition::Cluster(cluster, ..) => cluster.client.post(path, body).await,
        }
    }

    /// Runs a command to its end.
    pub(super) async fn run(&self, args: &[&str]) -> Result<Finished> {
        match &self.composition {
            Composition::Standalone(_, server) => {
                Self::running((**server).as_ref())?.run(args).await
            }
            Composition::Cluster(cluster, ..) => cluster.run(args).await,
        }
    }

    /// A file for the handlers of a scenario.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        match &self.composition {
            Composition::Standalone(folder, _) => folder.path().join(name),
            Composition::Cluster(cluster, ..) => cluster.path(name),
        }
    }

    /// The end of what the processes have logged.
    pub(super) fn log(&self) -> String {
        let log = match &self.composition {
            Composition::Standalone(_, server) => {
                (**server).as_ref().map(Standalone::log).unwrap_or_default()
            }
            Composition::Cluster(cluster, ..) => cluster.logs(),
        };
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(200)..].join("\n")
    }

    /// SIGKILL to the process that runs the handlers of this executor. What it does comes back with it, or goes elsewhere.
    pub(super) async fn kill_executor(&mut self, name: &str) -> Result<()> {
        match &mut self.composition {
            Composition::Standalone(folder, server) => {
                server.take().context("the server is down")?.kill().await?;
                **server = Some(Standalone::start(&folder.path().join("data"), &[]).await?);
                Ok(())
            }
            Composition::Cluster(_, _, workers) => {
                let worker = workers.iter_mut().find(|worker| worker.name == name);
                worker.context("no such worker")?.kill().await
            }
        }
    }

    /// Stops all schedulers.
    pub(super) async fn stop_schedulers(&mut self) -> Result<()> {
        match &mut self.composition {
            Composition::Standalone(_, server) => {
                server
                    .take()
                    .context("the server is down")?
                    .terminate()
                    .await
            }
            Composition::Cluster(_, schedulers, _) => {
                for scheduler in schedulers {
                    scheduler.terminate().await?;
                }
                Ok(())
            }
        }
    }

    /// Starts them again.
    pub(super) async fn start_schedulers(&mut self) -> Result<()> {
        match &mut self.composition {
            Composition::Standalone(folder, server) => {
                **server = Some(Standalone::start(&folder.path().join("data"), &[]).await?);
                Ok(())
            }
            Composition::Cluster(cluster, schedulers, _) => {
                for scheduler in schedulers.iter_mut() {
                    scheduler.start()?;
                }
                cluster.wait_until_ready(&mut schedulers[0]).await
            }
        }
    }

    /// Publishes a request for a run of the job, as a program on the broker does. The embedded broker is a file that only
    /// one process may open, so the server is away meanwhile.
    pub(super) async fn publish_request(&mut self, job: &str, message: &Value) -> Result<()> {
        let payload = message.to_string();
        match &self.composition {
            Composition::Standalone(folder, _) => {
                let file = folder.path().join("data").join("queue.db");
                self.stop_schedulers().await?;
                publish_to_file(&file, job, payload).await?;
                self.start_schedulers().await
            }
            Composition::Cluster(cluster, ..) if cluster.broker.starts_with("nats") => {
                publish_to_nats(&cluster.broker, job, payload).await
            }
            Composition::Cluster(cluster, ..) => {
                publish_to_rabbitmq(&cluster.broker, job, payload).await
            }
        }
    }

    /// Ends all processes that are still there.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.stop_schedulers().await
    }
}

async fn publish_to_file(file: &Path, job: &str, payload: String) -> Result<()> {
    let driver = EmbeddedDriver::open(file, EmbeddedOptions::default()).await?;
    let message = Outgoing {
        queue: QueueId::Requests,
        topic: job.to_owned(),
        id: String::new(),
        payload: payload.into(),
    };
    for answer in driver.publish(&[message]).await? {
        answer?;
    }
    driver.close().await;
    Ok(())
}

async fn publish_to_nats(url: &str, job: &str, payload: String) -> Result<()> {
    let patient = async_nats::ConnectOptions::new().connection_timeout(WITHIN);
    let mut stream = jetstream::new(patient.connect(url).await?);
    stream.set_timeout(WITHIN);
    let subject = format!("cueline.request._._.{job}");
    stream.publish(subject, payload.into()).await?.await?;
    Ok(())
}

async fn publish_to_rabbitmq(url: &str, job: &str, payload: String) -> Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let confirms = ConfirmSelectOptions::default();
    channel.confirm_select(confirms).await?;
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let sent = channel
        .basic_publish(
            "cueline.requests".into(),
            job.into(),
            options,
            payload.as_bytes(),
            properties,
        )
        .await?;
    ensure!(sent.await?.is_ack(), "the broker refused it");
    Ok(())
}

/// What scenarios do again and again.
impl Server {
    pub(super) async fn apply(&self, jobs: &Value) -> Result<Value> {
        self.post("/jobs/apply", &json!({ "jobs": jobs })).await
    }

    pub(super) async fn now(&self) -> Result<i64> {
        self.get("/jobs?limit=1").await?["now"]
            .as_i64()
            .context("a time")
    }

    /// Triggers a job. Returns the ids of its runs.
    pub(super) async fn trigger(&self, job: &str, body: &Value) -> Result<Vec<i64>> {
        let path = format!("/jobs/{job}/trigger");
        let answer = self.post(&path, body).await?;
        let runs = answer["runs"].as_array().context("runs")?;
        runs.iter().map(|id| id.as_i64().context("an id")).collect()
    }

    /// Triggers a job of one shard.
    pub(super) async fn trigger_one(&self, job: &str) -> Result<i64> {
        let runs = self.trigger(job, &json!({})).await?;
        runs.first().copied().context("a run")
    }

    /// The runs of a job, oldest first.
    pub(super) async fn runs(&self, job: &str) -> Result<Vec<Value>> {
        let listed = self.get(&format!("/runs?job={job}&limit=1000")).await?;
        let mut runs = listed["runs"].as_array().context("a list")?.clone();
        runs.reverse();
        Ok(runs)
    }

    /// Waits until the runs of a job are as `is_so` says.
    pub(super) async fn until(
        &self,
        job: &str,
        what: &str,
        is_so: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>> {
        try_eventually(format!("{job}: {what}"), WITHIN, async || {
            let runs = self.runs(job).await?;
            anyhow::Ok(if is_so(&runs) {
                Ok(runs)
            } else {
                let last = runs.iter().rev().take(5).map(ToString::to_string);
                Err(last.collect::<Vec<_>>().join("\n"))
            })
        })
        .await
    }

    /// Waits until the run is in this state. Returns it.
    pub(super) async fn reached(&self, run: i64, state: &str) -> Result<Value> {
        let path = format!("/runs/{run}");
        try_eventually(format!("run {run} is {state}"), WITHIN, async || {
            let run = self.get(&path).await?;
            let is_there = run["state"] == state;
            anyhow::Ok(if is_there {
                Ok(run)
            } else {
                Err(run.to_string())
            })
        })
        .await
    }

    /// Triggers a job and waits until its run is in this state. Returns it.
    pub(super) async fn run_to(&self, job: &str, state: &str) -> Result<Value> {
        let run = self.trigger_one(job).await?;
        self.reached(run, state).await
    }
}

/// How many of the runs are in this state.
pub(super) fn count(runs: &[Value], state: &str) -> usize {
    runs.iter().filter(|run| run["state"] == state).count()
}

/// The fire time of a run.
pub(super) fn fire_at(run: &Value) -> i64 {
    run["fire_at"].as_i64().unwrap_or_default()
}
