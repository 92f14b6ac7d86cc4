//! Finds the reason in a snapshot of the store. Pure: it reads neither store nor clock.

use std::sync::Arc;

use cueline_model::exclusion::{Cause, WindowTime};
use cueline_model::{
    Block, Exclusions, ExecutorName, Job, MaintenanceWindow, Route, RunKind, RunState, Schedule,
    Scope, Timestamp,
};
use cueline_store::{
    Backfill, BackfillState, Executor, JobVersion, LimitPlace, LimitUsage, Run, Situation,
    TimelineEntry,
};

use super::limits;
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
    /// What excludes fire times of the job.
    pub(super) exclusions: Exclusions,
    /// The quota of waiting runs of its namespace, and the runs that wait there.
    pub(super) waiting_quota: Option<(u64, u64)>,
    /// Its backfill that has not ended.
    pub(super) backfill: Option<Backfill>,
    /// Its limits and their use.
    pub(super) limits: Vec<LimitUsage>,
}

impl From<Situation> for Snapshot {
    fn from(situation: Situation) -> Self {
        let job = situation.job;
        let spec = job.as_ref().map(|summary| &summary.job.spec);
        let quota = situation.quotas.and_then(|load| {
            let limit = load.quotas.max_waiting_runs?;
            Some((limit, load.waiting_runs))
        });
        Self {
            now: situation.now,
            exclusions: spec
                .map(|spec| situation.rules.of(spec))
                .unwrap_or_default(),
            next_fire: job.as_ref().and_then(|summary| summary.next_fire),
            job: job.map(|summary| summary.job),
            live: situation.live,
            executors: situation.executors,
            versions: situation.versions,
            waiting_quota: quota,
            backfill: situation.backfill,
            limits: situation.limits,
        }
    }
}

