//! Finds the reason in a snapshot of the store. Pure: it reads neither store nor clock.

use std::sync::Arc;

use cueline_model::{Block, ExecutorName, Job, RunKind, RunState, Schedule, Timestamp};
use cueline_store::{Executor, JobVersion, Run, TimelineEntry};

use super::reason::{Obstacle, Reason};
use crate::events::executor_state;
use crate::view::ExecutorState;

/// What the store said about a job at one instant.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) now: Timestamp,
    /// `None` if the job was deleted.
    pub(super) job: Option<Arc<Job>>,
    pub(super) next_fire: Option<Timestamp>,
    /// The live runs of the job with the lowest ids, ascending.
    pub(super) live: Vec<Run>,
    /// The executors of its group.
    pub(super) executors: Vec<Executor>,
    /// The newest versions of the job, newest first, down to the change that paused it.
    pub(super) versions: Vec<JobVersion>,
}

/// The oldest live run that is due and has not started.
pub(super) fn waiting_run(snapshot: &Snapshot) -> Option<&Run> {
    let waits = |run: &&Run| run.state != RunState::Running && run.due_at <= snapshot.now;
    snapshot.live.iter().find(waits)
}

/// Why the job does not run now, if none of its runs waits.
pub(super) fn of_job(snapshot: &Snapshot, job: &Job) -> Reason {
    let spec = &job.spec;
    if let Some(retry) = snapshot
        .live
        .iter()
        .find(|run| run.attempt > 1 && is_early(snapshot, run))
    {
        return of_run(snapshot, retry, &[]);
    }
    if !spec.is_enabled() {
        return paused(&snapshot.versions);
    }
    if let Some(parent) = spec.after.as_ref().and_then(|after| after.all.first()) {
        return Reason::WaitsForParent {
            parent: parent.clone(),
        };
    }
    match (&spec.schedule, snapshot.next_fire) {
        (Schedule::Manual, _) => Reason::Manual,
        (Schedule::Startup, _) => Reason::Startup,
        (_, Some(at)) => match spec.start_at {
            Some(start_at) if start_at > snapshot.now => Reason::NotStarted { start_at, next: at },
            _ => Reason::NextFire { at },
        },
        (Schedule::FixedDelay { .. }, None) if !snapshot.live.is_empty() => Reason::WaitsForEnd,
        (_, None) => Reason::NeverAgain {
            end_at: spec.end_at.filter(|end| *end <= snapshot.now),
        },
    }
}

/// Who paused the schedule, and when. The oldest of the newest versions that are all paused has made the change.
fn paused(versions: &[JobVersion]) -> Reason {
    let since = versions
        .iter()
        .take_while(|version| !version.enabled)
        .last();
    // The change before it is not known if all versions are paused, unless the job was created so.
    let since = since.filter(|found| found.version == 1 || versions.iter().any(|v| v.enabled));
    Reason::Paused {
        by: since.map(|version| version.by.clone()),
        since: since.map(|version| version.at),
    }
}

/// Why the run does not run now.
pub(super) fn of_run(snapshot: &Snapshot, run: &Run, timeline: &[TimelineEntry]) -> Reason {
    if run.state.is_terminal() {
        return Reason::Ended {
            state: run.state,
            at: run.ended_at,
            message: run.message.clone(),
        };
    }
    if run.cancel_requested {
        return Reason::Stopping {
            executor: run.executor.clone(),
        };
    }
    match run.state {
        RunState::Running => Reason::Running {
            executor: run.executor.clone(),
            for_ms: ms_since(snapshot, run.started_at),
        },
        RunState::Scheduled => scheduled(snapshot, run, timeline),
        RunState::Dispatching => {
            unavailable(snapshot, run).unwrap_or_else(|| Reason::Dispatching {
                executor: run.executor.clone(),
            })
        }
        _ => unavailable(snapshot, run).unwrap_or_else(|| queued(snapshot, run)),
    }
}

fn is_early(snapshot: &Snapshot, run: &Run) -> bool {
    run.state == RunState::Scheduled && run.due_at > snapshot.now
}

