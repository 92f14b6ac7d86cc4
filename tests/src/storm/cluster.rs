//! The cluster of a storm: servers, schedulers and workers.
//!
//! Each scheduler and worker has its own proxies to the servers, so that a fault can disconnect a single one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cueline_runtime::clock_steps;
use cueline_test_servers::free_port;
use cueline_test_support::try_eventually;
use tempfile::TempDir;

use super::connection::Connection;
use super::full_disk::WorkerDisk;
use super::lane_log;
use super::servers::{BrokerServer, Setup, StoreServer, setup};
use crate::client::{Client, WITHIN};
use crate::cluster::{Cluster, ENROL_TOKEN};
use crate::execution_log::{ExecutionLog, FILE_VARIABLE};
use crate::process::Process;
use crate::program;

/// A scheduler or a worker, and its connections to the servers.
#[derive(Debug)]
pub struct Member {
    pub process: Process,
    /// Only a scheduler has one.
    store: Option<Arc<Connection>>,
    broker: Arc<Connection>,
    /// The file with the offset of its clock. Only a scheduler has one, because a worker's clock tells when attempts
    /// ended, which the checker compares with other times.
    clock: Option<PathBuf>,
    /// Of the state directory. Only one worker has one. Dropped after the process, which uses it.
    disk: Option<WorkerDisk>,
}

impl Member {
    /// Its connections to both servers.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        let store = self.store.iter();
        store.chain([&self.broker]).map(Arc::clone).collect()
    }

    /// Steps its wall clock to this offset from the machine's. Works in a build with clock steps.
    pub fn set_clock(&self, offset_ms: i64) -> Result<()> {
        let file = self.clock.as_ref().context("it has no clock of its own")?;
        let new = file.with_extension("new");
        std::fs::write(&new, offset_ms.to_string())?;
        // The process reads the file at any time, and must find it whole.
        std::fs::rename(&new, file)?;
        Ok(())
    }

    /// The disk of its state directory.
    pub fn disk(&self) -> Result<&WorkerDisk> {
        self.disk.as_ref().context("it has no disk of its own")
    }
}

/// Servers and members.
#[derive(Debug)]
pub struct StormCluster {
    cluster: Cluster,
    _locks: TempDir,
    pub store: StoreServer,
    pub broker: BrokerServer,
    pub schedulers: Vec<Member>,
    pub workers: Vec<Member>,
    pub client: Client,
    /// Why no worker has a disk of its own.
    pub no_worker_disk: Option<String>,
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

/// The most attempts that a worker has started at once, or is about to start.
pub const CONCURRENCY: usize = 200;

/// The worker with a disk of its own, if any has one. Numbered from 0.
pub const WORKER_WITH_DISK: usize = 2;

/// After a request to stop, a worker's attempts have this long to end.
pub const DRAIN: Duration = Duration::from_secs(4);

impl StormCluster {
    /// Starts everything and waits until each scheduler receives heartbeats of each worker.
    pub async fn start(
        broker: BrokerServer,
        store: StoreServer,
        schedulers: usize,
        workers: usize,
    ) -> Result<Self> {
        let cluster = Cluster::new(store.create_database()?, broker.urls().join(",")).await?;
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
            store,
            broker,
            schedulers: Vec::new(),
            workers: Vec::new(),
            client,
            no_worker_disk: None,
        };
        for (n, port) in (1..).zip(ports) {
            let member = started.scheduler(n, port)?;
            started.schedulers.push(member);
        }
        for n in 1..=workers {
            let disk = if n == WORKER_WITH_DISK + 1 {
                started.mount_worker_disk(n)?
            } else {
                None
            };
            let member = started.worker(n, schedulers + n, disk)?;
            started.workers.push(member);
        }
        started.start_stopped()?;
        started.wait_for_heartbeats().await?;
        Ok(started)
    }

    fn scheduler(&self, n: usize, port: u16) -> Result<Member> {
        let (store, store_url) =
            Connection::with_proxies(std::slice::from_ref(&self.cluster.store))?;
        let (broker, broker_url) = self.broker.connect(n)?;
        let name = format!("scheduler-{n}");
        let args = [
            "scheduler",
            "--name",
            &name,
            "--store",
            &store_url,
            "--broker",
            &broker_url,
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--token-file",
            "admin.token",
            "--signing-key",
            "signing.key",
            "--enrol-token-file",
            ENROL_TOKEN,
            "--failover-after",
            &format!("{}s", failover_after().as_secs()),
        ];
        let args = with_replicas(&args, &self.broker);
        let process = Process::new(&name, program::cueline(), &args, self.folder());
        let clock = self.cluster.path(&format!("clock-{n}"));
        let process = process
            .env("CUELINE_LOG", LOG_LEVELS)
            .env(clock_steps::VARIABLE, clock.clone());
        Ok(Member {
            process: with_planted_bug(process),
            store: Some(store),
            broker,
            clock: Some(clock),
            disk: None,
        })
    }

