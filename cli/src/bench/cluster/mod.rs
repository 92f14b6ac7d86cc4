//! Loads on a cluster: schedulers and workers as processes of their own, on the user's PostgreSQL and broker.

mod members;
mod run;
pub(super) mod worker;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use cueline_store::Store;
use tokio::time::{Instant, sleep};

use members::Member;
use worker::Answer;

use super::database::Database;
use super::noop::{Lateness, lateness};
use super::scratch::Scratch;
use super::usage::{Usage, Watched};
use super::{Servers, rubbish};
use crate::adapters::{OpenStore, StoreSettings, StoreUrl};
use crate::failure::Failure;

pub(super) use run::run;

/// How long a process may take to be of use.
const READY_WITHIN: Duration = Duration::from_mins(1);

fn made<T>(secret: std::result::Result<T, Failure>) -> Result<T> {
    secret.map_err(|failure| match failure {
        Failure::Failed { message, .. } => anyhow!(message),
        other => anyhow!("{other:?}"),
    })
}

/// A running cluster with a database and a prefix on the broker of its own.
struct Cluster {
    servers: Servers,
    scratch: Scratch,
    database: Database,
    prefix: String,
    schedulers: Vec<Member>,
    workers: Vec<Member>,
    store: OpenStore,
    /// Of the API of the first scheduler.
    url: String,
    token: String,
}

impl Cluster {
    /// Starts everything, and waits until the schedulers hear the workers.
    async fn start(servers: &Servers, data: Option<&Path>, name: &str) -> Result<Self> {
        let scratch = Scratch::new(data, name)?;
        let database = Database::create(&servers.store, name).await?;
        let settings = StoreSettings {
            application: "cueline bench".to_owned(),
            ..StoreSettings::default()
        };
        let url = StoreUrl::parse(&database.url).map_err(crate::failure::BadInput)?;
        let store = match url.open(&settings).await {
            Ok(store) => store,
            Err(e) => {
                // What went wrong first says more.
                let _ = database.drop().await;
                return Err(e.into());
            }
        };
        let prefix = format!("bench-{}-{name}", std::process::id());
        let mut cluster = Self {
            servers: servers.clone(),
            scratch,
            database,
            prefix,
            schedulers: Vec::new(),
            workers: Vec::new(),
            store,
            url: String::new(),
            token: String::new(),
        };
        if let Err(e) = cluster.begin().await {
            // What went wrong first says more.
            let _ = cluster.end().await;
            return Err(e);
        }
        Ok(cluster)
    }

    async fn begin(&mut self) -> Result<()> {
        self.write_files()?;
        self.start_schedulers()?;
        for n in 1..=self.servers.workers {
            let member = self.start_worker(n)?;
            self.workers.push(member);
        }
        self.all_heard().await
    }

    /// Keys, token and configuration, for nobody else to read.
    fn write_files(&mut self) -> Result<()> {
        let folder = self.scratch.path();
        let write = |name: &str, text: &str| -> Result<()> {
            use std::io::Write as _;
            use std::os::unix::fs::OpenOptionsExt as _;
            let mut options = std::fs::File::options();
            let options = options.write(true).create_new(true).mode(0o600);
            let mut file = options.open(folder.join(name))?;
            Ok(file.write_all(text.as_bytes())?)
        };
        self.token = made(crate::keys::new_token())?;
        write("token", &self.token)?;
        write("signing.key", &made(crate::keys::new_secret())?.1)?;
        write("store", &self.database.url)?;
        write("broker", &self.servers.broker)?;
        let prefix = &self.prefix;
        write(
            "cueline.toml",
            &format!(
                "store_file = \"store\"\nbroker_file = \"broker\"\nbroker_prefix = \"{prefix}\"\ntoken_file = \"token\"\nsigning_key = \"signing.key\"\n"
            ),
        )
    }

    fn start_schedulers(&mut self) -> Result<()> {
        for n in 1..=self.servers.schedulers {
            let port = std::net::TcpListener::bind("127.0.0.1:0")?
                .local_addr()?
                .port();
            let listen = format!("127.0.0.1:{port}");
            if n == 1 {
                self.url = format!("http://{listen}/api/v1");
            }
            let name = format!("scheduler-{n}");
            let args = ["scheduler", "--config", "cueline.toml", "--name", &name];
            let args = [&args[..], &["--listen", &listen]].concat();
            let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
            let member = Member::start(&name, &args, self.scratch.path(), false)?;
            self.schedulers.push(member);
        }
        Ok(())
    }

    fn start_worker(&self, n: usize) -> Result<Member> {
        let name = format!("worker-{n}");
        let state = self.scratch.path().join(&name);
        std::fs::create_dir(&state)?;
        let state = state.display().to_string();
        let args = ["bench-worker", "--broker-file", "broker", "--name", &name];
        let more = ["--broker-prefix", &self.prefix, "--state-dir", &state];
        let args: Vec<String> = args.into_iter().chain(more).map(str::to_owned).collect();
        Member::start(&name, &args, self.scratch.path(), true)
    }

    async fn stop_schedulers(&mut self) -> Result<()> {
        for scheduler in self.schedulers.drain(..) {
            scheduler.stop().await?;
        }
        Ok(())
    }

    /// Waits until every worker is known.
    async fn all_heard(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let folder = self.scratch.path();
            for member in self.schedulers.iter_mut().chain(&mut self.workers) {
                member.is_there(folder)?;
            }
            let known = self.store().executors().await?.len();
            if known == self.workers.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{known} of {} workers are heard", self.workers.len());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.store.store
    }

    /// Asks all workers.
    async fn ask(&mut self, question: &str) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for worker in &mut self.workers {
            answers.push(worker.ask(question).await?);
        }
        Ok(answers)
    }

    /// Attempts that all workers have seen so far.
    async fn attempts(&mut self) -> Result<u64> {
        Ok(self.ask("count").await?.iter().map(|a| a.attempts).sum())
    }

    /// What all workers have measured.
    async fn measured(&mut self) -> Result<Lateness> {
        let mut all = lateness();
        for answer in self.ask("measured").await? {
            answer.add_to(&mut all);
        }
        Ok(all)
    }

    /// What every process has cost so far.
    fn usage(&self) -> Result<Usage> {
        let members = self.schedulers.iter().chain(&self.workers);
        let members = members.map(|m| {
            let name = m.name.clone();
            Ok(Watched {
                name,
                pid: m.pid()?,
            })
        });
        let mut watched = members.collect::<Result<Vec<_>>>()?;
        watched.extend(self.servers.watch.iter().cloned());
        Ok(Usage::now(watched))
    }

    /// Stops everything and leaves nothing behind on the servers, as far as it can; the first thing that went wrong.
    async fn end(mut self) -> Result<()> {
        let stopped = self.stop().await;
        self.store.close().await;
        let dropped = self.database.drop().await;
        let swept = rubbish::sweep(&self.servers.broker, &self.prefix).await;
        stopped?;
        dropped?;
        swept.with_context(|| format!("failed to delete what begins with {}", self.prefix))
    }

    /// Stops all of them, whatever becomes of one.
    async fn stop(&mut self) -> Result<()> {
        let mut first = Ok(());
        for member in self.schedulers.drain(..).chain(self.workers.drain(..)) {
            let stopped = member.stop().await;
            first = first.and(stopped);
        }
        first
    }
}