fn scheduled(snapshot: &Snapshot, run: &Run, timeline: &[TimelineEntry]) -> Reason {
    if is_early(snapshot, run) {
        if run.attempt == 1 {
            return Reason::NotDue { at: run.due_at };
        }
        let last = timeline.iter().rfind(|entry| entry.attempt < run.attempt);
        return Reason::Retry {
            attempt: run.attempt,
            at: run.due_at,
            after: last.map(|entry| entry.detail.clone()),
        };
    }
    if let Some(reason) = unavailable(snapshot, run) {
        return reason;
    }
    let for_ms = ms_since(snapshot, Some(run.due_at));
    let Some(job) = &snapshot.job else {
        return Reason::NotDispatched { for_ms };
    };
    let handler = job.spec.handler.capability();
    let obstacles: Vec<_> = snapshot
        .executors
        .iter()
        .map(|executor| (name(executor), obstacle(executor, &handler, snapshot.now)))
        .collect();
    if obstacles.iter().any(|(_, obstacle)| obstacle.is_none()) {
        return Reason::NotDispatched { for_ms };
    }
    let is_late = matches!(run.kind, RunKind::Child | RunKind::Backfill);
    let is_fire = run.attempt == 1 && !is_late;
    let since = if is_fire { run.fire_at } else { run.due_at };
    Reason::NoExecutor {
        group: job.spec.group.clone(),
        handler: handler.into_owned(),
        obstacles: obstacles
            .into_iter()
            .filter_map(|(name, obstacle)| Some((name, obstacle?)))
            .collect(),
        until: since.plus_ms(job.spec.jitter.as_millis() + job.spec.dispatch_deadline.as_millis()),
    }
}

/// The executor that the run was given to takes no triggers, or is unknown.
fn unavailable(snapshot: &Snapshot, run: &Run) -> Option<Reason> {
    let executor = run.executor.as_ref()?;
    let known = snapshot
        .executors
        .iter()
        .find(|one| name(one) == *executor)?;
    // What the executor announces does not matter once it has the trigger.
    let obstacle = obstacle(known, "", snapshot.now)?;
    (obstacle != Obstacle::LacksHandler).then(|| Reason::ExecutorUnavailable {
        executor: executor.clone(),
        obstacle,
    })
}

fn obstacle(executor: &Executor, handler: &str, now: Timestamp) -> Option<Obstacle> {
    let heartbeat = &executor.heartbeat;
    let for_ms = u64::try_from(now.since_ms(executor.last_heartbeat_at)).unwrap_or(0);
    match executor_state(executor, now) {
        ExecutorState::Stopped => Some(Obstacle::Stopped { for_ms }),
        ExecutorState::Silent => Some(Obstacle::Silent { for_ms }),
        ExecutorState::Refused => Some(Obstacle::Refused {
            why: heartbeat.refusal.clone().unwrap_or_default(),
        }),
        ExecutorState::Draining => Some(Obstacle::Draining),
        ExecutorState::Alive => (!heartbeat.capabilities.iter().any(|one| one == handler))
            .then_some(Obstacle::LacksHandler),
    }
}

fn queued(snapshot: &Snapshot, run: &Run) -> Reason {
    let is_in_lane = |other: &&Run| {
        other.id != run.id
            && other.executor == run.executor
            && (other.shard.total <= 1 || other.shard.index == run.shard.index)
    };
    let lane: Vec<&Run> = snapshot.live.iter().filter(is_in_lane).collect();
    let running: Vec<_> = lane
        .iter()
        .filter(|other| other.state == RunState::Running)
        .collect();
    let ahead = lane
        .iter()
        .filter(|other| other.state == RunState::Queued && other.id < run.id);
    let ahead = ahead.count() as u64;
    let for_ms = ms_since(snapshot, run.queued_at);
    let Some(executor) = run.executor.clone() else {
        return Reason::Queued {
            executor: None,
            for_ms,
            ahead,
        };
    };
    let block = snapshot.job.as_ref().map(|job| job.spec.block);
    let (policy, places) = match block {
        Some(Block::Discard) => ("discard", 1),
        Some(Block::Cover) => ("cover", 1),
        Some(Block::Parallel(n)) => ("parallel", n as usize),
        Some(Block::Serial) | None => ("serial", 1),
    };
    if running.len() >= places {
        let oldest = running.iter().filter_map(|other| other.started_at).min();
        return Reason::LaneBusy {
            executor,
            policy,
            running: running.len() as u64,
            for_ms: ms_since(snapshot, oldest),
            ahead,
        };
    }
    let known = snapshot.executors.iter().find(|one| name(one) == executor);
    match known.map(|known| &known.heartbeat) {
        Some(beat) if beat.running >= u64::from(beat.capacity) => Reason::ExecutorFull {
            executor,
            running: beat.running,
            capacity: beat.capacity,
        },
        _ => Reason::Queued {
            executor: Some(executor),
            for_ms,
            ahead,
        },
    }
}

fn name(executor: &Executor) -> ExecutorName {
    executor.heartbeat.executor.name.clone()
}

fn ms_since(snapshot: &Snapshot, at: Option<Timestamp>) -> u64 {
    at.map_or(0, |at| {
        u64::try_from(snapshot.now.since_ms(at)).unwrap_or(0)
    })
}
