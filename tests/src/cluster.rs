//! A cluster: PostgreSQL, a broker, schedulers and workers, each a process of its own that can be killed, stopped and cut off.
//!
//! Each scheduler and worker has links of its own to the servers, so that one can be cut off and the others are not.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::proxy::{Link, Proxy};
use cueline_test_servers::rabbitmq::Rabbit;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::{Client, WITHIN};
use crate::standalone::{free_port, program};
use crate::{Patience, until, witness};

/// The broker product.
#[derive(Debug)]
pub enum BrokerServer {
    /// NATS JetStream.
    Nats(Nats),
    /// RabbitMQ.
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

    /// SIGKILL, and started again on its data.
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

/// A scheduler or a worker.
#[derive(Debug)]
pub struct Member {
    /// `scheduler-1`, `worker-3`.
    pub name: String,
    program: PathBuf,
    args: Vec<String>,
    child: Option<Child>,
    log: PathBuf,
    links: Vec<Proxy>,
}

impl Member {
    fn start(&mut self, folder: &Path) -> Result<()> {
        let out = File::options().append(true).create(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CUELINE_") {
                command.env_remove(name);
            }
        }
        command
            .args(&self.args)
            .current_dir(folder)
            .env("XDG_STATE_HOME", folder)
            .env("CUELINE_LOG", "info,sqlx=warn")
            .env("CUELINE_TEST_WITNESS", folder.join("witness"))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true);
        self.child = Some(command.spawn().context("failed to start cueline")?);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.child.as_ref().and_then(Child::id);
        let pid = id.with_context(|| format!("{} has ended: {}", self.name, self.last_lines()))?;
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
    }

    /// SIGSTOP, for it alone: the processes that it has started go on.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// SIGSTOP for it and for what it has started, as when a machine stands still.
    pub fn freeze(&self) -> Result<Vec<Pid>> {
        self.pause()?;
        // It starts nothing more now, so this finds all.
        let groups = self.children()?;
        for group in &groups {
            // One that has ended meanwhile stands still as well.
            let _ = killpg(*group, Signal::SIGSTOP);
        }
        Ok(groups)
    }

    /// SIGCONT for all of it.
    pub fn thaw(&self, groups: &[Pid]) -> Result<()> {
        self.resume()?;
        for group in groups {
            let _ = killpg(*group, Signal::SIGCONT);
        }
        Ok(())
    }

    /// The process groups that it has started.
    fn children(&self) -> Result<Vec<Pid>> {
        let own = self.child.as_ref().and_then(Child::id);
        let own = own.context("it has ended")?.to_string();
        let mut groups = Vec::new();
        for process in std::fs::read_dir("/proc")?.flatten() {
            let Ok(stat) = std::fs::read_to_string(process.path().join("stat")) else {
                continue;
            };
            // The name, in parentheses, is followed by the state, the parent and the group.
            let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
            if fields.nth(1) == Some(&own)
                && let Some(group) = fields.next().and_then(|g| g.parse().ok())
            {
                groups.push(Pid::from_raw(group));
            }
        }
        Ok(groups)
    }

    /// SIGTERM, and waits until it is gone; with which status.
    pub async fn end(&mut self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let mut child = self.child.take().context("it has ended already")?;
        let patience = Patience::of(within);
        while patience.pause().await {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
        }
        bail!(
            "G12: {} was not gone {within:?} after SIGTERM: {}",
            self.name,
            self.last_lines()
        )
    }

    /// Changes all its links to the servers.
    pub fn link(&self, link: Link) {
        for proxy in &self.links {
            proxy.set(link);
        }
    }

    /// Changes its link to the broker, or else to the store if it has one.
    pub fn link_to(&self, broker: bool, link: Link) {
        // The broker is the last of them.
        let proxy = if broker {
            self.links.last()
        } else {
            self.links.iter().rev().nth(1)
        };
        if let Some(proxy) = proxy {
            proxy.set(link);
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("it has ended already")?;
        child.start_kill()?;
        child.wait().await?;
        Ok(())
    }

    /// All that it has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn last_lines(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(15).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// The whole.
#[derive(Debug)]
pub struct Cluster {
    /// What all of it is in.
    pub folder: TempDir,
    _locks: TempDir,
    /// The store's server.
    pub postgres: Postgres,
    /// The broker's server.
    pub broker: BrokerServer,
    /// The schedulers.
    pub schedulers: Vec<Member>,
    /// The workers.
    pub workers: Vec<Member>,
    /// Its API.
    pub client: Client,
}

/// After how long a silence a worker's work is given to others: short, so that a stop for longer than every lease is short. `CUELINE_TEST_FAILOVER_SECS` gives a busy machine more.
pub fn failover_after() -> Duration {
    let given = std::env::var("CUELINE_TEST_FAILOVER_SECS");
    let given = given.ok().and_then(|secs| secs.parse().ok());
    Duration::from_secs(given.unwrap_or(5))
}

/// A node's lease: half of it.
pub fn lease() -> Duration {
    failover_after() / 2
}

/// What a worker gives to what runs when it is asked to stop.
pub const DRAIN: Duration = Duration::from_secs(4);

fn behind(url: &str, proxy: &Proxy) -> Result<String> {
    let addr = address_of(url)?;
    Ok(url.replacen(&addr, &proxy.addr().to_string(), 1))
}

/// `host:port` as it stands in the address.
fn address_of(url: &str) -> Result<String> {
    let rest = url.split_once("://").context("an address has a scheme")?.1;
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    Ok(host.to_owned())
}

fn upstream(url: &str) -> Result<SocketAddr> {
    let addr = address_of(url)?.replace("localhost", "127.0.0.1");
    addr.parse()
        .with_context(|| format!("not an address: {addr}"))
}

impl Cluster {
    /// Starts everything and waits until all workers are heard.
    pub async fn start(broker: BrokerServer, schedulers: usize, workers: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let locks = match Path::new("/dev/shm") {
            memory if memory.is_dir() => tempfile::tempdir_in(memory)?,
            _ => tempfile::tempdir()?,
        };
        std::os::unix::fs::symlink(locks.path(), folder.path().join("locks"))?;
        let postgres = Postgres::start()?;
        let store = postgres.url(&postgres.create_database()?);
        let mut cluster = Self {
            folder,
            _locks: locks,
            postgres,
            broker,
            schedulers: Vec::new(),
            workers: Vec::new(),
            client: Client::new(Vec::new(), String::new())?,
        };
        let token = cluster.make_secrets().await?;
        let mut urls = Vec::new();
        let failover_after = format!("{}s", failover_after().as_secs());
        let broker = cluster.broker.url();
        for n in 1..=schedulers {
            let port = free_port()?;
            urls.push(format!("http://127.0.0.1:{port}"));
            let links = vec![
                Proxy::start(upstream(&store)?)?,
                Proxy::start(upstream(&broker)?)?,
            ];
            let args = [
                "--name".into(),
                format!("scheduler-{n}"),
                "--store".into(),
                behind(&store, &links[0])?,
                "--broker".into(),
                behind(&broker, &links[1])?,
                "--listen".into(),
                format!("127.0.0.1:{port}"),
                "--token-file".into(),
                "admin.token".into(),
                "--signing-key".into(),
                "signing.key".into(),
                "--failover-after".into(),
                failover_after.clone(),
            ];
            let member = cluster.member("scheduler", n, args.to_vec(), links);
            cluster.schedulers.push(member);
        }
        for n in 1..=workers {
            let links = vec![Proxy::start(upstream(&broker)?)?];
            let args = [
                "--name".into(),
                format!("worker-{n}"),
                "--broker".into(),
                behind(&broker, &links[0])?,
                "--trust".into(),
                "signing.key.public".into(),
                "--allow".into(),
                "command".into(),
                "--state-dir".into(),
                format!("state-{n}"),
                "--concurrency".into(),
                "200".into(),
                "--failover-after".into(),
                failover_after.clone(),
                "--drain-timeout".into(),
                format!("{}s", DRAIN.as_secs()),
            ];
            let member = cluster.member("worker", n, args.to_vec(), links);
            cluster.workers.push(member);
        }
        cluster.client = Client::new(urls, token)?;
        cluster.start_all()?;
        cluster.all_heard().await?;
        Ok(cluster)
    }

    fn member(&self, role: &str, n: usize, args: Vec<String>, links: Vec<Proxy>) -> Member {
        let name = format!("{role}-{n}");
        Member {
            log: self.folder.path().join(format!("{name}.log")),
            program: if role == "worker" {
                witness::worker()
            } else {
                program()
            },
            args: [vec![role.to_owned()], args].concat(),
            child: None,
            links,
            name,
        }
    }

    async fn make_secrets(&self) -> Result<String> {
        let folder = self.folder.path().to_owned();
        let run = async |args: &[&str]| {
            let output = Command::new(program())
                .args(args)
                .current_dir(&folder)
                .output()
                .await?;
            if !output.status.success() {
                bail!("{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(output.stdout)
        };
        let public = run(&["key", "new", "--out", "signing.key"]).await?;
        std::fs::write(folder.join("signing.key.public"), public)?;
        run(&["token", "new", "--out", "admin.token"]).await?;
        let token = std::fs::read_to_string(folder.join("admin.token"))?;
        Ok(token.trim().to_owned())
    }

    fn start_all(&mut self) -> Result<()> {
        let folder = self.folder.path().to_owned();
        for member in self.schedulers.iter_mut().chain(&mut self.workers) {
            if member.child.is_none() {
                member.start(&folder)?;
            }
        }
        Ok(())
    }

    /// Starts whoever was killed.
    pub fn start_again(&mut self) -> Result<()> {
        self.start_all()
    }

    /// Waits until every scheduler is ready and hears every worker.
    pub async fn all_heard(&mut self) -> Result<()> {
        let names: Vec<String> = self.workers.iter().map(|w| w.name.clone()).collect();
        for at in 0..self.client.schedulers() {
            let heard = until("every scheduler hears every worker", WITHIN, async || {
                self.still_there()?;
                let Ok(Ok(list)) = self
                    .client
                    .get_from(at, "/executors")
                    .await
                    .map(|v| v["executors"].as_array().cloned().context("no list"))
                else {
                    return Ok(None);
                };
                let alive = |name: &String| {
                    list.iter().any(|e| {
                        e["name"] == name.as_str()
                            && e["silent_ms"].as_u64().is_some_and(|ms| ms < 2_000)
                            && e["gone"] == false
                            && e["draining"] == false
                    })
                };
                Ok(names.iter().all(alive).then_some(()))
            })
            .await;
            heard.with_context(|| self.last_lines())?;
        }
        Ok(())
    }

    /// A process that has ended by itself is a failure, whatever it was for.
    fn still_there(&mut self) -> Result<()> {
        for member in self.schedulers.iter_mut().chain(&mut self.workers) {
            if let Some(child) = &mut member.child
                && let Some(status) = child.try_wait()?
            {
                bail!(
                    "{} ended by itself, {status}: {}",
                    member.name,
                    member.last_lines()
                );
            }
        }
        Ok(())
    }

    /// The ends of what everybody printed, for messages.
    pub fn last_lines(&self) -> String {
        let members = self.schedulers.iter().chain(&self.workers);
        members.fold(String::new(), |all, m| {
            all + &format!("── {}\n{}\n", m.name, m.last_lines())
        })
    }
}
