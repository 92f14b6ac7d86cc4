//! Ending what an earlier incarnation of a worker left running.
//!
//! A worker that is killed with `kill -9` cannot end its children: they live on. A new incarnation must not start
//! anything while they do, or attempts of a serial lane overlap. So each process that a worker starts carries a marker
//! in its environment, and the next incarnation kills all that carry it before it begins.
//!
//! The restart does the cleaning; until then the children go on, unless the worker has a [guard](crate::guard). Linux can signal a child when its
//! parent dies (`PR_SET_PDEATHSIG`), but it means the *thread* that started the child, which in an async runtime may end at any
//! time, it reaches the first process alone, and it does nothing about a parent that is stopped.

use std::fmt;

use crate::environment::GuardId;
#[cfg(target_os = "linux")]
use crate::environment::{GUARD_VARIABLE, MARKER_VARIABLE, Right};

/// Why [`kill_orphans`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrphanError {
    /// The processes could not be looked at.
    #[error("failed to list the running processes")]
    List(#[source] std::io::Error),
    /// Some processes did not end, or new ones kept coming.
    #[error("failed to end what an earlier worker left running within 5 s: {0} still there")]
    Survivors(Pids),
}

/// Process ids, written with spaces between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pids(pub Vec<i32>);

impl fmt::Display for Pids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pid")?;
        self.0.iter().try_for_each(|pid| write!(f, " {pid}"))
    }
}

/// What [`kill_orphans`] returns.
pub type Result<T> = std::result::Result<T, OrphanError>;

/// Kills every process that carries `marker`, with its process group and its descendants, and returns when they are
/// gone; how many there were.
///
/// `marker` is the one that the handlers were made with. It must be unique to the worker's state on this machine and
/// stay the same across restarts: the canonical path of the state directory, say. The calling process and its process
/// group are spared. Nothing that carries the marker may be started while this runs.
///
/// Takes at most 5 s, then fails with the processes that would not end.
///
/// A process is found by the environment it was started with, so one that was given another environment (`env -i`,
/// `sudo`) is found only through its process group or its ancestors.
///
/// Linux only: elsewhere it does nothing and returns 0.
///
/// # Errors
///
/// [`OrphanError::List`] if the processes cannot be listed, [`OrphanError::Survivors`] if some did not end within 5 s.
#[cfg(target_os = "linux")]
pub async fn kill_orphans(marker: &str) -> Result<usize> {
    let wanted = format!("{MARKER_VARIABLE}={marker}").into_bytes();
    linux::kill(move |entry: &[u8]| entry == wanted).await
}

/// Kills, in the same way, what a worker with this guard has started by the right of contact that was proven at `since_ms` at the latest. Beside it the
/// oldest proof of what was spared.
#[cfg(target_os = "linux")]
pub(crate) async fn kill_outlived(guard: &GuardId, since_ms: i64) -> (Option<i64>, Result<usize>) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    const NONE: i64 = i64::MAX;
    let spared = Arc::new(AtomicI64::new(NONE));
    let found = Arc::clone(&spared);
    let killed = kill_by(guard, move |right| match right {
        Right::Keep => false,
        Right::Proven(at_ms) if at_ms <= since_ms => true,
        Right::Proven(at_ms) => {
            found.fetch_min(at_ms, Ordering::Relaxed);
            false
        }
    });
    let killed = killed.await;
    let oldest = spared.load(Ordering::Relaxed);
    ((oldest != NONE).then_some(oldest), killed)
}

/// Kills, in the same way, all that a worker with this guard has started.
#[cfg(target_os = "linux")]
pub(crate) async fn kill_guarded(guard: &GuardId) -> Result<usize> {
    kill_by(guard, |_| true).await
}

