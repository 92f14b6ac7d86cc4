//! A `RabbitMQ` server.
//!
//! A start takes some seconds, so the tests of a program usually share one server ([`Rabbit::shared`]) with virtual
//! hosts or prefixes of their own. A test that kills, pauses or alarms the server needs its own.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cueline_test_support::{SOON, eventually_blocking};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::port::free_port;
use crate::process::Guarded;

/// The time limit for a start, which takes 5 to 10 s on two busy cores.
pub(crate) const START_WITHIN: Duration = Duration::from_mins(2);

/// The status of a `rabbitmqctl` that reached no server (`EX_UNAVAILABLE`).
const NO_SERVER: i32 = 69;
const CTL_TRIES: usize = 3;

/// A `RabbitMQ` node with its own ports and folders. Its cookie and port mapper (epmd) are its own or those of its
/// cluster. It is killed when this is dropped or this process ends.
#[derive(Debug)]
pub struct Rabbit {
    bin: PathBuf,
    dir: PathBuf,
    port: u16,
    name: String,
    cookie: String,
    node: Mutex<Option<Guarded>>,
    mapper: Arc<PortMapper>,
    _sweeper: Sweeper,
}

impl Rabbit {
    /// Starts a server with the user `guest` (password `guest`) and the virtual host `/`, and waits until it accepts
    /// AMQP.
    pub fn start() -> Result<Self> {
        Self::start_with("")
    }

    /// The same with more lines in `rabbitmq.conf`.
    pub fn start_with(more: &str) -> Result<Self> {
        Self::start_with_definitions(more, "")
    }

    fn start_with_definitions(more: &str, definitions: &str) -> Result<Self> {
        Self::start_node("cueline@localhost", None, more, definitions)
    }

    /// Starts a node with this name. A node that can join the cluster of `other` has the same cookie and port mapper.
    pub(crate) fn start_node(
        name: &str,
        other: Option<&Self>,
        more: &str,
        definitions: &str,
    ) -> Result<Self> {
        let bin = programs()?;
        let dir = TempDir::with_prefix("cueline-rabbitmq-")?;
        let port = free_port()?;
        for folder in ["data", "log", "conf"] {
            fs::create_dir(dir.path().join(folder))?;
        }
        configure(dir.path(), port, more, definitions)?;
        let cookie = other.map_or_else(new_cookie, |other| other.cookie.clone());
        write_cookie(dir.path(), &cookie)?;
        let dir = dir.keep();
        let sweeper = Sweeper::start(&dir)?;
        let mapper = match other {
            Some(other) => Arc::clone(&other.mapper),
            None => Arc::new(PortMapper::start(&dir)?),
        };
        let server = Self {
            bin,
            dir,
            port,
            name: name.to_owned(),
            cookie,
            node: Mutex::default(),
            mapper,
            _sweeper: sweeper,
        };
        server.start_again()?;
        Ok(server)
    }

