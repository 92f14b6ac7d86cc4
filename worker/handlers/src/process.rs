//! Runs one process to its end: starts it as leader of its own group, carries its output, and stops the whole group when
//! the attempt has to stop. Knows nothing of scripts or interpreters.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use cueline_worker::model::DurationMs;
use cueline_worker::{Context, Failure, LogStream, Output, StopReason};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::account::Account;
use crate::environment::Environment;
use crate::group::Group;
use crate::lines::Lines;

/// How long output is read on after the main process has ended, while something it left behind holds its pipes open.
const LINGER: Duration = Duration::from_secs(1);

/// How long a group may take to be gone after SIGKILL: longer only when the system itself is stuck.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Read at once; what most processes write in all fits.
const READ_BYTES: usize = 8 * 1024;

/// A process to be.
pub(crate) struct Start {
    /// As the job names it.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Environment,
    pub(crate) account: Option<Account>,
    pub(crate) stdin: Option<String>,
}

/// Starts the process and sees it to its end.
pub(crate) async fn run(start: Start, cx: &Context) -> Result<Output, Failure> {
    // Files and accounts were looked up meanwhile, and the worker may have been paused in the midst of it.
    if let Some(reason) = cx.stop_reason() {
        return Err(Failure::new(format!("not started ({})", why(reason))));
    }
    let mut child = spawn(&start)?;
    // The same for that moment: whoever is told to stop is stopped at once below.
    let _ = cx.stop_reason();
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let group = Group::led_by(id.ok_or_else(|| Failure::new("the process has no id"))?);

    let mut out = Lines::new(cx, LogStream::Out);
    let mut err = Lines::new(cx, LogStream::Err);
    let mut traffic = Traffic::new(&mut child, start.stdin, &mut out, &mut err);
    let ended = tokio::select! {
        biased;
        status = until_end(&mut child, &mut traffic) => Ok(status),
        reason = cx.stopped() => Err(reason),
    };
    let ended = match ended {
        Ok(status) => {
            group.release();
            status.map_err(|e| Failure::new(format!("the process could not be waited for: {e}")))
        }
        Err(reason) => {
            let grace = cx.kill_grace();
            Err(stop(reason, grace, group, &mut child, &mut traffic).await)
        }
    };
    drop(traffic);
    let text = out.finish();
    err.finish();
    judge(ended?, text)
}

fn spawn(start: &Start) -> Result<Child, Failure> {
    let mut command = Command::new(&start.program);
    command
        .arg0(&start.name)
        .args(&start.arguments)
        .env_clear()
        .envs(&start.environment.variables)
        .stdin(match start.stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(cwd) = &start.environment.cwd {
        command.current_dir(cwd);
    }
    if let Some((uid, gid)) = start.account.as_ref().and_then(|a| a.switch) {
        // A switch by root drops the worker's supplementary groups too; the user's own ones cannot be set without
        // unsafe code, so that the process has fewer rights than a login, never more.
        command.uid(uid).gid(gid);
    }
    command.spawn().map_err(|e| not_started(start, &e))
}

fn not_started(start: &Start, error: &io::Error) -> Failure {
    let name = &start.name;
    let cwd = start.environment.cwd.as_deref();
    if let Some(cwd) = cwd.filter(|dir| !dir.is_dir()) {
        return Failure::new(format!(
            "cwd: {} is not a directory on this machine",
            cwd.display()
        ));
    }
    let user = start.account.as_ref().filter(|a| a.switch.is_some());
    let why = match (error.raw_os_error().map(Errno::from_raw), user) {
        (Some(Errno::ENOENT), _) if Path::new(&start.program).exists() => {
            "what its first line names does not exist".to_owned()
        }
        (Some(Errno::ENOENT), _) => "it does not exist".to_owned(),
        (Some(Errno::EPERM), Some(user)) => {
            format!("this worker may not run a process as {:?}", user.name)
        }
        (Some(Errno::EACCES), Some(user)) => format!(
            "{:?} may not run it, or not enter the working directory",
            user.name
        ),
        (Some(Errno::EACCES), None) => {
            "it is not executable, or the working directory is closed to the worker".to_owned()
        }
        (Some(Errno::E2BIG), _) => {
            "arguments and variables are too long (128 KiB each at most; the parameter is one of both)"
                .to_owned()
        }
        _ => error.to_string(),
    };
    Failure::new(format!("program {name:?} could not be started: {why}"))
}

/// The main process's status, after its output was read; what is left of its group is left alone.
async fn until_end(child: &mut Child, traffic: &mut Traffic<'_>) -> io::Result<ExitStatus> {
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            () = traffic.done(), if traffic.open() => {}
        }
    };
    traffic.linger().await;
    Ok(status)
}

