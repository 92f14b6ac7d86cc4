//! The process group of one attempt: signals to all of it, and whether anything of it is left. Knows nothing of what
//! the processes do.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

/// How often it is looked whether a group has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A process group. Killed when dropped, unless [`Group::release`]d.
///
/// The number of a group stays taken while a member lives or its leader has not been waited for. Between those and the
/// last signal pass some milliseconds, too few for the system to come round to the same number again.
pub(crate) struct Group {
    id: Pid,
    held: bool,
}

impl Group {
    /// The group that the process `leader` was started as leader of.
    pub(crate) fn led_by(leader: i32) -> Self {
        Self {
            id: Pid::from_raw(leader),
            held: true,
        }
    }

    /// Sends a signal to every member. That there is none any more is as good.
    pub(crate) fn signal(&self, signal: Signal) {
        // Nobody to signal is what was wanted; a member that changed its user is out of reach, and stays.
        let _ = killpg(self.id, signal);
    }

    /// Leaves the group to itself.
    pub(crate) fn release(mut self) {
        self.held = false;
    }

    /// Waits until no member is left but those that only wait to be collected; `false` when `longest` passed first.
    pub(crate) async fn gone_within(&self, longest: Duration) -> bool {
        let deadline = Instant::now() + longest;
        while self.exists().await {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK_EVERY).await;
        }
        true
    }

    async fn exists(&self) -> bool {
        if killpg(self.id, None) == Err(Errno::ESRCH) {
            return false;
        }
        members_alive(self.id).await
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.held {
            self.signal(Signal::SIGKILL);
        }
    }
}

/// Signals reach dead processes too, as long as nobody collects them: in a container without an init, for ever.
#[cfg(target_os = "linux")]
async fn members_alive(group: Pid) -> bool {
    let looked = tokio::task::spawn_blocking(move || crate::procfs::group_alive(group.as_raw()));
    looked.await.ok().and_then(Result::ok).unwrap_or(true)
}

#[cfg(not(target_os = "linux"))]
async fn members_alive(_group: Pid) -> bool {
    true
}