    /// The server that all tests of this program share.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Rabbit> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = SHARED.get() {
            return Ok(server);
        }
        let server = Self::start_with_definitions("", &vhosts())?;
        Ok(SHARED.get_or_init(|| server))
    }

    /// The address of a virtual host on the shared server that no other test of this program uses.
    pub fn shared_vhost() -> Result<String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let server = Self::shared()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let vhost = vhost_name(number);
        if number >= VHOSTS {
            server.add_vhost(&vhost)?;
        }
        Ok(server.url(&vhost))
    }

    /// The AMQP port of the server, on the loopback address.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address of a virtual host for the user `guest`.
    pub fn url(&self, vhost: &str) -> String {
        self.url_as("guest", "guest", vhost)
    }

    /// The address of a virtual host for a user. The names may contain any character.
    pub fn url_as(&self, user: &str, password: &str, vhost: &str) -> String {
        format!(
            "amqp://{}:{}@127.0.0.1:{}/{}",
            escaped(user),
            escaped(password),
            self.port,
            escaped(vhost)
        )
    }

    /// Creates a virtual host in which `guest` has all permissions.
    pub fn add_vhost(&self, vhost: &str) -> Result<()> {
        self.ctl(&["add_vhost", vhost])?;
        self.ctl(&["set_permissions", "-p", vhost, "guest", ".*", ".*", ".*"])?;
        Ok(())
    }

    /// Creates a user who may configure, write and read resources of `vhost` that match the three patterns.
    pub fn add_user(&self, user: &str, password: &str, vhost: &str, may: [&str; 3]) -> Result<()> {
        self.ctl(&["add_user", user, password])?;
        self.ctl(&["set_permissions", "-p", vhost, user, may[0], may[1], may[2]])?;
        Ok(())
    }

    /// Runs `rabbitmqctl` on this server, which takes a second or two. Returns its output.
    ///
    /// A call that finds no server is repeated: after a standstill of the machine its handshake may be too late. Such a call
    /// has changed nothing.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let mut tried = 0;
        let ran = loop {
            tried += 1;
            let ran = self
                .command("rabbitmqctl")
                .args(["--quiet"])
                .args(arguments)
                .stdin(Stdio::null())
                .output()
                .context("failed to run rabbitmqctl")?;
            if ran.status.code() != Some(NO_SERVER) || tried == CTL_TRIES {
                break ran;
            }
        };
        let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
        if !ran.status.success() {
            let errors = String::from_utf8_lossy(&ran.stderr);
            bail!("rabbitmqctl {arguments:?} failed: {printed}{errors}");
        }
        Ok(printed)
    }

    /// Makes the server write declarations to disk now. It would otherwise do so up to three minutes later. A server
    /// that is killed before that loses a quorum queue with all its messages, or has a queue that never answers (seen
    /// with 3.10).
    pub fn write_declarations(&self) -> Result<()> {
        let write = "{mnesia:sync_log(), lists:usort([dets:sync(T) || T <- dets:all()])}.";
        let printed = self.ctl(&["eval", write])?;
        if printed.trim() != "{ok,[ok]}" {
            bail!("the server did not write its declarations: {printed}");
        }
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&self) -> Result<()> {
        match self.node().take() {
            Some(mut node) => node.kill().map(drop),
            None => bail!("the server is not running"),
        }
    }

    /// Stops the server in order, as a service manager does. Waits until it has ended.
    pub fn stop(&self) -> Result<()> {
        self.ctl(&["stop"])?;
        let mut node = self.node().take().context("the server is not running")?;
        let ended = node.wait(START_WITHIN);
        ended.map(drop).with_context(|| self.log())
    }

    /// Starts the server on the same port and data after a [`kill`](Self::kill) or [`stop`](Self::stop), and waits
    /// until it accepts AMQP.
    pub fn start_again(&self) -> Result<()> {
        let mut command = self.command("rabbitmq-server");
        // Connections to the old distribution port may not have ended yet.
        command.env("RABBITMQ_DIST_PORT", free_port()?.to_string());
        let mut node = Guarded::start(&command, &self.dir.join("log/server.log"))?;
        let accepts = || accepts_amqp(self.port);
        let started = node.wait_until("RabbitMQ accepts AMQP", START_WITHIN, accepts);
        started.with_context(|| self.log())?;
        *self.node() = Some(node);
        Ok(())
    }

    /// SIGSTOP: connections stay open and get no answer. Waits until all its processes have stopped.
    pub fn pause(&self) -> Result<()> {
        match self.node().as_ref() {
            Some(node) => node.pause(),
            None => bail!("the server is not running"),
        }
    }

    /// SIGCONT after a [`pause`](Self::pause).
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match self.node().as_ref() {
            Some(node) => node.signal(signal),
            None => bail!("the server is not running"),
        }
    }

    /// The server's log.
    pub fn log(&self) -> String {
        let log = fs::read(self.dir.join("log/server.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn node(&self) -> std::sync::MutexGuard<'_, Option<Guarded>> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the server's programs, with an environment in which it sees only this node.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RABBITMQ_") {
                command.env_remove(name);
            }
        }
        let at = |path: &str| self.dir.join(path);
        command
            .current_dir(&self.dir)
            .env("HOME", &self.dir)
            .env("ERL_EPMD_PORT", self.mapper.port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_NODENAME", &self.name)
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_CONFIG_FILE", at("conf/rabbitmq.conf"))
            .env("RABBITMQ_CONFIG_FILES", at("conf/more"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", at("conf/advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("conf/enabled_plugins"))
            .env("RABBITMQ_MNESIA_BASE", at("data"))
            .env("RABBITMQ_MNESIA_DIR", at("data/node"))
            .env("RABBITMQ_PID_FILE", at("data/node.pid"))
            .env("RABBITMQ_LOG_BASE", at("log"))
            .env("RABBITMQ_LOGS", "-")
            // Idle scheduler threads of the Erlang VM sleep instead of spinning, even those for blocking work.
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2 +SDcpu 1:1 +SDio 4 +A 2",
            );
        command
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        // End the server before its folder is removed.
        self.node().take();
    }
}

/// The folder of the server's programs.
fn programs() -> Result<PathBuf> {
    let bin = std::env::var_os("CUELINE_TEST_RABBITMQ_BIN")
        .map_or_else(|| PathBuf::from("/usr/lib/rabbitmq/bin"), PathBuf::from);
    if !bin.join("rabbitmq-server").is_file() {
        bail!(
            "there is no RabbitMQ in {}; run infra/dev/servers rabbitmq, or name the folder of rabbitmq-server in \
             CUELINE_TEST_RABBITMQ_BIN",
            bin.display()
        );
    }
    Ok(bin)
}

/// The virtual hosts that the shared server starts with. Adding one later takes `rabbitmqctl` a second or two.
const VHOSTS: usize = 8;

fn vhost_name(number: usize) -> String {
    format!("test-{number}")
}

