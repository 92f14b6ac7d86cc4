//! A PostgreSQL server.
//!
//! Its data directory is a copy of one that `initdb` created, in a temporary folder. Durability is real (`fsync` is
//! on), except on the shared server, which is never killed. PostgreSQL refuses to run as root. If this process is
//! root's, the server runs as the user `postgres` or `nobody`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_test_support::{eventually_blocking, wait_until_stopped};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tempfile::TempDir;

use crate::port::free_port;
use crate::process::Guarded;

/// Names the folder of `initdb`, `postgres` and `psql` if the search does not find them.
const BIN_VARIABLE: &str = "CUELINE_TEST_POSTGRES_BIN";

/// Debian's folder with one folder per version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The time limit from the start to the first answer. After a kill the server replays its log first.
const START_LIMIT: Duration = Duration::from_mins(1);

/// The time limit for an orderly end of a server that is no longer needed. After it the server is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The time limit until killed processes have ended. One that waits for the disk ends when the disk answers.
const KILLED_WITHIN: Duration = Duration::from_mins(1);

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

/// Settings of the shared server, which is never killed.
const NOT_DURABLE: &str = "
fsync = off
full_page_writes = off
";

const INITDB_ARGUMENTS: [&str; 4] = [
    "--auth=trust",
    "--username=cueline",
    "--encoding=UTF8",
    "--no-sync",
];

/// The only user who needs a password.
pub const WITH_PASSWORD: &str = "with_password";

/// A server. Dropping it ends the server.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    /// The user who runs the server, if this process is root's.
    user: Option<User>,
    port: u16,
    databases: AtomicU32,
    process: Mutex<Option<Guarded>>,
    dir: TempDir,
}

/// The server that the tests of one process share. It runs while a test uses it.
static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());

impl Postgres {
    /// Starts a server on a new data directory, and waits until it answers.
    pub fn start() -> Result<Self> {
        Self::start_with(|_| Ok(String::new()))
    }

