//! A cluster: schedulers and workers as processes. They have their own database, and their own prefix on the broker.

mod backlog;
mod failovers;
mod fleet;
mod fleet_failover;
mod fleet_phase;
mod jobs;
mod scenarios;
mod snapshot;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::time::{Instant, sleep};

use crate::args::Servers;
use crate::database::Database;
use crate::fleet_args::FleetProcess;
use crate::noop::{Lateness, lateness};
use crate::process::{Io, Process};
use crate::scratch_dir::ScratchDir;
use crate::usage::{Usage, Watched};
use crate::worker::{Answer, Question};
use crate::{Host, OpenStore, broker};

pub(crate) use fleet::run as run_fleet;
pub(crate) use scenarios::run;

/// How long processes may take until they are ready.
const READY_TIMEOUT: Duration = Duration::from_mins(1);
/// The file with the token that enrols all workers.
const ENROL_TOKEN: &str = "enrol.token";

/// The key of the schedulers, and its public half.
const SIGNING_KEY: &str = "signing.key";
const TRUSTED_KEYS: &str = "trusted.keys";

struct Cluster {
    servers: Servers,
    scratch: ScratchDir,
    database: Database,
    prefix: String,
    schedulers: Vec<Process>,
    workers: Vec<Process>,
    store: OpenStore,
    /// The address of the database for the schedulers.
    store_url: String,
    /// The APIs of the schedulers.
    urls: Vec<String>,
    /// The names of the executors, in the group `default`.
    executors: Vec<String>,
}

impl Cluster {
    /// Starts all processes, and waits until the schedulers know the workers.
    async fn start(
        host: &dyn Host,
        servers: &Servers,
        data: Option<&Path>,
        name: &str,
    ) -> Result<Self> {
        let mut cluster = Self::create(host, servers, data, name).await?;
        if let Err(e) = cluster.start_processes().await {
            let _ = cluster.end().await;
            return Err(e);
        }
        Ok(cluster)
    }

    /// Creates the database and a directory, without any process.
    async fn create(
        host: &dyn Host,
        servers: &Servers,
        data: Option<&Path>,
        name: &str,
    ) -> Result<Self> {
        let scratch = ScratchDir::new(data, name)?;
        let database = Database::create(&servers.store, name).await?;
        let store = match host.open_store(&database.url).await {
            Ok(store) => store,
            Err(e) => {
                // An error of this stop is ignored, because the first error names the cause.
                let _ = database.drop().await;
                return Err(e);
            }
        };
        Ok(Self {
            servers: servers.clone(),
            scratch,
            store_url: database.url.clone(),
            database,
            prefix: format!("bench-{}-{name}", std::process::id()),
            schedulers: Vec::new(),
            workers: Vec::new(),
            store,
            urls: Vec::new(),
            executors: Vec::new(),
        })
    }

    async fn start_processes(&mut self) -> Result<()> {
        self.write_files().await?;
        self.start_schedulers()?;
        for n in 1..=self.servers.workers {
            let name = format!("worker-{n}");
            self.start_worker(&name, &[])?;
            self.executors.push(name);
        }
        self.wait_for_workers().await
    }

