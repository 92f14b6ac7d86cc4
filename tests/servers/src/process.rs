//! A server's process in a process group that cannot outlive this process.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use cueline_test_support::{eventually_blocking, wait_until_stopped};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A process group that is killed when this is dropped. If this process ends without dropping it, a shell in the group
/// kills the group. The shell notices the end of a pipe whose other end only this process holds.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
}

/// Starts "$@", and kills the whole group when standard input ends or "$@" does.
const GUARD: &str = r#"
exec 3<&0 </dev/null
(while read -r _ <&3; do :; done; kill -KILL 0) &
exec 3<&-
"$@"
kill -KILL 0
"#;

impl Guarded {
    /// Starts `command`. Its output is appended to the file `log`; its standard input is empty.
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

    /// Sends a signal to the whole group. A group that has ended is no error.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match killpg(self.group(), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(e) => Err(e).with_context(|| format!("failed to send {signal}")),
        }
    }

    /// SIGSTOP for the whole group. Waits until all its processes have stopped.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        Ok(wait_until_stopped(members(self.group()))?)
    }

    /// SIGKILL to the whole group. Waits until it has ended and released its files and ports.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGKILL)?;
        let status = self.child.wait()?;
        // The guard has ended. Other processes of the group may end a moment later.
        eventually_blocking(
            "the process group has ended",
            ENDED_WITHIN,
            || match members(self.group()).next() {
                Some(pid) => Err(format!("{pid} is alive")),
                None => Ok(()),
            },
        )?;
        Ok(status)
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let ended = eventually_blocking("the process has ended", deadline, || {
            match self.child.try_wait() {
                Ok(Some(status)) => Ok(Ok(status)),
                Ok(None) => Err("it is running"),
                Err(e) => Ok(Err(e)),
            }
        });
        Ok(ended??)
    }

    /// Waits until `ready` returns `true`. Fails if the process ends earlier.
    pub fn wait_until(
        &mut self,
        expected: &str,
        deadline: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        eventually_blocking(expected, deadline, || {
            if ready() {
                return Ok(Ok(()));
            }
            match self.child.try_wait() {
                Ok(None) => Err("it is not ready"),
                Ok(Some(status)) => Ok(Err(anyhow!("the process ended with {status}"))),
                Err(e) => Ok(Err(e.into())),
            }
        })?
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // A failure is harmless: the guard kills the group at the latest when this process ends.
        let _ = self.kill();
    }
}

/// A process that waits for the disk ends when the disk answers.
const ENDED_WITHIN: Duration = Duration::from_mins(1);

/// The processes of the group. An ended process that is not reaped does not count.
fn members(group: Pid) -> impl Iterator<Item = i32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(move |process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        runs_in(&process.path(), &group.to_string())?.then_some(pid)
    })
}

/// `None` for a process that no longer exists.
fn runs_in(process: &Path, group: &str) -> Option<bool> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The name, in parentheses, is followed by the state, the parent and the group.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let (state, own) = (fields.next()?, fields.nth(1)?);
    // The first thread may have ended before the others, which then still hold files and ports.
    let threads = std::fs::read_dir(process.join("task")).ok()?.count();
    Some(own == group && (!matches!(state, "Z" | "X") || threads > 1))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use cueline_test_support::SOON;

    use super::*;

    fn alive(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
            .is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn wait_until_ended(pids: &[String]) {
        let ended = eventually_blocking("both processes have ended", SOON, || {
            match pids.iter().find(|pid| alive(pid)) {
                Some(pid) => Err(format!("{pid} is alive")),
                None => Ok(()),
            }
        });
        ended.unwrap();
    }

    /// Starts a process and its child. Both write their ids and keep running.
    fn two_processes(dir: &Path) -> (Guarded, [String; 2]) {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >a; sh -c 'echo $$ >b; sleep 600' & wait"])
            .current_dir(dir);
        let guarded = Guarded::start(&command, &dir.join("log")).unwrap();
        let read = |name: &str| {
            let written = eventually_blocking("a process id", SOON, || {
                let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
                if text.ends_with('\n') {
                    Ok(text)
                } else {
                    Err(text)
                }
            });
            written.unwrap()
        };
        let pids = [read("a"), read("b")];
        (guarded, pids)
    }

    #[test]
    fn a_kill_ends_the_whole_group() {
        let dir = tempfile::tempdir().unwrap();
        let (mut guarded, pids) = two_processes(dir.path());
        assert!(pids.iter().all(|p| alive(p)));
        assert_eq!(guarded.kill().unwrap().signal(), Some(9));
        wait_until_ended(&pids);
    }

    #[test]
    fn the_group_ends_with_the_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let (mut guarded, pids) = two_processes(dir.path());
        drop(guarded.child.stdin.take());
        wait_until_ended(&pids);
        assert!(guarded.wait(SOON).unwrap().signal().is_some());
    }
}
