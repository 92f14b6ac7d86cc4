//! The cluster of a storm: PostgreSQL, a broker, schedulers and workers.
//!
//! Each scheduler and worker has its own proxies to the servers, so that a fault can disconnect a single one.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::proxy::{Link, Proxy};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::try_eventually;
use tempfile::TempDir;

use crate::client::{Client, WITHIN};
use crate::cluster::Cluster;
use crate::execution_log::{ExecutionLog, FILE_VARIABLE};
use crate::process::Process;
use crate::program;
use crate::standalone::free_port;

/// The broker's server.
#[derive(Debug)]
pub enum BrokerServer {
    Nats(Nats),
    Rabbit(Rabbit),
}

impl BrokerServer {
    /// A NATS server of the newer version.
    pub fn nats() -> Result<Self> {
        Ok(Self::Nats(Nats::start(Version::V2_12)?))
    }

    /// A RabbitMQ server.
    pub fn rabbit() -> Result<Self> {
        Ok(Self::Rabbit(Rabbit::start()?))
    }

    fn url(&self) -> String {
        match self {
            Self::Nats(nats) => nats.url(),
            Self::Rabbit(rabbit) => rabbit.url("/"),
        }
    }

    /// SIGKILL, and a start on the same data.
    pub fn kill_and_start(&mut self) -> Result<()> {
        match self {
            Self::Nats(nats) => {
                nats.kill()?;
                nats.start_again()
            }
            Self::Rabbit(rabbit) => {
                rabbit.kill()?;
                rabbit.start_again()
            }
        }
    }

    /// SIGSTOP.
    pub fn pause(&self) -> Result<()> {
        match self {
            Self::Nats(nats) => nats.pause(),
            Self::Rabbit(rabbit) => rabbit.pause(),
        }
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        match self {
            Self::Nats(nats) => nats.resume(),
            Self::Rabbit(rabbit) => rabbit.resume(),
        }
    }
}

/// A scheduler or a worker, and its connections to the servers.
#[derive(Debug)]
pub struct Member {
    pub process: Process,
    /// Only a scheduler has one.
    store: Option<Proxy>,
    broker: Proxy,
}

impl Member {
    /// Changes its connections to both servers.
    pub fn set_links(&self, link: Link) {
        self.set_store_link(link);
        self.set_broker_link(link);
    }

    /// Changes its connections to the store, if it has any.
    pub fn set_store_link(&self, link: Link) {
        if let Some(store) = &self.store {
            store.set(link);
        }
    }

    /// Changes its connections to the broker.
    pub fn set_broker_link(&self, link: Link) {
        self.broker.set(link);
    }
}

/// Servers and members.
#[derive(Debug)]
pub struct StormCluster {
    cluster: Cluster,
    _locks: TempDir,
    pub postgres: Postgres,
    pub broker: BrokerServer,
    pub schedulers: Vec<Member>,
    pub workers: Vec<Member>,
    pub client: Client,
}

/// The work of an executor that is silent for this long goes to others. The time is short, so that faults need not be
/// long to outlast every lease. `CUELINE_TEST_FAILOVER_SECS` extends it for a busy machine.
pub fn failover_after() -> Duration {
    let given = std::env::var("CUELINE_TEST_FAILOVER_SECS");
    let given = given.ok().and_then(|secs| secs.parse().ok());
    Duration::from_secs(given.unwrap_or(5))
}

/// A scheduler's lease.
pub fn lease() -> Duration {
    failover_after() / 2
}

/// After a request to stop, a worker's attempts have this long to end.
pub const DRAIN: Duration = Duration::from_secs(4);

/// The address with the server replaced by the proxy.
fn behind(url: &str, proxy: &Proxy) -> Result<String> {
    Ok(url.replacen(host_and_port(url)?, &proxy.addr().to_string(), 1))
}

fn host_and_port(url: &str) -> Result<&str> {
    let rest = url.split_once("://").context("an address has a scheme")?.1;
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    Ok(authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host))
}

fn proxy_to(url: &str) -> Result<Proxy> {
    let addr = host_and_port(url)?.replace("localhost", "127.0.0.1");
    let addr: SocketAddr = addr
        .parse()
        .with_context(|| format!("not an address: {addr}"))?;
    Proxy::start(addr)
}