fn why(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Cancelled => "cancelled",
        StopReason::TimedOut => "time limit passed",
        StopReason::Covered => "covered by a newer trigger",
        StopReason::Drained => "worker stopping",
        StopReason::Fenced => "no contact with the broker",
    }
}

/// SIGTERM to the group, its grace, SIGKILL. Goes on reading, so that nobody waits for us to take its last words.
async fn stop(
    reason: StopReason,
    grace: DurationMs,
    group: Group,
    child: &mut Child,
    traffic: &mut Traffic<'_>,
) -> Failure {
    let why = why(reason);
    let grace_ms = grace.as_millis();
    group.signal(Signal::SIGTERM);
    let polite = Duration::from_millis(grace_ms);
    if traffic.during(all_gone(child, &group, polite)).await {
        group.release();
        traffic.linger().await;
        return Failure::new(format!("stopped ({why}): ended after SIGTERM"));
    }
    group.signal(Signal::SIGKILL);
    if traffic.during(all_gone(child, &group, KILL_WAIT)).await {
        group.release();
        traffic.linger().await;
        return Failure::new(format!(
            "stopped ({why}): killed with SIGKILL, {grace_ms} ms after SIGTERM"
        ));
    }
    Failure::new(format!(
        "stopped ({why}): still not gone {} s after SIGKILL",
        KILL_WAIT.as_secs()
    ))
}

/// Whether the process and all of its group ended in time.
async fn all_gone(child: &mut Child, group: &Group, longest: Duration) -> bool {
    let both = async {
        // An error means that there is nothing to wait for.
        let _ = child.wait().await;
        group.gone_within(longest).await
    };
    timeout(longest, both).await.unwrap_or(false)
}

fn judge(status: ExitStatus, text: Option<String>) -> Result<Output, Failure> {
    if status.success() {
        return Ok(Output {
            text,
            exit_status: Some(0),
        });
    }
    let message = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(number)) => {
            let name = Signal::try_from(number).map_or("unnamed", Signal::as_str);
            format!("killed by signal {number} ({name})")
        }
        (None, None) => format!("ended with {status}"),
    };
    Err(Failure {
        message,
        exit_status: status.code(),
    })
}

/// All that flows between the worker and a process, as one future that can be waited for piecewise.
struct Traffic<'a>(Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>);

impl<'a> Traffic<'a> {
    fn new(
        child: &mut Child,
        input: Option<String>,
        out: &'a mut Lines<'_>,
        err: &'a mut Lines<'_>,
    ) -> Self {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // What nobody reads of the input must not keep the rest waiting, so writing is not waited for.
        Self(Some(Box::pin(async move {
            let reading = async { tokio::join!(read(stdout, out), read(stderr, err)) };
            tokio::pin!(reading);
            tokio::select! {
                _ = &mut reading => return,
                () = write(stdin, input) => {}
            }
            reading.await;
        })))
    }

    fn open(&self) -> bool {
        self.0.is_some()
    }

    /// Returns when both outputs are at their end.
    async fn done(&mut self) {
        if let Some(traffic) = &mut self.0 {
            traffic.await;
            self.0 = None;
        }
    }

    /// Reads what is still in the pipes of processes that have ended.
    async fn linger(&mut self) {
        // Whoever still holds the pipes then does so without being listened to.
        let _ = timeout(LINGER, self.done()).await;
    }

    /// Keeps the traffic going until `other` has ended.
    async fn during<T>(&mut self, other: impl Future<Output = T>) -> T {
        tokio::pin!(other);
        loop {
            tokio::select! {
                value = &mut other => return value,
                () = self.done(), if self.open() => {}
            }
        }
    }
}

async fn read(from: Option<impl AsyncRead + Unpin>, lines: &mut Lines<'_>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match from.read(&mut buffer).await {
            // A pipe that cannot be read any more is at its end as well.
            Ok(0) | Err(_) => return,
            Ok(n) => lines.feed(&buffer[..n]),
        }
    }
}

/// Writes the input and closes it. A process that ends or closes its input early has read what it wanted.
async fn write(to: Option<ChildStdin>, input: Option<String>) {
    if let (Some(mut to), Some(input)) = (to, input) {
        let _ = to.write_all(input.as_bytes()).await;
        let _ = to.shutdown().await;
    }
}
