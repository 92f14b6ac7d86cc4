//! Compares two readings of all jobs, or of all executors. Pure.

use std::collections::BTreeMap;

use cueline_model::{ExecutorId, JobId, Timestamp};
use cueline_store::{Executor, JobBrief};

use crate::view::{ExecutorChange, ExecutorEvent, ExecutorState, JobChange, JobEvent};

/// The jobs that are compared at most, some 20 MB: those with the lowest ids.
pub(super) const MAX_JOBS: usize = 100_000;

/// An executor gets no new triggers after this time without a heartbeat.
const SILENT_AFTER_MS: i64 = 15_000;

/// All jobs by id.
pub(super) type Jobs = BTreeMap<JobId, JobBrief>;

/// What has happened between two readings of jobs.
pub(super) fn compare_jobs(before: &Jobs, now: &Jobs) -> Vec<JobEvent> {
    let mut events = Vec::new();
    for (id, job) in now {
        let Some(old) = before.get(id) else {
            events.push(job_event(JobChange::Created, job));
            continue;
        };
        if old.version == job.version {
            continue;
        }
        if old.group != job.group {
            events.push(job_event(JobChange::Moved, old));
        }
        let change = match (old.enabled, job.enabled) {
            (true, false) => JobChange::Paused,
            (false, true) => JobChange::Resumed,
            _ => JobChange::Updated,
        };
        events.push(job_event(change, job));
    }
    let deleted = before.iter().filter(|(id, _)| !now.contains_key(id));
    events.extend(deleted.map(|(_, job)| job_event(JobChange::Deleted, job)));
    events
}

fn job_event(change: JobChange, job: &JobBrief) -> JobEvent {
    JobEvent {
        change,
        id: job.id,
        name: job.name.clone(),
        group: job.group.clone(),
        version: job.version,
        enabled: job.enabled,
    }
}

/// What is announced of an executor, and what tells that it has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenExecutor {
    state: ExecutorState,
    incarnation: String,
    capacity: u32,
    capabilities: Vec<String>,
    /// Not a change by itself.
    last_heartbeat_at: Timestamp,
}

/// All executors.
pub(super) type Executors = BTreeMap<ExecutorId, SeenExecutor>;

/// The executors at `now`, the time of the database's clock after they were read.
pub(super) fn seen_executors(executors: Vec<Executor>, now: Timestamp) -> Executors {
    let seen = executors.into_iter().map(|executor| {
        let state = state_of(&executor, now);
        let heartbeat = executor.heartbeat;
        let seen = SeenExecutor {
            state,
            incarnation: heartbeat.incarnation,
            capacity: heartbeat.capacity,
            capabilities: heartbeat.capabilities,
            last_heartbeat_at: executor.last_heartbeat_at,
        };
        (heartbeat.executor, seen)
    });
    seen.collect()
}

/// The state of an executor at `now`, the time of the database's clock.
pub(crate) fn state_of(executor: &Executor, now: Timestamp) -> ExecutorState {
    let heartbeat = &executor.heartbeat;
    if heartbeat.gone {
        ExecutorState::Stopped
    } else if now.since_ms(executor.last_heartbeat_at) > SILENT_AFTER_MS {
        ExecutorState::Silent
    } else if heartbeat.refusal.is_some() {
        ExecutorState::Refused
    } else if heartbeat.draining {
        ExecutorState::Draining
    } else {
        ExecutorState::Alive
    }
}

/// What has happened between two readings of executors.
pub(super) fn compare_executors(before: &Executors, now: &Executors) -> Vec<ExecutorEvent> {
    let mut events = Vec::new();
    for (id, executor) in now {
        match before.get(id) {
            None => events.push(executor_event(ExecutorChange::Appeared, id, executor)),
            Some(old) if !is_same(old, executor) => {
                events.push(executor_event(ExecutorChange::Changed, id, executor));
            }
            Some(_) => {}
        }
    }
    let forgotten = before.iter().filter(|(id, _)| !now.contains_key(id));
    events.extend(forgotten.map(|(id, old)| executor_event(ExecutorChange::Forgotten, id, old)));
    events
}

fn is_same(one: &SeenExecutor, other: &SeenExecutor) -> bool {
    one.state == other.state
        && one.incarnation == other.incarnation
        && one.capacity == other.capacity
        && one.capabilities == other.capabilities
}