    /// Writes addresses, keys, tokens and configuration into files that only this user can read.
    async fn write_files(&mut self) -> Result<()> {
        for (command, file) in [
            (&["token", "new"][..], "token"),
            (&["key", "new"], SIGNING_KEY),
            (&["worker-key", "token", "--offline"], ENROL_TOKEN),
        ] {
            let mut program = tokio::process::Command::new(std::env::current_exe()?);
            let program = program.args(command).args(["--out", file]);
            let output = program.current_dir(self.scratch.path()).output().await?;
            if !output.status.success() {
                bail!(
                    "failed to create {file}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            if file == SIGNING_KEY {
                // `key new` prints the public half.
                self.write(TRUSTED_KEYS, &String::from_utf8_lossy(&output.stdout))?;
            }
        }
        self.write("store", &self.store_url)?;
        self.write("broker", &self.servers.broker)?;
        let prefix = &self.prefix;
        self.write(
            "cueline.toml",
            &format!(
                "store_file = \"store\"\nbroker_file = \"broker\"\nbroker_prefix = \"{prefix}\"\ntoken_file = \"token\"\nsigning_key = [\"{SIGNING_KEY}\"]\nenrol_token_file = \"{ENROL_TOKEN}\"\n"
            ),
        )
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut options = std::fs::File::options();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(self.scratch.path().join(name))?;
        Ok(file.write_all(text.as_bytes())?)
    }

    fn token(&self) -> Result<String> {
        let token = std::fs::read_to_string(self.scratch.path().join("token"))?;
        Ok(token.trim().to_owned())
    }

    fn start_schedulers(&mut self) -> Result<()> {
        self.urls.clear();
        for n in 1..=self.servers.schedulers {
            let port = std::net::TcpListener::bind("127.0.0.1:0")?
                .local_addr()?
                .port();
            let listen = format!("127.0.0.1:{port}");
            self.urls.push(format!("http://{listen}/api/v1"));
            let name = format!("scheduler-{n}");
            let args = ["scheduler", "--config", "cueline.toml", "--name", &name];
            let args = [&args[..], &["--listen", &listen]].concat();
            let scheduler = Process::start(&name, &args, self.scratch.path(), Io::Log)?;
            self.schedulers.push(scheduler);
        }
        Ok(())
    }

    /// Starts a process of light executors.
    fn start_light_executors(&mut self, process: &FleetProcess) -> Result<()> {
        let (light, connections) = (
            process.executors.to_string(),
            process.connections.to_string(),
        );
        let light = ["--light", &light, "--connections", &connections];
        // Before the start, so that their queues are deleted if it fails.
        self.executors.extend(process.executor_names());
        self.start_worker(&process.name, &light)
    }

    fn start_worker(&mut self, name: &str, light: &[&str]) -> Result<()> {
        let state = self.scratch.path().join(name);
        std::fs::create_dir(&state)?;
        let state = state.display().to_string();
        let args = ["bench-worker", "--broker-file", "broker", "--name", name];
        let more = ["--broker-prefix", &self.prefix, "--state-dir", &state];
        let keys = ["--enrol-token-file", ENROL_TOKEN, "--trust", TRUSTED_KEYS];
        let args = [&args[..], &more, &keys, light].concat();
        let worker = Process::start(name, &args, self.scratch.path(), Io::Questions)?;
        self.workers.push(worker);
        Ok(())
    }

    /// Fails if a process has ended.
    fn check_running(&mut self) -> Result<()> {
        let mut processes = self.schedulers.iter_mut().chain(&mut self.workers);
        processes.try_for_each(Process::check_running)
    }

    async fn stop_schedulers(&mut self) -> Result<()> {
        for scheduler in self.schedulers.drain(..) {
            scheduler.stop().await?;
        }
        Ok(())
    }

    async fn wait_for_workers(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            self.check_running()?;
            let known = self.store.store.executors().await?.len();
            if known == self.workers.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the schedulers know {known} of {} workers",
                    self.workers.len()
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn ask_workers(&mut self, question: Question) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for worker in &mut self.workers {
            answers.push(question.ask(worker).await?);
        }
        Ok(answers)
    }

    /// Attempts of all workers so far.
    async fn attempts(&mut self) -> Result<u64> {
        let answers = self.ask_workers(Question::Count).await?;
        Ok(answers.iter().map(|answer| answer.attempts).sum())
    }

    /// The lateness that all workers have measured.
    async fn measured(&mut self) -> Result<Lateness> {
        let mut all = lateness();
        for answer in self.ask_workers(Question::Measured).await? {
            answer.add_to(&mut all);
        }
        Ok(all)
    }

    /// The cost of each process so far.
    fn usage(&self) -> Result<Usage> {
        let processes = self.schedulers.iter().chain(&self.workers);
        let watched = processes.map(|process| {
            Ok(Watched {
                name: process.name.clone(),
                pid: process.pid()?,
            })
        });
        let mut watched = watched.collect::<Result<Vec<_>>>()?;
        watched.extend(self.servers.watch.iter().cloned());
        Ok(Usage::now(watched))
    }

    /// Stops all processes, and deletes everything on the servers. Each step is tried; the first error is returned.
    async fn end(mut self) -> Result<()> {
        let mut stopped = Ok(());
        for process in self.schedulers.drain(..).chain(self.workers.drain(..)) {
            stopped = stopped.and(process.stop().await);
        }
        self.store.close.await;
        let dropped = self.database.drop().await;
        let deleted = broker::delete_all(&self.servers, &self.prefix, &self.executors).await;
        stopped?;
        dropped?;
        deleted.with_context(|| format!("failed to delete what begins with {}", self.prefix))
    }
}
