//! A NATS server with `JetStream`, in one of two versions.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_support::wait_until_stopped;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::port::free_port;
use crate::process::Guarded;

/// The releases that `infra/dev/servers` makes available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The newest release of the oldest supported version.
    V2_10,
    /// A current version.
    V2_12,
}

impl Version {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V2_10, Self::V2_12];

    /// The version number that the server prints.
    pub const fn number(self) -> &'static str {
        match self {
            Self::V2_10 => "2.10.26",
            Self::V2_12 => "2.12.8",
        }
    }

    /// The program, in the folder `nats-<version>` of `target/servers` or of the folder that `CUELINE_TEST_NATS_BIN`
    /// names.
    ///
    /// # Errors
    ///
    /// When it is not there, with words about how to get it.
    pub fn program(self) -> Result<PathBuf> {
        let folder = std::env::var_os("CUELINE_TEST_NATS_BIN").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers"),
            PathBuf::from,
        );
        let program = folder
            .join(format!("nats-{}", self.number()))
            .join("nats-server");
        ensure!(
            program.is_file(),
            "there is no NATS server {} at {}; `infra/dev/servers nats` puts it there",
            self.number(),
            program.display()
        );
        Ok(program)
    }
}

/// A server on a free port, with its data in a temporary folder. Dropping it kills the server.
#[derive(Debug)]
pub struct Nats {
    version: Version,
    port: u16,
    dir: TempDir,
    process: Option<Guarded>,
}

/// The time limit for a start and for an end.
const START_WITHIN: Duration = Duration::from_mins(1);
/// A program that is no test may take the port between the search and the start, so a start tries this many ports.
const PORTS_TO_TRY: usize = 5;

impl Nats {
    /// Starts a server without authentication, and waits until it answers.
    pub fn start(version: Version) -> Result<Self> {
        Self::start_with(version, |_| Ok(String::new()))
    }

    /// Starts a server with more lines of configuration: users, TLS, limits. `extra` gets the server's folder, where it
    /// may create the files that the configuration names.
    pub fn start_with(
        version: Version,
        extra: impl FnOnce(&Path) -> Result<String>,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let extra = extra(dir.path())?;
        let mut server = Self {
            version,
            port: 0,
            dir,
            process: None,
        };
        let mut tried = 0;
        loop {
            server.port = free_port()?;
            server.configure(&extra)?;
            tried += 1;
            match server.start_again() {
                Ok(()) => return Ok(server),
                Err(e) if tried == PORTS_TO_TRY => return Err(e),
                Err(_) => {}
            }
        }
    }

    /// Writes the configuration for the next start.
    pub fn configure(&self, extra: &str) -> Result<()> {
        let (dir, port) = (self.dir.path().display(), self.port);
        let text = format!(
            "server_name: test-{port}\nlisten: \"127.0.0.1:{port}\"\npid_file: \"{dir}/pid\"\njetstream {{ store_dir: \"{dir}/data\" }}\n{extra}\n"
        );
        Ok(fs::write(self.dir.path().join("nats.conf"), text)?)
    }

    /// Its address, without a user.
    pub fn url(&self) -> String {
        format!("nats://{}", self.addr())
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The folder with its configuration, data and log.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
        }
        Ok(())
    }

    /// SIGTERM. Waits until the server has ended.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let mut process = self.process.take().context("the server is not running")?;
        process.wait(START_WITHIN).map(drop)
    }

    /// SIGSTOP. The server keeps its connections and answers nothing. Waits until all its threads have stopped.
    pub fn pause(&self) -> Result<()> {
        let pid = self.signal(Signal::SIGSTOP)?;
        Ok(wait_until_stopped([pid.as_raw()])?)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT).map(drop)
    }

    /// Starts a server that was stopped or killed on the same port and data, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the server is running");
        let mut command = Command::new(self.version.program()?);
        command.arg("-c").arg(self.dir.path().join("nats.conf"));
        let log = self.dir.path().join("log");
        let mut process = Guarded::start(&command, &log)?;
        let started = process.wait_until("NATS answers", START_WITHIN, || answers(self.addr()));
        started.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
        self.process = Some(process);
        Ok(())
    }

    /// Signals only the server: the guard around it must still be able to kill it.
    fn signal(&self, signal: Signal) -> Result<Pid> {
        ensure!(self.process.is_some(), "the server is not running");
        let pid = fs::read_to_string(self.dir.path().join("pid"))
            .context("failed to read the server's process id")?;
        let pid = Pid::from_raw(pid.trim().parse()?);
        kill(pid, signal)?;
        Ok(pid)
    }
}

/// Whether the server greets a new connection. It does so once `JetStream` has recovered its data.
fn answers(addr: SocketAddr) -> bool {
    let greeting = || -> std::io::Result<String> {
        let stream = TcpStream::connect_timeout(&addr, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    greeting().is_ok_and(|line| line.starts_with("INFO ") && line.contains("\"jetstream\":true"))
}

#[cfg(test)]
mod tests {
    use cueline_test_support::eventually_blocking;

    use super::*;

    /// One look has a short time limit, and a busy machine may stand still for longer.
    fn wait_until_answers(server: &Nats) {
        let answered = eventually_blocking("NATS answers", START_WITHIN, || {
            answers(server.addr()).then_some(()).ok_or("no answer")
        });
        answered.unwrap();
    }

    #[test]
    fn it_restarts_on_the_same_port() {
        for version in Version::ALL {
            let mut server = Nats::start(version).unwrap();
            let addr = server.addr();
            wait_until_answers(&server);
            server.kill().unwrap();
            assert!(!answers(addr));
            server.start_again().unwrap();
            assert_eq!(server.addr(), addr);
            wait_until_answers(&server);
        }
    }

    #[test]
    fn a_paused_server_answers_when_it_is_resumed() {
        let server = Nats::start(Version::V2_12).unwrap();
        server.pause().unwrap();
        assert!(!answers(server.addr()));
        server.resume().unwrap();
        wait_until_answers(&server);
    }

    #[test]
    fn a_wrong_configuration_fails_with_the_log() {
        let wrong = Nats::start_with(Version::V2_12, |_| Ok("no_such_setting: 1".into()));
        let failure = format!("{:#}", wrong.unwrap_err());
        assert!(failure.contains("no_such_setting"), "{failure}");
    }
}
