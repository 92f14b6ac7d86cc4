//! A PostgreSQL server.
//!
//! Its data directory lives in a temporary folder and is made by `initdb`. Durability is real: `fsync` is on, only sizes and limits
//! are those of a test. PostgreSQL refuses to run as root, so there it runs as the user `postgres` or `nobody`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tempfile::TempDir;

use crate::process::{Guarded, free_port};

/// The folder of `initdb`, `postgres` and `psql`, where they are not found by themselves.
const BIN_VARIABLE: &str = "CUELINE_TEST_POSTGRES_BIN";

/// Where Debian puts one folder per version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A server has to answer within this time of its start; after a kill it replays its log first.
const START_LIMIT: Duration = Duration::from_mins(1);

/// An orderly end may take so long; then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(20);

const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
shared_buffers = 256MB
fsync = on
synchronous_commit = on
full_page_writes = on
max_wal_size = 2GB
autovacuum_naptime = 10s
log_min_messages = warning
log_line_prefix = '%d '
";

/// This user, and nobody else, has to give a password.
pub const WITH_PASSWORD: &str = "with_password";

/// A server of one's own. It ends when this is dropped.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    /// Whom it runs as when we are root.
    user: Option<User>,
    port: u16,
    databases: AtomicU32,
    process: Mutex<Option<Guarded>>,
    dir: TempDir,
}

/// The server that the tests of one process share, as long as one of them uses it.
static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());

impl Postgres {
    /// Makes a data directory and starts a server on it; it answers when this returns.
    pub fn start() -> Result<Self> {
        Self::start_with(|_| Ok(String::new()))
    }