#[cfg(target_os = "linux")]
async fn kill_by(
    guard: &GuardId,
    wanted: impl Fn(Right) -> bool + Send + Sync + 'static,
) -> Result<usize> {
    let guard = guard.clone();
    let wanted = move |entry: &[u8]| {
        let value = entry.strip_prefix(GUARD_VARIABLE.as_bytes());
        let value = value.and_then(|rest| rest.strip_prefix(b"="));
        value.and_then(|v| guard.right_in(v)).is_some_and(&wanted)
    };
    linux::kill(wanted).await
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
pub(crate) async fn kill_outlived(
    _guard: &GuardId,
    _since_ms: i64,
) -> (Option<i64>, Result<usize>) {
    (None, Ok(0))
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
pub(crate) async fn kill_guarded(_guard: &GuardId) -> Result<usize> {
    Ok(0)
}

/// Does nothing on this system: there is no safe way to see another process's environment.
#[cfg(not(target_os = "linux"))]
pub async fn kill_orphans(_marker: &str) -> Result<usize> {
    Ok(0)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill as signal, killpg};
    use nix::unistd::{Pid, getpgrp};
    use tokio::time::{Instant, sleep};

    use super::{OrphanError, Pids, Result};
    use crate::procfs::{self, Process};

    const LONGEST: Duration = Duration::from_secs(5);
    const LOOK_EVERY: Duration = Duration::from_millis(10);
    /// A list of processes is not taken at one instant: a child born behind the reader's back, of a parent that ends
    /// before it is reached, is missed. The second list has it.
    const EMPTY_SCANS: u32 = 2;

    /// Ends what was started with something that is wanted in its environment.
    pub(super) async fn kill(
        wanted: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    ) -> Result<usize> {
        let wanted = Arc::new(wanted);
        let deadline = Instant::now() + LONGEST;
        let mut seen = BTreeSet::new();
        let mut empty = 0;
        loop {
            let (wanted, known) = (Arc::clone(&wanted), seen.clone());
            let found = tokio::task::spawn_blocking(move || sweep(&*wanted, &known))
                .await
                .unwrap_or_else(|e| Err(std::io::Error::other(e)))
                .map_err(OrphanError::List)?;
            empty = if found.is_empty() { empty + 1 } else { 0 };
            if empty >= EMPTY_SCANS {
                return Ok(seen.len());
            }
            if Instant::now() >= deadline {
                let alive = found.iter().map(|p| p.id).collect();
                return Err(OrphanError::Survivors(Pids(alive)));
            }
            seen.extend(found.iter().map(|p| (p.id, p.started)));
            if empty == 0 {
                sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Kills what carries the marker now, and tells what that was; of those killed before (`known`), what still is there.
    ///
    /// A killed process loses its environment before it lets go of its files and locks, so it counts until it is dead.
    fn sweep(
        wanted: &impl Fn(&[u8]) -> bool,
        known: &BTreeSet<(i32, u64)>,
    ) -> std::io::Result<Vec<Process>> {
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        let own_group = getpgrp().as_raw();
        let alive: Vec<Process> = procfs::processes()?
            .into_iter()
            .filter(|p| !p.dead && p.id != own)
            .collect();
        let mut doomed: Vec<bool> = alive
            .iter()
            .map(|p| known.contains(&(p.id, p.started)) || procfs::started_with(p.id, wanted))
            .collect();
        loop {
            let chosen = || alive.iter().zip(&doomed).filter(|(_, d)| **d);
            let ids: BTreeSet<i32> = chosen().map(|(p, _)| p.id).collect();
            let groups: BTreeSet<i32> = chosen()
                .map(|(p, _)| p.group)
                .filter(|g| *g != own_group && *g > 1)
                .collect();
            let next: Vec<bool> = alive
                .iter()
                .zip(&doomed)
                .map(|(p, d)| *d || groups.contains(&p.group) || ids.contains(&p.parent))
                .collect();
            if next == doomed {
                strike(&ids, &groups);
                break;
            }
            doomed = next;
        }
        let killed = alive.into_iter().zip(doomed).filter(|(_, doomed)| *doomed);
        Ok(killed.map(|(process, _)| process).collect())
    }

    /// What is gone already, or belongs to somebody else, shows in the next sweep.
    fn strike(ids: &BTreeSet<i32>, groups: &BTreeSet<i32>) {
        for group in groups {
            let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
        }
        for id in ids {
            let _ = signal(Pid::from_raw(*id), Signal::SIGKILL);
        }
    }
}