impl StormCluster {
    /// Starts everything and waits until each scheduler receives heartbeats of each worker.
    pub async fn start(broker: BrokerServer, schedulers: usize, workers: usize) -> Result<Self> {
        let postgres = Postgres::start()?;
        let store = postgres.url(&postgres.create_database()?);
        let cluster = Cluster::new(store, broker.url()).await?;
        let locks = match Path::new("/dev/shm") {
            memory if memory.is_dir() => tempfile::tempdir_in(memory)?,
            _ => tempfile::tempdir()?,
        };
        std::os::unix::fs::symlink(locks.path(), cluster.path("locks"))?;
        let ports = (0..schedulers).map(|_| free_port());
        let ports = ports.collect::<Result<Vec<_>>>()?;
        let urls = ports.iter().map(|port| format!("http://127.0.0.1:{port}"));
        let client = Client::new(urls.collect(), cluster.token()?)?;
        let mut started = Self {
            cluster,
            _locks: locks,
            postgres,
            broker,
            schedulers: Vec::new(),
            workers: Vec::new(),
            client,
        };
        for (n, port) in (1..).zip(ports) {
            let member = started.scheduler(n, port)?;
            started.schedulers.push(member);
        }
        for n in 1..=workers {
            let member = started.worker(n)?;
            started.workers.push(member);
        }
        started.start_stopped()?;
        started.wait_for_heartbeats().await?;
        Ok(started)
    }

    fn scheduler(&self, n: usize, port: u16) -> Result<Member> {
        let (store, broker) = (
            proxy_to(&self.cluster.store)?,
            proxy_to(&self.cluster.broker)?,
        );
        let name = format!("scheduler-{n}");
        let args = [
            "scheduler",
            "--name",
            &name,
            "--store",
            &behind(&self.cluster.store, &store)?,
            "--broker",
            &behind(&self.cluster.broker, &broker)?,
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--token-file",
            "admin.token",
            "--signing-key",
            "signing.key",
            "--failover-after",
            &format!("{}s", failover_after().as_secs()),
        ];
        let process = Process::new(&name, program::cueline(), &args, self.folder());
        Ok(Member {
            process: process.env("CUELINE_LOG", LOG_LEVELS),
            store: Some(store),
            broker,
        })
    }

    fn worker(&self, n: usize) -> Result<Member> {
        let broker = proxy_to(&self.cluster.broker)?;
        let name = format!("worker-{n}");
        let args = [
            "worker",
            "--name",
            &name,
            "--broker",
            &behind(&self.cluster.broker, &broker)?,
            "--trust",
            "signing.key.public",
            "--allow",
            "command",
            "--state-dir",
            &format!("state-{n}"),
            "--concurrency",
            "200",
            "--failover-after",
            &format!("{}s", failover_after().as_secs()),
            "--drain-timeout",
            &format!("{}s", DRAIN.as_secs()),
        ];
        let process = Process::new(&name, program::test_worker(), &args, self.folder());
        let log = self.execution_log();
        Ok(Member {
            process: process
                .env("CUELINE_LOG", LOG_LEVELS)
                .env(FILE_VARIABLE, log.path()),
            store: None,
            broker,
        })
    }

    /// The folder with all files of the cluster.
    pub fn folder(&self) -> &Path {
        self.cluster.folder.path()
    }

    /// The log that all handlers write.
    pub fn execution_log(&self) -> ExecutionLog {
        ExecutionLog::in_folder(self.folder())
    }

    /// All schedulers, then all workers.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.schedulers.iter().chain(&self.workers)
    }

    fn members_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.schedulers.iter_mut().chain(&mut self.workers)
    }

    /// Starts the members that were killed or stopped.
    pub fn start_stopped(&mut self) -> Result<()> {
        let mut members = self.members_mut();
        members.try_for_each(|member| {
            if member.process.is_started() {
                Ok(())
            } else {
                member.process.start()
            }
        })
    }

    /// Waits until every scheduler is ready and receives heartbeats of every worker.
    pub async fn wait_for_heartbeats(&mut self) -> Result<()> {
        let workers = self.workers.iter().map(|w| w.process.name.clone());
        let workers: Vec<String> = workers.collect();
        for at in 0..self.client.schedulers() {
            let expected = "every scheduler receives heartbeats of every worker";
            let received = try_eventually(expected, WITHIN, async || {
                self.check_running()?;
                let list = match self.client.get_from(at, "/executors").await {
                    Ok(mut answer) => answer["executors"].take(),
                    Err(e) => return Ok(Err(format!("{e:#}"))),
                };
                let is_alive = |name: &String| {
                    list.as_array().into_iter().flatten().any(|e| {
                        e["name"] == name.as_str()
                            && e["silent_ms"].as_u64().is_some_and(|ms| ms < 2_000)
                            && e["gone"] == false
                            && e["draining"] == false
                    })
                };
                let all = workers.iter().all(is_alive).then_some(());
                anyhow::Ok(all.ok_or(list.to_string()))
            });
            let received = received.await;
            received.with_context(|| self.last_lines())?;
        }
        Ok(())
    }

    /// Fails if a member has ended by itself.
    fn check_running(&mut self) -> Result<()> {
        self.members_mut()
            .try_for_each(|member| member.process.check_running())
    }

    /// The ends of all logs, for messages.
    pub fn last_lines(&self) -> String {
        self.members().fold(String::new(), |all, m| {
            all + &format!("── {}\n{}\n", m.process.name, m.process.last_lines())
        })
    }
}

const LOG_LEVELS: &str = "info,sqlx=warn";