    /// The same with TLS, by this certificate and its key. Clients may use it; they need not.
    pub fn start_with_tls(certificate: &Path, key: &Path) -> Result<Self> {
        Self::start_with(|server| {
            for (from, to) in [(certificate, "server.pem"), (key, "server.key")] {
                let file = server.data().join(to);
                fs::copy(from, &file)
                    .with_context(|| format!("failed to copy {}", from.display()))?;
                // It refuses a key that others can read.
                fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
                if let Some(user) = &server.user {
                    chown(&file, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
                }
            }
            Ok("ssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.key'\n".to_owned())
        })
    }

    fn start_with(more: impl FnOnce(&Self) -> Result<String>) -> Result<Self> {
        let programs = programs()?;
        let dir = TempDir::with_prefix("cueline-postgres-")?;
        let user = unprivileged()?;
        if let Some(user) = &user {
            chown(dir.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))
                .context("failed to give the data directory to PostgreSQL's user")?;
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700))?;
        let server = Self {
            programs,
            user,
            port: free_port()?,
            databases: AtomicU32::new(0),
            process: Mutex::new(None),
            dir,
        };
        server.make_data_directory()?;
        let more = more(&server)?;
        server.configure(&more)?;
        server.start_again()?;
        Ok(server)
    }

    /// The server that all tests of this process share, each with a database of its own. It is started for the first of them, and
    /// ends when nobody holds it any more.
    pub fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Ok(server);
        }
        let server = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&server);
        Ok(server)
    }

    /// How to reach a database.
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://cueline@127.0.0.1:{}/{database}?sslmode=disable",
            self.port
        )
    }

    /// How to reach a database as the user [`WITH_PASSWORD`], who has to be created first.
    pub fn url_with_password(&self, password: &str, database: &str) -> String {
        format!(
            "postgres://{WITH_PASSWORD}:{password}@127.0.0.1:{}/{database}?sslmode=disable",
            self.port
        )
    }

    /// How to reach a database with TLS of this strictness (`sslmode`), trusting these authorities.
    pub fn url_with_tls(&self, database: &str, mode: &str, authorities: &Path) -> String {
        format!(
            "postgres://cueline@127.0.0.1:{}/{database}?sslmode={mode}&sslrootcert={}",
            self.port,
            authorities.display()
        )
    }

    /// What the server has written to its log, each line after the name of its database.
    pub fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// The port it listens on, on the loopback address.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// A new, empty database; its name.
    pub fn create_database(&self) -> Result<String> {
        self.create_from("template1")
    }

    /// A new database with what `template` holds, to which nobody may be connected; its name.
    pub fn create_from(&self, template: &str) -> Result<String> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{number}");
        self.sql(
            "postgres",
            &format!("CREATE DATABASE {name} TEMPLATE {template}"),
        )?;
        Ok(name)
    }

    /// Runs statements in a database, as a person would; what they print.
    pub fn sql(&self, database: &str, statements: &str) -> Result<String> {
        let output = Command::new(self.programs.join("psql"))
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                statements,
            ])
            .arg(self.url(database))
            .output()
            .context("failed to run psql")?;
        Ok(checked("psql", &output)?.trim().to_owned())
    }

    /// SIGKILL to the server and all its processes, in the middle of whatever they do.
    pub fn kill(&self) -> Result<()> {
        let mut process = self.lock();
        // A stopped server starts nothing new while its children are counted.
        self.signal_all(Signal::SIGSTOP)?;
        let all = self.all()?;
        self.signal_all(Signal::SIGKILL)?;
        if let Some(mut guarded) = process.take() {
            guarded.kill()?;
        }
        // One that is still dying keeps the memory that they share, and a new server does not start beside it.
        for _ in 0..STOP_LIMIT.as_millis() / PAUSE.as_millis() {
            if !all.iter().any(|pid| is_alive(*pid)) {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        bail!("PostgreSQL's processes do not end: {all:?}")
    }

    /// SIGINT, as a service manager stops it: it ends all connections, and itself in order. It is gone when this returns.
    pub fn stop(&self) -> Result<()> {
        let postmaster = self.postmaster().context("the server is not running")?;
        kill(postmaster, Signal::SIGINT)?;
        let mut process = self.lock();
        for _ in 0..START_LIMIT.as_millis() / PAUSE.as_millis() {
            let ended = match process.as_mut() {
                Some(guarded) => guarded.ended()?.is_some(),
                None => true,
            };
            if ended {
                *process = None;
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        bail!("PostgreSQL does not end: {}", self.said())
    }

    /// SIGSTOP: the server and all its processes stand still, with their connections open.
    pub fn pause(&self) -> Result<()> {
        let _process = self.lock();
        self.signal_all(Signal::SIGSTOP)
    }

    /// SIGCONT: they go on.
    pub fn resume(&self) -> Result<()> {
        let _process = self.lock();
        self.signal_all(Signal::SIGCONT)
    }

    /// Starts the server again, on the same data and the same port; it answers when this returns.
    pub fn start_again(&self) -> Result<()> {
        let mut process = self.lock();
        ensure!(process.is_none(), "the server has not been killed");
        // What a killed server leaves; its process number may be somebody else's by now.
        fs::remove_file(self.data().join("postmaster.pid")).ok();
        let mut command = self.as_user("postgres");
        command.arg("-D").arg(self.data());
        *process = Some(Guarded::start(&command, &self.log())?);
        drop(process);
        self.wait_until_it_answers()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Guarded>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// One of PostgreSQL's programs, run as its user.
    fn as_user(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = match &self.user {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command
                    .arg(format!("--reuid={}", user.uid))
                    .arg(format!("--regid={}", user.gid))
                    .arg("--clear-groups")
                    .arg(program);
                command
            }
        };
        command
            .current_dir(self.dir.path())
            .env("LC_ALL", "C.UTF-8");
        command
    }

    fn make_data_directory(&self) -> Result<()> {
        let output = self
            .as_user("initdb")
            .args([
                "--auth=trust",
                "--username=cueline",
                "--encoding=UTF8",
                "--no-sync",
                "-D",
            ])
            .arg(self.data())
            .output()
            .context("failed to run initdb")?;
        checked("initdb", &output)?;
        let hba = self.data().join("pg_hba.conf");
        let trust = fs::read_to_string(&hba)?;
        let guarded = format!("host all {WITH_PASSWORD} 127.0.0.1/32 scram-sha-256\n");
        fs::write(&hba, guarded + &trust)?;
        Ok(())
    }

    fn configure(&self, more: &str) -> Result<()> {
        let settings = format!("{SETTINGS}port = {}\n{more}", self.port);
        let path = self.data().join("postgresql.auto.conf");
        // It belongs to PostgreSQL's user already, and stays so.
        fs::write(&path, settings).with_context(|| format!("failed to write {}", path.display()))
    }

    fn wait_until_it_answers(&self) -> Result<()> {
        for _ in 0..START_LIMIT.as_millis() / PAUSE.as_millis() {
            if self.sql("postgres", "SELECT 1").is_ok() {
                return Ok(());
            }
            if let Some(guarded) = self.lock().as_mut()
                && let Some(status) = guarded.ended()?
            {
                bail!("PostgreSQL ended ({status}): {}", self.said());
            }
            std::thread::sleep(PAUSE);
        }
        bail!(
            "PostgreSQL does not answer within {START_LIMIT:?}: {}",
            self.said()
        );
    }

    /// The server's own process, if it runs.
    fn postmaster(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok().map(Pid::from_raw)
    }

    /// The server's processes. Each leaves its group: they are found by their parent.
    fn all(&self) -> Result<Vec<Pid>> {
        let Some(postmaster) = self.postmaster() else {
            return Ok(Vec::new());
        };
        let mut all = children(postmaster)?;
        all.insert(0, postmaster);
        Ok(all)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        for pid in self.all()? {
            match kill(pid, signal) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(e) => return Err(e).with_context(|| format!("failed to send {signal}")),
            }
        }
        Ok(())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // An immediate shutdown ends all its processes and gives back shared memory; SIGKILL would leave both.
        if let Some(postmaster) = self.postmaster()
            && self.signal_all(Signal::SIGCONT).is_ok()
            && kill(postmaster, Signal::SIGQUIT).is_ok()
        {
            let mut process = self.lock();
            for _ in 0..STOP_LIMIT.as_millis() / PAUSE.as_millis() {
                match process.as_mut().map(Guarded::ended) {
                    Some(Ok(None)) => std::thread::sleep(PAUSE),
                    _ => break,
                }
            }
        }
    }
}

/// Whether a process runs, or has not come to its end.
fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may hold anything.
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// What a program printed, if it went well.
fn checked(program: &str, output: &Output) -> Result<String> {
    ensure!(
        output.status.success(),
        "{program} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The folder of the newest PostgreSQL there is.
fn programs() -> Result<PathBuf> {
    let complete = |dir: &Path| {
        ["initdb", "postgres", "psql"]
            .iter()
            .all(|p| dir.join(p).is_file())
    };
    if let Some(dir) = std::env::var_os(BIN_VARIABLE).map(PathBuf::from) {
        ensure!(
            complete(&dir),
            "{BIN_VARIABLE} is {}, where initdb, postgres and psql are not",
            dir.display()
        );
        return Ok(dir);
    }
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir(DEBIAN).into_iter().flatten().flatten() {
        let version = entry.file_name().to_string_lossy().parse();
        let dir = entry.path().join("bin");
        if let Ok(version) = version
            && complete(&dir)
        {
            found.push((version, dir));
        }
    }
    let on_path = std::env::var_os("PATH").into_iter();
    let on_path = on_path.flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    found.sort();
    found
        .pop()
        .map(|(_, dir)| dir)
        .or_else(|| on_path.into_iter().find(|dir| complete(dir)))
        .with_context(|| {
            format!(
                "PostgreSQL is not installed: run infra/dev/servers postgres, or set {BIN_VARIABLE}"
            )
        })
}

/// Whom to run as when we are root.
fn unprivileged() -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    bail!("PostgreSQL does not run as root, and there is neither a user postgres nor nobody");
}

/// The processes that a process has started itself.
fn children(parent: Pid) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("failed to list processes")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        // Gone meanwhile: not a child any more. The name, in brackets, may hold anything.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        if after_name.split(' ').nth(1) == Some(&parent.to_string()) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_committed_outlives_a_kill() {
        let server = Postgres::start().unwrap();
        let database = server.create_database().unwrap();
        server
            .sql(
                &database,
                "CREATE TABLE t (x int); INSERT INTO t VALUES (7)",
            )
            .unwrap();
        let processes = children(server.postmaster().unwrap()).unwrap();
        assert!(processes.len() > 2, "{processes:?}");
        server.kill().unwrap();
        assert!(server.sql(&database, "SELECT 1").is_err());
        for pid in processes {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
        }
        server.start_again().unwrap();
        assert_eq!(server.sql(&database, "SELECT x FROM t").unwrap(), "7");
        let copy = server.create_from(&database).unwrap();
        assert_eq!(server.sql(&copy, "SELECT x FROM t").unwrap(), "7");
        assert_eq!(server.sql("postgres", "SHOW fsync").unwrap(), "on");
    }

    #[test]
    fn a_paused_server_goes_on() {
        let server = Postgres::start().unwrap();
        server.pause().unwrap();
        let path = format!("/proc/{}/stat", server.postmaster().unwrap());
        let stopped = || fs::read_to_string(&path).unwrap().contains(") T ");
        // A process in the middle of a system call stops when that is over.
        assert!((0..500).any(|_| stopped() || {
            std::thread::sleep(PAUSE);
            false
        }));
        server.resume().unwrap();
        assert_eq!(server.sql("postgres", "SELECT 1").unwrap(), "1");
    }

    #[test]
    fn it_ends_when_it_is_dropped() {
        let server = Postgres::start().unwrap();
        let (dir, postmaster) = (server.dir.path().to_owned(), server.postmaster().unwrap());
        drop(server);
        assert!(!dir.exists());
        assert!(kill(postmaster, None).is_err());
    }
}
