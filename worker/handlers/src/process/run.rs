//! Runs a process to its end, and stops its whole group when the attempt must stop.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use cueline_worker::{Context, Failure, LogStream, Output, StopReason};
use nix::sys::signal::Signal;
use tokio::process::Child;
use tokio::time::timeout;

use super::group::ProcessGroup;
use super::lines::Lines;
use super::pipes::Pipes;
use super::spawn::{Launch, spawn};

/// How long to wait for a group after SIGKILL. It takes longer only if the system itself is stuck.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Starts the process and waits for its end.
pub(crate) async fn run(launch: Launch, cx: &Context) -> Result<Output, Failure> {
    // The worker may have been paused while files and accounts were looked up.
    let stopped = || {
        let reason = describe(cx.stop_reason()?);
        Some(Failure::new(format!("not started ({reason})")))
    };
    let spawned = spawn(&launch, cx, stopped).await;
    let mut child = spawned.map_err(|failure| launch.masks.hide_in(failure))?;
    // The worker may have been paused during the start as well. This call notices it, and the process is stopped below.
    let _ = cx.stop_reason();
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let group = ProcessGroup::led_by(id.ok_or_else(|| Failure::new("the process has no id"))?);

    let mut out = Lines::new(cx, LogStream::Out, &launch.masks);
    let mut err = Lines::new(cx, LogStream::Err, &launch.masks);
    let mut pipes = Pipes::new(&mut child, launch.stdin, &mut out, &mut err);
    let ended = tokio::select! {
        biased;
        status = exited(&mut child, &mut pipes) => Ok(status),
        reason = cx.stopped() => Err(reason),
    };
    // It may have ended before the request to stop, unnoticed until now. Its status counts then: its work is done.
    let ended = ended.or_else(|reason| {
        let status = child.try_wait().ok().flatten();
        status.map(Ok).ok_or(reason)
    });
    let ended = match ended {
        Ok(status) => {
            group.release();
            pipes.drain().await;
            status.map_err(|e| Failure::new(format!("failed to wait for the process: {e}")))
        }
        Err(reason) => Err(stop(reason, cx, group, &mut child, &mut pipes).await),
    };
    drop(pipes);
    let text = out.finish();
    err.finish();
    result_of(ended?, text)
}

/// Waits for the end of the main process, and reads its output meanwhile. Other processes of its group run on.
async fn exited(child: &mut Child, pipes: &mut Pipes<'_>) -> io::Result<ExitStatus> {
    loop {
        tokio::select! {
            status = child.wait() => return status,
            () = pipes.finished(), if pipes.is_open() => {}
        }
    }
}

fn describe(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Cancelled => "cancelled",
        StopReason::TimedOut => "time limit passed",
        StopReason::Covered => "covered by a newer trigger",
        StopReason::Drained => "worker stopping",
        StopReason::Fenced => "broker out of reach",
    }
}

/// Sends SIGTERM to the group, waits for the kill grace, and sends SIGKILL. It reads output meanwhile, so that a
/// process that writes its last lines does not block.
async fn stop(
    reason: StopReason,
    cx: &Context,
    group: ProcessGroup,
    child: &mut Child,
    pipes: &mut Pipes<'_>,
) -> Failure {
    let reason = describe(reason);
    let grace_ms = cx.kill_grace().as_millis();
    let grace = Duration::from_millis(grace_ms);
    for (signal, limit) in [(Signal::SIGTERM, grace), (Signal::SIGKILL, KILL_WAIT)] {
        group.signal(signal);
        if !pipes.pump_until(all_gone(child, &group, limit)).await {
            continue;
        }
        group.release();
        pipes.drain().await;
        return Failure::new(if signal == Signal::SIGTERM {
            format!("stopped ({reason}): ended after SIGTERM")
        } else {
            format!("stopped ({reason}): killed with SIGKILL, {grace_ms} ms after SIGTERM")
        });
    }
    let seconds = KILL_WAIT.as_secs();
    Failure::new(format!(
        "stopped ({reason}): still running {seconds} s after SIGKILL"
    ))
}

/// Whether the process and its whole group end within `limit`.
async fn all_gone(child: &mut Child, group: &ProcessGroup, limit: Duration) -> bool {
    let both = async {
        // An error means that there is nothing to wait for.
        let _ = child.wait().await;
        group.gone_within(limit).await
    };
    timeout(limit, both).await.unwrap_or(false)
}

fn result_of(status: ExitStatus, text: Option<String>) -> Result<Output, Failure> {
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