    /// The disk of worker `n`. Notes the reason if it cannot have one.
    fn mount_worker_disk(&mut self, n: usize) -> Result<Option<WorkerDisk>> {
        match WorkerDisk::mount(&self.cluster.path(&state_dir(n)))? {
            Ok(disk) => Ok(Some(disk)),
            Err(why) => {
                self.no_worker_disk = Some(why);
                Ok(None)
            }
        }
    }

    /// Worker `n`, which is member `member` of schedulers and workers together.
    fn worker(&self, n: usize, member: usize, disk: Option<WorkerDisk>) -> Result<Member> {
        let (broker, broker_url) = self.broker.connect(member)?;
        let name = format!("worker-{n}");
        let args = [
            "worker",
            "--name",
            &name,
            "--broker",
            &broker_url,
            "--trust",
            "signing.key.public",
            "--enrol-token-file",
            ENROL_TOKEN,
            "--allow",
            "command",
            "--state-dir",
            &state_dir(n),
            "--concurrency",
            &CONCURRENCY.to_string(),
            "--failover-after",
            &format!("{}s", failover_after().as_secs()),
            "--drain-timeout",
            &format!("{}s", DRAIN.as_secs()),
        ];
        let mut args = with_replicas(&args, &self.broker);
        if let Some(disk) = &disk {
            args.extend(["--health".to_owned(), disk.health().to_owned()]);
        }
        let mut process = Process::new(&name, program::test_worker(), &args, self.folder());
        if let Some(disk) = &disk {
            let (launcher, first_args) = disk.launcher(self.folder());
            process = process.launched_by(launcher, first_args);
        }
        let log = self.execution_log();
        Ok(Member {
            process: with_planted_bug(
                process
                    .env("CUELINE_LOG", worker_log_levels())
                    .env(FILE_VARIABLE, log.path()),
            ),
            store: None,
            broker,
            clock: None,
            disk,
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

    /// What decides which faults are possible.
    pub fn setup(&self) -> Setup {
        let worker_disk = self.workers.iter().any(|worker| worker.disk.is_some());
        setup(&self.broker, &self.store, worker_disk)
    }

    /// Copies the worker's files from its own disk into the folder, as they are now.
    pub fn keep_worker_disk(&self) -> Result<()> {
        let mut disks = self.workers.iter().filter_map(|w| w.disk.as_ref());
        disks.try_for_each(WorkerDisk::copy_out)
    }

    /// All connections to the broker.
    pub fn broker_connections(&self) -> Vec<Arc<Connection>> {
        self.members().map(|m| Arc::clone(&m.broker)).collect()
    }

    /// All connections to the store.
    pub fn store_connections(&self) -> Vec<Arc<Connection>> {
        let stores = self.members().filter_map(|m| m.store.as_ref());
        stores.map(Arc::clone).collect()
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

/// The state directory of worker `n`, in the cluster's folder.
fn state_dir(n: usize) -> String {
    format!("state-{n}")
}

/// The arguments of a member, with the number of copies of each message on a cluster.
fn with_replicas(args: &[&str], broker: &BrokerServer) -> Vec<String> {
    let mut all: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    if let Some(replicas) = broker.replicas() {
        all.extend(["--broker-replicas".to_owned(), replicas.to_string()]);
    }
    all
}

const LOG_LEVELS: &str = "info,sqlx=warn";

/// Workers also say what their lanes do.
fn worker_log_levels() -> String {
    format!("{LOG_LEVELS},{}", lane_log::LOG_LEVEL)
}

/// Passes on which bug is planted, in a build with such bugs. Otherwise processes get no `CUELINE_*` variables of the
/// test.
fn with_planted_bug(process: Process) -> Process {
    #[cfg(feature = "planted-bugs")]
    if let Some(bug) = std::env::var_os(cueline_runtime::planted::VARIABLE) {
        return process.env(cueline_runtime::planted::VARIABLE, bug);
    }
    process
}
