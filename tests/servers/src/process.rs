//! A server's process, in a process group of its own that cannot outlive this process.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A process group that is killed when this is dropped, and also when this process ends without a chance to drop anything: a
/// shell in the group waits for the end of a pipe whose other end only this process holds.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
}

/// Starts "$@", and kills the whole group as soon as standard input ends or "$@" does.
const GUARD: &str = r#"
exec 3<&0 </dev/null
(while read -r _ <&3; do :; done; kill -KILL 0) &
exec 3<&-
"$@"
kill -KILL 0
"#;

impl Guarded {
    /// Starts `command`, whose output goes to the end of the file `log`. Its standard input is empty.
    pub fn start(command: &Command, log: &Path) -> Result<Self> {
        let out = File::options()
            .append(true)
            .create(true)
            .open(log)
            .with_context(|| format!("failed to open {}", log.display()))?;
        let mut guarded = Command::new("sh");
        guarded
            .args(["-c", GUARD, "guard"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0);
        if let Some(dir) = command.get_current_dir() {
            guarded.current_dir(dir);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(name, value),
                None => guarded.env_remove(name),
            };
        }
        let child = guarded.spawn().with_context(|| {
            format!(
                "failed to start {}",
                command.get_program().to_string_lossy()
            )
        })?;
        Ok(Self { child })
    }

    /// Its process group.
    pub fn group(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// Sends a signal to the whole group; a group that has ended is no error.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match killpg(self.group(), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(e) => Err(e).with_context(|| format!("failed to send {signal}")),
        }
    }

    /// SIGKILL to the whole group, and waits until it is gone, with its files and ports.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGKILL)?;
        let status = self.child.wait()?;
        // The guard is gone; what it guarded, nobody's child now, may take a moment longer.
        for _ in 0..GONE_WITHIN.as_millis() / LOOK_EVERY.as_millis() {
            if !any_alive(self.group()) {
                return Ok(status);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("what was killed is still there after {GONE_WITHIN:?}")
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Nothing can be done about a failure here, and the guard kills it at the end of this process at the latest.
        let _ = self.kill();
    }
}

const GONE_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Whether a process of the group still runs; those that have ended and that nobody has asked after do not.
fn any_alive(group: Pid) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let group = group.to_string();
    processes
        .map(|process| process.path())
        .any(|process| runs_in(&process, &group).unwrap_or(false))
}

/// `None` for what is no process, or no more.
fn runs_in(process: &Path, group: &str) -> Option<bool> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The name, in parentheses, is followed by the state, the parent and the group.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let (state, own) = (fields.next()?, fields.nth(1)?);
    // The first thread can have ended before the others, which still hold files and ports.
    let threads = std::fs::read_dir(process.join("task")).ok()?.count();
    Some(own == group && (!matches!(state, "Z" | "X") || threads > 1))
}

/// Ports below those that systems give to outgoing connections: a client that tries to reach a killed server would be given its
/// port some day, connect to itself, and keep the server from starting again.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A port on the loopback address that was free just now.
pub fn free_port() -> Result<u16> {
    for _ in 0..1_000 {
        // Anywhere: other processes look for ports at the same time.
        let anywhere = RandomState::new().hash_one(std::process::id());
        let port = PORTS.start + u16::try_from(anywhere % PORTS.len() as u64)?;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("there is no free port in {PORTS:?}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn alive(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
            .is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
        for _ in 0..3_000 {
            if let Some(found) = what() {
                return found;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("nothing within 30 s");
    }

    /// A process that writes its own id, starts another that stays, and stays too.
    fn two(dir: &Path) -> (Guarded, [String; 2]) {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >a; sh -c 'echo $$ >b; sleep 600' & wait"])
            .current_dir(dir);
        let guarded = Guarded::start(&command, &dir.join("log")).unwrap();
        let read = |name: &str| {
            wait_for(|| {
                std::fs::read_to_string(dir.join(name))
                    .ok()
                    .filter(|text| text.ends_with('\n'))
            })
        };
        let pids = [read("a"), read("b")];
        (guarded, pids)
    }

    #[test]
    fn killing_it_kills_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let (mut guarded, pids) = two(dir.path());
        assert!(pids.iter().all(|p| alive(p)));
        assert_eq!(guarded.kill().unwrap().signal(), Some(9));
        wait_for(|| (!pids.iter().any(|p| alive(p))).then_some(()));
    }

    #[test]
    fn it_does_not_outlive_the_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let (mut guarded, pids) = two(dir.path());
        drop(guarded.child.stdin.take());
        wait_for(|| (!pids.iter().any(|p| alive(p))).then_some(()));
        assert!(wait_for(|| guarded.ended().unwrap()).signal().is_some());
    }
}
