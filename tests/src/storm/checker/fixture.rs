//! Records for the unit tests of the checks.

use std::time::Duration;

use crate::consistency::Run;
use crate::execution_log::{Entry, Event};
use crate::storm::faults::{Fault, FaultKind, InjectedFault, Target};
use crate::storm::store_records::TimelineEvent;

/// A run on worker-1 that was due at `fire_at` and succeeded 20 ms later.
pub(super) fn run(id: i64, job: &str, fire_at: i64) -> Run {
    Run {
        id,
        job: job.to_owned(),
        kind: "schedule".to_owned(),
        state: "succeeded".to_owned(),
        attempt: 1,
        fire_at,
        shard: 0,
        shards: 1,
        parent: None,
        executor: "worker-1".to_owned(),
        created_at: fire_at - 1_000,
        queued_at: Some(fire_at + 5),
        started_at: None,
        ended_at: Some(fire_at + 20),
        message: String::new(),
    }
}

/// The recorded start of the run's last attempt.
pub(super) fn start(run: &Run, at: i64) -> Entry {
    entry(run, Event::Start, at)
}

/// The recorded end of the run's last attempt.
pub(super) fn end(run: &Run, at: i64) -> Entry {
    entry(run, Event::End, at)
}

/// The run's last attempt was asked to stop and stopped.
pub(super) fn stop(run: &Run, at: i64) -> Entry {
    entry(run, Event::Stop, at)
}

fn entry(run: &Run, event: Event, at: i64) -> Entry {
    Entry {
        event,
        at,
        executor: run.executor.clone(),
        job: run.job.clone(),
        shard: run.shard,
        run: run.id,
        attempt: run.attempt,
        fire_at: run.fire_at,
        revision: 0,
        pid: 1,
        began: at,
        other: None,
    }
}

/// A fault that heals when it is over.
pub(super) fn fault(target: Target, kind: FaultKind, began: i64, over: i64) -> InjectedFault {
    InjectedFault {
        fault: Fault {
            target,
            kind,
            after: Duration::ZERO,
        },
        began,
        stopped_until: matches!(kind, FaultKind::Stop(..)).then_some(over),
        full: None,
        over,
        healed: over,
    }
}

pub(super) fn event(attempt: u32, event: &str, detail: &str, at: i64) -> TimelineEvent {
    TimelineEvent {
        at,
        attempt,
        event: event.to_owned(),
        detail: detail.to_owned(),
    }
}
