//! The worker's side: keeps a guard running, and passes each renewal of the lease to it.

use std::process::Stdio;
use std::time::Duration;

use cueline_worker::LeaseDeadline;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::message::GuardMessage;

/// The pause before a guard that has ended is replaced.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How long a dismissed guard may take to end.
const DISMISSAL_LIMIT: Duration = Duration::from_secs(5);

/// The newest message to the guard; `None` before the first.
type Newest = Option<GuardMessage>;

/// A worker's guard.
#[derive(Debug)]
pub struct Guard {
    newest: watch::Sender<Newest>,
    task: JoinHandle<()>,
}

impl Guard {
    /// Starts a guard by the command that `make` returns. A guard that ends is replaced.
    pub fn start(make: impl Fn() -> Command + Send + 'static) -> Self {
        let (newest, messages) = watch::channel(None);
        let task = tokio::spawn(keep_running(make, messages));
        Self { newest, task }
    }

    /// A callback for [`Builder::on_lease_renewed`](cueline_worker::Builder::on_lease_renewed). It returns at once.
    pub fn renewer(&self) -> impl Fn(LeaseDeadline) + Send + Sync + 'static {
        let newest = self.newest.clone();
        move |lease| {
            let message = Some(GuardMessage::Lease(lease));
            newest.send_if_modified(|newest| {
                let changed = *newest != Some(GuardMessage::Dismissed) && *newest != message;
                if changed {
                    *newest = message;
                }
                changed
            });
        }
    }

    /// Ends the guard after the worker has stopped all its processes. The guard kills nothing.
    pub async fn dismiss(self) {
        self.newest.send_replace(Some(GuardMessage::Dismissed));
        // The task itself limits how long it waits for the guard.
        let _ = self.task.await;
    }
}

async fn keep_running(make: impl Fn() -> Command, mut messages: watch::Receiver<Newest>) {
    loop {
        match spawn(make()) {
            Ok((child, pipe)) => {
                if !relay(child, pipe, &mut messages).await {
                    return;
                }
                tracing::warn!("the worker's guard ended; starting another one");
            }
            Err(error) => {
                tracing::error!(%error, "failed to start the worker's guard; processes outlive a killed worker until it starts; trying again");
            }
        }
        if *messages.borrow() == Some(GuardMessage::Dismissed) {
            return;
        }
        sleep(RESTART_PAUSE).await;
    }
}

fn spawn(mut command: Command) -> std::io::Result<(Child, ChildStdin)> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // A terminal's signals to the worker must not reach the guard.
        .process_group(0)
        .spawn()?;
    let pipe = child.stdin.take();
    pipe.map(|pipe| (child, pipe))
        .ok_or_else(|| std::io::Error::other("it has no pipe"))
}

/// Writes messages to the guard. True when the guard has ended without a dismissal.
async fn relay(
    mut child: Child,
    mut pipe: ChildStdin,
    messages: &mut watch::Receiver<Newest>,
) -> bool {
    loop {
        let message = *messages.borrow_and_update();
        let line = message.map(GuardMessage::line).unwrap_or_default();
        let written = pipe.write_all(line.as_bytes()).await;
        if message == Some(GuardMessage::Dismissed) {
            drop(pipe);
            let _ = timeout(DISMISSAL_LIMIT, child.wait()).await;
            return false;
        }
        if written.is_err() {
            let _ = child.wait().await;
            return true;
        }
        tokio::select! {
            // The sender is gone when the worker has failed. The guard then finds the pipe closed.
            changed = messages.changed() => if changed.is_err() { return false },
            _ = child.wait() => return true,
        }
    }
}