fn executor_event(
    change: ExecutorChange,
    id: &ExecutorId,
    executor: &SeenExecutor,
) -> ExecutorEvent {
    ExecutorEvent {
        change,
        group: id.group.clone(),
        name: id.name.clone(),
        state: executor.state,
        incarnation: executor.incarnation.clone(),
        capacity: executor.capacity,
        last_heartbeat_at: executor.last_heartbeat_at,
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{Heartbeat, Session};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn job(id: i64, version: i64, enabled: bool, group: &str) -> JobBrief {
        JobBrief {
            id: JobId(id),
            name: format!("job-{id}").parse().expect("a name"),
            group: group.parse().expect("a name"),
            version,
            enabled,
        }
    }

    fn jobs(job: Option<&JobBrief>) -> Jobs {
        job.into_iter().map(|job| (job.id, job.clone())).collect()
    }

    fn changes(before: Option<&JobBrief>, now: Option<&JobBrief>) -> Vec<(JobChange, String)> {
        let events = compare_jobs(&jobs(before), &jobs(now)).into_iter();
        events
            .map(|event| (event.change, event.group.to_string()))
            .collect()
    }

    #[test]
    fn each_change_of_a_job_has_its_event() {
        let one = |change| [(change, "g".to_owned())];
        let old = job(1, 1, true, "g");
        assert_eq!(changes(None, Some(&old)), one(JobChange::Created));
        assert_eq!(changes(Some(&old), None), one(JobChange::Deleted));
        assert_eq!(changes(Some(&old), Some(&old)), []);
        let updated = job(1, 2, true, "g");
        assert_eq!(changes(Some(&old), Some(&updated)), one(JobChange::Updated));
        let paused = job(1, 2, false, "g");
        assert_eq!(changes(Some(&old), Some(&paused)), one(JobChange::Paused));
        let resumed = job(1, 3, true, "g");
        let seen = changes(Some(&paused), Some(&resumed));
        assert_eq!(seen, one(JobChange::Resumed));
        let moved = [
            (JobChange::Moved, "g".to_owned()),
            (JobChange::Updated, "h".to_owned()),
        ];
        let seen = changes(Some(&old), Some(&job(1, 2, true, "h")));
        assert_eq!(seen, moved);
    }

    fn executor(name: &str, incarnation: &str, silent_ms: u64) -> Executor {
        Executor {
            heartbeat: Heartbeat {
                executor: ExecutorId {
                    group: "g".parse().expect("a name"),
                    name: name.parse().expect("a name"),
                },
                incarnation: incarnation.to_owned(),
                session: Session(1),
                capabilities: Vec::new(),
                capacity: 1,
                labels: cueline_model::ExecutorLabels::default(),
                weight: cueline_model::Weight::default(),
                held: 0,
                running: 0,
                draining: false,
                gone: false,
                refusal: None,
            },
            last_heartbeat_at: NOW.minus_ms(silent_ms),
        }
    }

    fn of(executor: Option<Executor>) -> Executors {
        seen_executors(executor.into_iter().collect(), NOW)
    }

    #[test]
    fn each_change_of_an_executor_has_its_event_and_a_heartbeat_has_none() {
        let seen = |before: Option<Executor>, now: Option<Executor>| {
            let events = compare_executors(&of(before), &of(now)).into_iter();
            let events = events.map(|event| (event.change, event.state));
            events.collect::<Vec<_>>()
        };
        let old = || Some(executor("a", "1", 10));
        let alive = |change| [(change, ExecutorState::Alive)];
        assert_eq!(seen(None, old()), alive(ExecutorChange::Appeared));
        assert_eq!(seen(old(), None), alive(ExecutorChange::Forgotten));
        let mut busy = executor("a", "1", 5);
        busy.heartbeat.running = 7;
        assert_eq!(seen(old(), Some(busy)), []);
        let restarted = Some(executor("a", "2", 5));
        assert_eq!(seen(old(), restarted), alive(ExecutorChange::Changed));
        let silent = Some(executor("a", "1", 15_001));
        let expected = [(ExecutorChange::Changed, ExecutorState::Silent)];
        assert_eq!(seen(old(), silent), expected);
        let mut gone = executor("a", "1", 15_001);
        gone.heartbeat.gone = true;
        let expected = [(ExecutorChange::Changed, ExecutorState::Stopped)];
        assert_eq!(seen(old(), Some(gone)), expected);
    }
}
