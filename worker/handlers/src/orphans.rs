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

#[cfg(target_os = "linux")]
use crate::environment::{GUARD_VARIABLE, MARKER_VARIABLE};

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
#[cfg(target_os = "linux")]
pub async fn kill_orphans(marker: &str) -> Result<usize> {
    linux::kill(vec![format!("{MARKER_VARIABLE}={marker}")], None).await
}

/// What is left alone: what this worker itself has started after this time on the boot clock, with its group and its descendants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spared {
    pub(crate) worker: u32,
    pub(crate) started_after_ms: i64,
}

/// Kills every process whose [guard variable](GUARD_VARIABLE) has one of these values, in the same way.
#[cfg(target_os = "linux")]
pub(crate) async fn kill_guarded(values: &[String], spared: Option<Spared>) -> Result<usize> {
    let entries = values.iter().map(|v| format!("{GUARD_VARIABLE}={v}"));
    linux::kill(entries.collect(), spared).await
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
pub(crate) async fn kill_guarded(_values: &[String], _spared: Option<Spared>) -> Result<usize> {
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
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill as signal, killpg};
    use nix::unistd::{Pid, getpgrp};
    use tokio::time::{Instant, sleep};

    use super::{OrphanError, Pids, Result, Spared};
    use crate::procfs::{self, Process};

    const LONGEST: Duration = Duration::from_secs(5);
    const LOOK_EVERY: Duration = Duration::from_millis(10);
    /// A list of processes is not taken at one instant: a child born behind the reader's back, of a parent that ends
    /// before it is reached, is missed. The second list has it.
    const EMPTY_SCANS: u32 = 2;

    /// Ends what was started with one of these in its environment.
    pub(super) async fn kill(entries: Vec<String>, spared: Option<Spared>) -> Result<usize> {
        let entries: Vec<Vec<u8>> = entries.into_iter().map(String::into_bytes).collect();
        let deadline = Instant::now() + LONGEST;
        let mut seen = BTreeSet::new();
        let mut empty = 0;
        loop {
            let (entries, known) = (entries.clone(), seen.clone());
            let found = tokio::task::spawn_blocking(move || sweep(&entries, &known, spared))
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
        entries: &[Vec<u8>],
        known: &BTreeSet<(i32, u64)>,
        spared: Option<Spared>,
    ) -> std::io::Result<Vec<Process>> {
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        let own_group = getpgrp().as_raw();
        let mut alive: Vec<Process> = procfs::processes()?
            .into_iter()
            .filter(|p| !p.dead && p.id != own)
            .collect();
        if let Some(spared) = spared {
            let late = |p: &Process| {
                u32::try_from(p.parent) == Ok(spared.worker)
                    && p.started_ms() > spared.started_after_ms
            };
            let late = with_families(&alive, alive.iter().map(late).collect(), own_group);
            let others = alive.into_iter().zip(late);
            alive = others
                .filter_map(|(p, late)| (!late).then_some(p))
                .collect();
        }
        let doomed = alive
            .iter()
            .map(|p| known.contains(&(p.id, p.started)) || procfs::started_with(p.id, entries))
            .collect();
        let doomed = with_families(&alive, doomed, own_group);
        let killed: Vec<Process> = alive
            .into_iter()
            .zip(doomed)
            .filter_map(|(process, doomed)| doomed.then_some(process))
            .collect();
        strike(&killed, own_group);
        Ok(killed)
    }

    /// Those chosen, their process groups and their descendants.
    fn with_families(alive: &[Process], mut chosen: Vec<bool>, own_group: i32) -> Vec<bool> {
        loop {
            let these = || {
                alive
                    .iter()
                    .zip(&chosen)
                    .filter(|(_, c)| **c)
                    .map(|(p, _)| p)
            };
            let ids: BTreeSet<i32> = these().map(|p| p.id).collect();
            let groups = groups_of(these(), own_group);
            let next: Vec<bool> = alive
                .iter()
                .zip(&chosen)
                .map(|(p, c)| *c || groups.contains(&p.group) || ids.contains(&p.parent))
                .collect();
            if next == chosen {
                return chosen;
            }
            chosen = next;
        }
    }

    fn groups_of<'a>(these: impl Iterator<Item = &'a Process>, own_group: i32) -> BTreeSet<i32> {
        these
            .map(|p| p.group)
            .filter(|g| *g != own_group && *g > 1)
            .collect()
    }

    /// What is gone already, or belongs to somebody else, shows in the next sweep.
    fn strike(these: &[Process], own_group: i32) {
        for group in groups_of(these.iter(), own_group) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        for process in these {
            let _ = signal(Pid::from_raw(process.id), Signal::SIGKILL);
        }
    }
}
