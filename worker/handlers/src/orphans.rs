//! Ends processes that an earlier start of a worker left running.
//!
//! A worker that is killed with `kill -9` cannot end its children. If the next worker started attempts while they run,
//! attempts of a serial lane would overlap. Each process of a worker therefore carries a mark in its environment, and
//! the next worker first kills all processes with the mark.
//!
//! Until then the children run on, unless the worker has a [guard](crate::guard). Linux can signal a child when its
//! parent ends (`PR_SET_PDEATHSIG`). That does not suffice, for three reasons. The parent is the *thread* that started
//! the child, which may end at any time in an async runtime. The signal reaches only the first process. A paused parent
//! has not ended.

pub use crate::orphan_error::{OrphanError, Pids, Result};

use crate::marks::GuardId;
#[cfg(target_os = "linux")]
use crate::marks::{GUARD_VARIABLE, StartedUnder, WORKER_VARIABLE};
#[cfg(target_os = "linux")]
use crate::sweep;

/// Kills every process with this mark, its process group and its descendants. Waits for their end and returns their
/// number.
///
/// `marker` is the mark that the handlers were made with. It must be unique to the worker's state on this machine and
/// the same after each restart, such as the canonical path of the state directory. The calling process and its process
/// group are spared. No process with the mark may be started meanwhile.
///
/// A process is found by its initial environment. A process with another environment (`env -i`, `sudo`) is found only
/// by its process group or its ancestors.
///
/// Linux only: elsewhere it does nothing and returns 0.
///
/// # Errors
///
/// [`OrphanError::List`] if the processes cannot be listed, [`OrphanError::Survivors`] if some did not end within 5 s.
#[cfg(target_os = "linux")]
pub async fn kill_orphans(marker: &str) -> Result<usize> {
    let expected = format!("{WORKER_VARIABLE}={marker}").into_bytes();
    sweep::kill(move |entry: &[u8]| entry == expected).await
}

/// Kills the processes that the worker with this guard has started under the lease that was proven at `proven_ms`, or
/// under an older one. Also returns the oldest lease of the processes that were spared.
#[cfg(target_os = "linux")]
pub(crate) async fn kill_expired(guard: &GuardId, proven_ms: i64) -> (Option<i64>, Result<usize>) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    const NONE: i64 = i64::MAX;
    let oldest = Arc::new(AtomicI64::new(NONE));
    let spared = Arc::clone(&oldest);
    let killed = kill_marked(guard, move |started| match started {
        StartedUnder::NoLease => false,
        StartedUnder::Lease(lease_ms) if lease_ms <= proven_ms => true,
        StartedUnder::Lease(lease_ms) => {
            spared.fetch_min(lease_ms, Ordering::Relaxed);
            false
        }
    })
    .await;
    let oldest = oldest.load(Ordering::Relaxed);
    ((oldest != NONE).then_some(oldest), killed)
}

/// Kills all processes that the worker with this guard has started.
#[cfg(target_os = "linux")]
pub(crate) async fn kill_guarded(guard: &GuardId) -> Result<usize> {
    kill_marked(guard, |_| true).await
}

#[cfg(target_os = "linux")]
async fn kill_marked(
    guard: &GuardId,
    is_target: impl Fn(StartedUnder) -> bool + Send + Sync + 'static,
) -> Result<usize> {
    let guard = guard.clone();
    sweep::kill(move |entry: &[u8]| {
        let value = entry.strip_prefix(GUARD_VARIABLE.as_bytes());
        let mark = value.and_then(|rest| rest.strip_prefix(b"="));
        mark.and_then(|mark| guard.parse_mark(mark))
            .is_some_and(&is_target)
    })
    .await
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
pub(crate) async fn kill_expired(
    _guard: &GuardId,
    _proven_ms: i64,
) -> (Option<i64>, Result<usize>) {
    (None, Ok(0))
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
pub(crate) async fn kill_guarded(_guard: &GuardId) -> Result<usize> {
    Ok(0)
}

/// Does nothing on this system: there is no safe way to read another process's environment.
///
/// # Errors
///
/// None on this system.
#[cfg(not(target_os = "linux"))]
pub async fn kill_orphans(_marker: &str) -> Result<usize> {
    Ok(0)
}
