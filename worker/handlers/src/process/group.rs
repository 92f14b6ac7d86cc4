//! The process group of one attempt: signals all members, and tells whether any are left.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

/// How often a group is checked for its end.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// A process group. Killed when dropped, unless [`release`](Self::release)d.
///
/// The system does not reuse a group's id while a member runs or its leader has not been waited for. The last signal
/// may come a few milliseconds later. The system does not reuse an id that soon.
pub(crate) struct ProcessGroup {
    id: Pid,
    held: bool,
}

impl ProcessGroup {
    /// The group of the process `leader`, which was started as its leader.
    pub(crate) fn led_by(leader: i32) -> Self {
        Self {
            id: Pid::from_raw(leader),
            held: true,
        }
    }

    /// Sends a signal to every member, if there are any.
    pub(crate) fn signal(&self, signal: Signal) {
        // An empty group is no error. A member that changed its user cannot be signalled and runs on.
        let _ = killpg(self.id, signal);
    }

    /// Drops the handle without killing the group.
    pub(crate) fn release(mut self) {
        self.held = false;
    }

    /// Waits until no member runs. Zombies do not count. False if `limit` passed first.
    pub(crate) async fn gone_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.exists().await {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(CHECK_EVERY).await;
        }
        true
    }

    async fn exists(&self) -> bool {
        if killpg(self.id, None) == Err(Errno::ESRCH) {
            return false;
        }
        has_running_members(self.id).await
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self.held {
            self.signal(Signal::SIGKILL);
        }
    }
}

/// A signal cannot tell whether a group still runs, because it reaches zombies too. In a container without an init
/// process, zombies stay for ever.
#[cfg(target_os = "linux")]
async fn has_running_members(group: Pid) -> bool {
    let checked =
        tokio::task::spawn_blocking(move || super::procfs::is_group_running(group.as_raw()));
    checked.await.ok().and_then(Result::ok).unwrap_or(true)
}

#[cfg(not(target_os = "linux"))]
async fn has_running_members(_group: Pid) -> bool {
    true
}