/// Definitions of the virtual hosts and of the user `guest`. A server with definitions does not create `guest` by
/// itself.
fn vhosts() -> String {
    let names = std::iter::once("/".to_owned()).chain((0..VHOSTS).map(vhost_name));
    let (mut vhosts, mut permissions) = (Vec::new(), Vec::new());
    for name in names {
        vhosts.push(format!(r#"{{"name":"{name}"}}"#));
        permissions.push(format!(
            r#"{{"user":"guest","vhost":"{name}","configure":".*","write":".*","read":".*"}}"#
        ));
    }
    format!(
        r#"{{"users":[{{"name":"guest","password":"guest","tags":"administrator"}}],"vhosts":[{}],"permissions":[{}]}}"#,
        vhosts.join(","),
        permissions.join(",")
    )
}

fn configure(dir: &Path, port: u16, more: &str, definitions: &str) -> Result<()> {
    let load = if definitions.is_empty() {
        String::new()
    } else {
        let file = dir.join("conf/definitions.json");
        fs::write(&file, definitions)?;
        format!("load_definitions = {}\n", file.display())
    };
    let conf = format!(
        "listeners.tcp.1 = 127.0.0.1:{port}\n\
         log.console = true\n\
         log.console.level = warning\n\
         log.file = false\n\
         disk_free_limit.absolute = 50MB\n\
         vm_memory_high_watermark.relative = 0.6\n\
         collect_statistics_interval = 60000\n\
         heartbeat = 10\n\
         {load}{more}"
    );
    fs::write(dir.join("conf/rabbitmq.conf"), conf)?;
    fs::write(dir.join("conf/enabled_plugins"), "[].\n")?;
    fs::write(dir.join("conf/advanced.config"), "[].\n")?;
    Ok(())
}

/// The cookie separates the clusters of one user on one machine. It protects nothing, because a reader of the folder
/// can also read the data.
fn new_cookie() -> String {
    format!("{:016X}", rand::random_range(1..=u64::MAX))
}

fn write_cookie(dir: &Path, cookie: &str) -> Result<()> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o400)
        .open(dir.join(".erlang.cookie"))?;
    file.write_all(cookie.as_bytes())?;
    Ok(())
}

/// The port mapper of one cluster. `RabbitMQ` itself would start one that all nodes of the machine share and that
/// survives them.
#[derive(Debug)]
struct PortMapper {
    port: u16,
    _process: Guarded,
}

impl PortMapper {
    fn start(dir: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut epmd = Command::new("epmd");
        epmd.args(["-address", "127.0.0.1", "-port", &port.to_string()]);
        let process = Guarded::start(&epmd, &dir.join("log/epmd.log"))?;
        await_port(port)?;
        Ok(Self {
            port,
            _process: process,
        })
    }
}

/// Whether the server answers the protocol header.
fn accepts_amqp(port: u16) -> bool {
    let greeted = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(b"AMQP\x00\x00\x09\x01")?;
        let mut first = [0];
        stream.read_exact(&mut first)?;
        Ok(first[0])
    };
    // Frame type 1 is a method frame: connection.start. A server that refuses the protocol sends its own header
    // instead.
    greeted().is_ok_and(|kind| kind == 1)
}

fn await_port(port: u16) -> Result<()> {
    let listening = eventually_blocking("epmd (erlang-base) listens", START_WITHIN, || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port))
    });
    listening?;
    Ok(())
}

/// Percent-encodes everything but letters and digits.
fn escaped(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// Removes a folder when this is dropped or this process ends. Statics are never dropped, so a server's folder would
/// otherwise stay.
#[derive(Debug)]
struct Sweeper(Child);

const SWEEP: &str = r#"
while read -r _; do :; done
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$1" 2>/dev/null && exit; sleep 0.2; done
"#;

impl Sweeper {
    fn start(dir: &Path) -> Result<Self> {
        let child = Command::new("sh")
            .args(["-c", SWEEP, "sweep"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("failed to start a shell")?;
        Ok(Self(child))
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // A failure leaves the folder in place.
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_killed_restarted_paused_and_resumed() {
        let server = Rabbit::start().unwrap();
        let dir = server.dir.clone();
        server.add_vhost("a b").unwrap();
        assert!(server.url("a b").ends_with("/a%20b"));
        server.write_declarations().unwrap();
        server.kill().unwrap();
        assert!(!accepts_amqp(server.port()));
        assert!(server.kill().is_err(), "it is not running");
        server.start_again().unwrap();
        let vhosts = server.ctl(&["list_vhosts"]).unwrap();
        assert!(vhosts.contains("a b"), "{vhosts}");

        server.pause().unwrap();
        let port = server.port();
        let asked = std::thread::spawn(move || accepts_amqp(port));
        // A thread that got its answer before the resume would have finished by now.
        assert!(!asked.is_finished());
        server.resume().unwrap();
        assert!(asked.join().unwrap());
        assert!(server.ctl(&["no_such_command"]).is_err());
        drop(server);
        assert!(!dir.exists(), "the folder stayed");
    }
}