impl Snapshot {
    /// How far the backfill of the job is, to follow a sentence.
    pub(super) fn backfill_note(&self) -> Option<String> {
        let backfill = self.backfill.as_ref()?;
        let by = match (&backfill.changed_by, backfill.state) {
            (Some(by), BackfillState::Paused) => format!(" by {by}"),
            _ => String::new(),
        };
        Some(format!(
            "; its backfill {} is {}{by}, {} of {} fire times are done",
            backfill.id,
            backfill.state.as_str(),
            backfill.done(),
            backfill.total
        ))
    }
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
    if let Some(pause) = snapshot.exclusions.pause(snapshot.now)
        && let Some(reason) = paused_together(pause)
    {
        return reason;
    }
    if let Some(after) = &spec.after {
        return Reason::WaitsForParent {
            after: (**after).clone(),
        };
    }
    if let Some(reason) = excluded(snapshot, job).or_else(|| quota(snapshot, job)) {
        return reason;
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

/// `None` if the window is no pause.
fn paused_together(window: &MaintenanceWindow) -> Option<Reason> {
    let WindowTime::Pause { paused_at, until } = window.spec.time else {
        return None;
    };
    Some(Reason::PausedTogether {
        pause: window.id,
        by: window.spec.owner.clone(),
        why: window.spec.reason.clone(),
        since: paused_at,
        until,
    })
}

/// The next time of the schedule, if a calendar or a window excludes it.
fn excluded(snapshot: &Snapshot, job: &Job) -> Option<Reason> {
    if matches!(job.spec.schedule, Schedule::FixedDelay { .. }) {
        return None;
    }
    let at = job.spec.next_fire(snapshot.now)?;
    let (cause, _) = snapshot.exclusions.at(at)?;
    Some(Reason::Excluded {
        at,
        is_calendar: matches!(cause, Cause::Calendar(_)),
        cause: cause.to_string(),
        next: snapshot.next_fire,
    })
}

/// Fires are skipped while too many runs of the namespace wait.
fn quota(snapshot: &Snapshot, job: &Job) -> Option<Reason> {
    let (limit, waiting) = snapshot.waiting_quota?;
    (waiting >= limit).then(|| Reason::Quota {
        namespace: job.spec.name.namespace(),
        limit,
        waiting,
    })
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
        .map(|executor| {
            let obstacle = obstacle(executor, &handler, snapshot.now);
            (
                name(executor),
                obstacle.or_else(|| not_meant(executor, job)),
            )
        })
        .collect();
    if let Some(reason) = lane_of_group(snapshot, run, job) {
        return reason;
    }
    let free = obstacles.iter().filter(|(_, obstacle)| obstacle.is_none());
    let able = free.count() as u64;
    if able > 0
        && let Some(limit) = limits::reached(&snapshot.limits, limit_place(run, job), snapshot.now)
    {
        return Reason::Limit(limit);
    }
    if able > 0 && job.spec.route == Route::Any {
        return Reason::NoRoom {
            group: job.spec.group.clone(),
            executors: able,
            for_ms,
        };
    }
    if able > 0 {
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

/// The job is for other executors.
fn not_meant(executor: &Executor, job: &Job) -> Option<Obstacle> {
    let spec = &job.spec;
    if let Route::Executor(wanted) = &spec.route
        && *wanted != name(executor)
    {
        return Some(Obstacle::NotNamed);
    }
    let labels = &executor.heartbeat.labels;
    (!spec.selector.selects(labels)).then(|| Obstacle::LacksLabels {
        selector: spec.selector.to_string(),
    })
}

/// What a run waits for in the lane that its job has over the whole group. Scheduler and store decide the same way: attempts
/// at executors come first, then older runs that are due.
fn lane_of_group(snapshot: &Snapshot, run: &Run, job: &Job) -> Option<Reason> {
    let spec = &job.spec;
    if spec.scope == Scope::Executor || spec.route == Route::Broadcast {
        return None;
    }
    let place = |run: &Run| (lane_at(run), run.id);
    let lane: Vec<&Run> = snapshot
        .live
        .iter()
        .filter(|other| other.id != run.id && other.shard.index == run.shard.index)
        .collect();
    let waits = |other: &&&Run| {
        other.state == RunState::Scheduled
            && other.due_at <= snapshot.now
            && place(other) < place(run)
    };
    let first = lane.iter().filter(waits).min_by_key(|other| place(other));
    let ahead = lane.iter().filter(waits).count() as u64;
    let at_executors = lane
        .iter()
        .filter(|other| other.state != RunState::Scheduled);
    let at_executors: Vec<&&Run> = at_executors.collect();
    let (policy, places) = policy(spec.block);
    let is_free = match spec.block {
        Block::Parallel(_) => at_executors.len() < places,
        Block::Serial | Block::Discard | Block::Cover => at_executors.is_empty(),
    };
    let behind = if is_free {
        first?
    } else {
        at_executors.iter().min_by_key(|other| other.id)?
    };
    Some(Reason::LaneOfGroup {
        policy,
        behind: behind.id,
        executor: behind.executor.clone(),
        at_executors: at_executors.len() as u64,
        ahead,
    })
}

/// The time of the run in its lane. A retry joins at the end.
fn lane_at(run: &Run) -> Timestamp {
    let joins_at_the_end = run.retries > 0 || run.kind == RunKind::Backfill;
    if joins_at_the_end {
        run.due_at
    } else {
        run.fire_at
    }
}

fn limit_place(run: &Run, job: &Job) -> LimitPlace {
    let priority = match run.kind {
        RunKind::Backfill => 0,
        _ => job.spec.priority,
    };
    LimitPlace(
        lane_at(run).as_millis(),
        9_u8.saturating_sub(priority),
        run.id,
    )
}

fn policy(block: Block) -> (&'static str, usize) {
    match block {
        Block::Discard => ("discard", 1),
        Block::Cover => ("cover", 1),
        Block::Parallel(n) => ("parallel", n.max(1) as usize),
        Block::Serial => ("serial", 1),
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
    let (policy, places) = policy(block.unwrap_or_default());
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