    /// The same with TLS, with this certificate and its key. Clients may connect without TLS.
    pub fn start_with_tls(certificate: &Path, key: &Path) -> Result<Self> {
        Self::start_with(|server| {
            for (from, to) in [(certificate, "server.pem"), (key, "server.key")] {
                let file = server.data().join(to);
                fs::copy(from, &file)
                    .with_context(|| format!("failed to copy {}", from.display()))?;
                // PostgreSQL refuses a key that others can read.
                fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
                if let Some(user) = &server.user {
                    chown(&file, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
                }
            }
            Ok("ssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.key'\n".to_owned())
        })
    }

    /// The same with more settings. They come from `more`, which may change the data directory before the start.
    pub(crate) fn start_with(more: impl FnOnce(&Self) -> Result<String>) -> Result<Self> {
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
        server.create_data_directory()?;
        let more = more(&server)?;
        server.configure(&more)?;
        server.start_again()?;
        Ok(server)
    }

    /// The server that all tests of this process share, each with a database of its own. The first test starts it, and
    /// it ends when no test holds it.
    pub fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Ok(server);
        }
        let server = Arc::new(Self::start_with(|_| Ok(NOT_DURABLE.to_owned()))?);
        *shared = Arc::downgrade(&server);
        Ok(server)
    }

    /// The address of a database.
    pub fn url(&self, database: &str) -> String {
        url_at(self.port, database)
    }

    /// The address of a database for the user [`WITH_PASSWORD`], whom the test must create first.
    pub fn url_with_password(&self, password: &str, database: &str) -> String {
        format!(
            "postgres://{WITH_PASSWORD}:{password}@127.0.0.1:{}/{database}?sslmode=disable",
            self.port
        )
    }

    /// The address of a database for connections with TLS in this mode (`sslmode`), with these trusted authorities.
    pub fn url_with_tls(&self, database: &str, mode: &str, authorities: &Path) -> String {
        format!(
            "postgres://cueline@127.0.0.1:{}/{database}?sslmode={mode}&sslrootcert={}",
            self.port,
            authorities.display()
        )
    }

    /// The server's log. Each line starts with the name of its database.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// What the server's log says of one database, such as the statements that failed.
    pub fn log_of(&self, database: &str) -> String {
        let prefix = format!("{database} ");
        let mut is_of_database = false;
        let log = self.log();
        // A statement has more lines, which begin with a tab.
        let lines = log.lines().filter(|line| {
            if !line.starts_with('\t') {
                is_of_database = line.starts_with(&prefix);
            }
            is_of_database
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The port it listens on, on the loopback address.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Creates an empty database. Returns its name.
    pub fn create_database(&self) -> Result<String> {
        self.create_from("template1")
    }

    /// Creates a copy of the database `template`, which must have no connections. Returns its name.
    pub fn create_from(&self, template: &str) -> Result<String> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{number}");
        self.sql(
            "postgres",
            &format!("CREATE DATABASE {name} TEMPLATE {template}"),
        )?;
        Ok(name)
    }

    /// Runs statements with `psql`. Returns what it prints.
    pub fn sql(&self, database: &str, statements: &str) -> Result<String> {
        self.sql_at(&self.url(database), statements)
    }

    /// The same at another address.
    pub(crate) fn sql_at(&self, url: &str, statements: &str) -> Result<String> {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c"])
            .arg(statements)
            .arg(url);
        Ok(run("psql", &mut psql)?.trim().to_owned())
    }

    /// SIGKILL to the server and all its processes. Waits until they have ended.
    pub fn kill(&self) -> Result<()> {
        let mut process = self.lock();
        // Stop the server first. It must start no process while its children are listed.
        self.signal_all(Signal::SIGSTOP)?;
        let all = self.all()?;
        self.signal_all(Signal::SIGKILL)?;
        if let Some(mut guarded) = process.take() {
            guarded.kill()?;
        }
        // A process that is still alive keeps the shared memory, and a new server cannot start beside it.
        let ended =
            eventually_blocking(
                "PostgreSQL's processes have ended",
                KILLED_WITHIN,
                || match all.iter().find(|pid| is_alive(**pid)) {
                    Some(pid) => Err(format!("{pid} of {all:?} is alive")),
                    None => Ok(()),
                },
            );
        Ok(ended?)
    }

    /// SIGINT, as a service manager sends it: the server closes all connections. Waits until it has ended.
    pub fn stop(&self) -> Result<()> {
        let postmaster = self.postmaster().context("the server is not running")?;
        kill(postmaster, Signal::SIGINT)?;
        if let Some(mut guarded) = self.lock().take() {
            guarded.wait(START_LIMIT).with_context(|| self.log())?;
        }
        Ok(())
    }

    /// SIGSTOP for the server and all its processes. Their connections stay open. Waits until they have stopped.
    pub fn pause(&self) -> Result<()> {
        let _process = self.lock();
        self.signal_all(Signal::SIGSTOP)?;
        Ok(wait_until_stopped(
            self.all()?.iter().map(|pid| pid.as_raw()),
        )?)
    }

    /// SIGCONT for all of them.
    pub fn resume(&self) -> Result<()> {
        let _process = self.lock();
        self.signal_all(Signal::SIGCONT)
    }

    /// Starts the server again on the same data and port, and waits until it answers.
    pub fn start_again(&self) -> Result<()> {
        let mut process = self.lock();
        ensure!(process.is_none(), "the server is running");
        // A killed server leaves this file. Its process id may now belong to another process.
        fs::remove_file(self.data().join("postmaster.pid")).ok();
        let mut command = self.as_user("postgres");
        command.arg("-D").arg(self.data());
        let mut guarded = Guarded::start(&command, &self.log_file())?;
        let answers = || self.sql("postgres", "SELECT 1").is_ok();
        let started = guarded.wait_until("PostgreSQL answers", START_LIMIT, answers);
        *process = Some(guarded);
        started.with_context(|| self.log())
    }

    /// Stops the server, copies its data for [`fail_over_to_copy`](Self::fail_over_to_copy), and starts it again.
    pub fn keep_copy(&self) -> Result<()> {
        self.stop()?;
        self.copy(&self.data(), &self.kept_copy())?;
        self.start_again()
    }

    /// Ends the server. Starts it on the kept copy as a new primary, on a new timeline. For clients this is a failover
    /// to an asynchronous replica that received nothing after the copy was made.
    pub fn fail_over_to_copy(&self) -> Result<()> {
        self.stop()?;
        fs::remove_dir_all(self.data())?;
        fs::rename(self.kept_copy(), self.data()).context("no copy was kept")?;
        self.promote()
    }

    /// Replaces the data directory by a copy of that of a stopped server. The start makes this server its standby.
    pub(crate) fn copy_as_standby(&self, primary: &Self) -> Result<()> {
        fs::remove_dir_all(self.data())?;
        self.copy(&primary.data(), &self.data())?;
        self.write_signal("standby.signal")
    }

    /// Stops the server and starts it on a new timeline. Nothing is lost, as in a failover to a synchronous replica.
    pub fn fail_over(&self) -> Result<()> {
        self.stop()?;
        self.promote()
    }

    /// Starts the stopped server with a recovery from an empty archive, which ends in a promotion.
    fn promote(&self) -> Result<()> {
        let settings = self.data().join("postgresql.auto.conf");
        let mut text = fs::read_to_string(&settings)?;
        text.push_str("restore_command = 'false'\n");
        // The file already belongs to PostgreSQL's user, and writing keeps that.
        fs::write(&settings, text)?;
        self.write_signal("recovery.signal")?;
        self.start_again()?;
        let promoted = eventually_blocking("PostgreSQL is promoted", START_LIMIT, || {
            match self.sql("postgres", "SELECT pg_is_in_recovery()") {
                Ok(answer) if answer == "f" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Ok(promoted?)
    }

    /// Creates an empty file that tells PostgreSQL how to start.
    fn write_signal(&self, name: &str) -> Result<()> {
        let signal = self.data().join(name);
        fs::write(&signal, "")?;
        if let Some(user) = &self.user {
            chown(&signal, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Guarded>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn kept_copy(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// One of PostgreSQL's programs, as its user.
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

    /// Copies the template directory. Creates it first if it is missing, because `initdb` takes a second of processor
    /// time.
    fn create_data_directory(&self) -> Result<()> {
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let template = self.template()?;
        if template.is_dir() {
            return self.copy(&template, &self.data());
        }
        let mut initdb = self.as_user("initdb");
        initdb.args(INITDB_ARGUMENTS).arg("-D").arg(self.data());
        run("initdb", &mut initdb)?;
        let hba = self.data().join("pg_hba.conf");
        let trust = fs::read_to_string(&hba)?;
        let guarded = format!("host all {WITH_PASSWORD} 127.0.0.1/32 scram-sha-256\n");
        fs::write(&hba, guarded + &trust)?;
        // The template gets its final name last, so an existing template is complete. Another thread or process may have
        // been faster.
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let new = template.with_extension(format!("{}-{copy}", std::process::id()));
        self.copy(&self.data(), &new)?;
        if fs::rename(&new, &template).is_err() {
            fs::remove_dir_all(&new)?;
        }
        Ok(())
    }

    /// The template, for this version of PostgreSQL and the server's user.
    fn template(&self) -> Result<PathBuf> {
        let version = run("postgres", self.as_user("postgres").arg("--version"))?;
        let version = version.split_whitespace().nth(2).context("a version")?;
        let user = self.user.as_ref().map_or(geteuid(), |user| user.uid);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers");
        fs::create_dir_all(&folder)?;
        Ok(folder.join(format!("postgres-template-1-{version}-{user}")))
    }

    /// Copies a folder with the owners of its files.
    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let mut copy = Command::new("cp");
        copy.arg("-a")
            .arg(from)
            .arg(to)
            .current_dir(self.dir.path());
        run("cp", &mut copy).map(drop)
    }

    fn configure(&self, more: &str) -> Result<()> {
        let settings = format!("{SETTINGS}port = {}\n{more}", self.port);
        let path = self.data().join("postgresql.auto.conf");
        // The file already belongs to PostgreSQL's user, and writing keeps that.
        fs::write(&path, settings).with_context(|| format!("failed to write {}", path.display()))
    }

    /// The server's main process, if it runs.
    fn postmaster(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok().map(Pid::from_raw)
    }

    /// The server's processes. They leave the process group, so this finds them by their parent.
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
        // An immediate shutdown ends all processes and releases shared memory. SIGKILL would do neither.
        if let Some(postmaster) = self.postmaster()
            && self.signal_all(Signal::SIGCONT).is_ok()
            && kill(postmaster, Signal::SIGQUIT).is_ok()
        {
            // If the server does not end, it is killed.
            let _ = self.lock().as_mut().map(|process| process.wait(STOP_LIMIT));
        }
    }
}

/// The address of a database of the server, or of the proxy, at this port.
pub(crate) fn url_at(port: u16, database: &str) -> String {
    format!("postgres://cueline@127.0.0.1:{port}/{database}?sslmode=disable")
}

/// Whether the process is alive.
fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the state may contain any character.
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// Runs a program to its end. Returns what it printed.
fn run(name: &str, command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to run {name}"))?;
    ensure!(
        output.status.success(),
        "{name} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The folder of the newest PostgreSQL on this machine.
fn programs() -> Result<PathBuf> {
    let complete = |dir: &Path| {
        ["initdb", "postgres", "psql"]
            .iter()
            .all(|p| dir.join(p).is_file())
    };
    if let Some(dir) = std::env::var_os(BIN_VARIABLE).map(PathBuf::from) {
        ensure!(
            complete(&dir),
            "{BIN_VARIABLE} is {}, which lacks initdb, postgres or psql",
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

/// The user who runs the server, if this process is root's.
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

/// The child processes of a process.
fn children(parent: Pid) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("failed to list processes")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        // An ended process does not count as a child. The name in parentheses may contain any character.
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
    fn committed_data_survives_a_kill() {
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
    fn a_paused_server_continues() {
        let server = Postgres::start().unwrap();
        server.pause().unwrap();
        let path = format!("/proc/{}/stat", server.postmaster().unwrap());
        // A process inside a system call stops after the call.
        let stopped = eventually_blocking("the server has stopped", START_LIMIT, || {
            let stat = fs::read_to_string(&path).unwrap();
            if stat.contains(") T ") {
                Ok(())
            } else {
                Err(stat)
            }
        });
        stopped.unwrap();
        server.resume().unwrap();
        assert_eq!(server.sql("postgres", "SELECT 1").unwrap(), "1");
    }

    #[test]
    fn the_server_ends_when_it_is_dropped() {
        let server = Postgres::start().unwrap();
        let (dir, postmaster) = (server.dir.path().to_owned(), server.postmaster().unwrap());
        drop(server);
        assert!(!dir.exists());
        assert!(kill(postmaster, None).is_err());
    }
}
