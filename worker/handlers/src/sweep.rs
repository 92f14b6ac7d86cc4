//! Kills processes by their marks, with their process groups and descendants, until none is left.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill as signal, killpg};
use nix::unistd::{Pid, getpgrp};
use tokio::time::{Instant, sleep};

use crate::orphan_error::{OrphanError, Pids, Result};
use crate::process::procfs::{self, Process};

const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);
/// No process with the mark is left when this many sweeps in a row have found none.
const EMPTY_SWEEPS: u32 = 2;
/// The most passes of one listing. A busy machine starts processes all the time, so new ones may never run out.
const MAX_PASSES: u32 = 20;

/// Kills all processes that were started with an environment entry that `is_mark` accepts. Returns how many there
/// were.
pub(crate) async fn kill(is_mark: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Result<usize> {
    let is_mark = Arc::new(is_mark);
    let deadline = Instant::now() + LIMIT;
    let mut killed = BTreeSet::new();
    let mut empty = 0;
    loop {
        let (is_mark, earlier) = (Arc::clone(&is_mark), killed.clone());
        let found = tokio::task::spawn_blocking(move || sweep(&*is_mark, &earlier))
            .await
            .unwrap_or_else(|e| Err(io::Error::other(e)))
            .map_err(OrphanError::List)?;
        empty = if found.is_empty() { empty + 1 } else { 0 };
        if empty >= EMPTY_SWEEPS {
            return Ok(killed.len());
        }
        if Instant::now() >= deadline {
            let running = found.iter().map(|p| p.id).collect();
            return Err(OrphanError::Survivors(Pids(running)));
        }
        killed.extend(found.iter().map(|p| (p.id, p.started)));
        if empty == 0 {
            sleep(PAUSE).await;
        }
    }
}

/// Kills all processes with the mark that run now, and returns them. Also returns those of `earlier` that still run:
/// a killed process loses its environment before it releases its files and locks.
fn sweep(
    is_mark: &impl Fn(&[u8]) -> bool,
    earlier: &BTreeSet<(i32, u64)>,
) -> io::Result<Vec<Process>> {
    let is_target =
        |p: &Process| earlier.contains(&(p.id, p.started)) || procfs::started_with(p.id, is_mark);
    let (running, mut targets): (Vec<Process>, Vec<bool>) = running(is_target)?.into_iter().unzip();
    let own_group = getpgrp().as_raw();
    // Each pass adds the members of known groups and the children of known targets. They are killed only when a pass
    // adds nothing: a killed parent would no longer show whose child a process is.
    loop {
        let chosen = || running.iter().zip(&targets).filter(|(_, t)| **t);
        let ids: BTreeSet<i32> = chosen().map(|(p, _)| p.id).collect();
        let groups: BTreeSet<i32> = chosen()
            .map(|(p, _)| p.group)
            .filter(|g| *g != own_group && *g > 1)
            .collect();
        let next: Vec<bool> = running
            .iter()
            .zip(&targets)
            .map(|(p, t)| *t || groups.contains(&p.group) || ids.contains(&p.parent))
            .collect();
        if next == targets {
            send_kill(&ids, &groups);
            break;
        }
        targets = next;
    }
    let killed = running.into_iter().zip(targets).filter(|(_, t)| *t);
    Ok(killed.map(|(process, _)| process).collect())
}

/// All running processes but this one, and whether each is a target.
///
/// Processes are read one after the other. A process that forks and ends before it is read would hide its child.
/// Therefore new processes are listed again until there are none. Each further pass reads few processes, so it is short
/// and hardly any process can fork and end during it.
fn running(is_target: impl Fn(&Process) -> bool) -> io::Result<Vec<(Process, bool)>> {
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let mut seen = BTreeSet::from([own]);
    let mut found = Vec::new();
    for _ in 0..MAX_PASSES {
        let mut ids = procfs::ids()?;
        ids.retain(|id| seen.insert(*id));
        if ids.is_empty() {
            break;
        }
        let processes = ids.into_iter().filter_map(procfs::process);
        for process in processes.filter(|process| !process.zombie) {
            let target = is_target(&process);
            found.push((process, target));
        }
    }
    Ok(found)
}

/// Errors are ignored: the next sweep shows which processes still run.
fn send_kill(ids: &BTreeSet<i32>, groups: &BTreeSet<i32>) {
    for group in groups {
        let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
    }
    for id in ids {
        let _ = signal(Pid::from_raw(*id), Signal::SIGKILL);
    }
}
