//! Triggers: a run and an executor, as a message.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::{Outgoing, QueueId};
use cueline_model::{ExecutorName, JobId, StoreId, Timestamp};
use cueline_protocol::{JobSnapshot, SigningKey, Trigger, VERSION, decode, encode};
use cueline_store::{ClaimedRun, DispatchRequest};

use crate::shared::{Ready, Shared};

/// Job parts are kept for so many jobs; past that all are made anew.
const MAX_PARTS: usize = 50_000;

/// What the triggers of one batch have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    /// The store that their runs are in.
    pub(super) store: StoreId,
    pub(super) now: Timestamp,
    /// For so long they are good.
    pub(super) valid_ms: u64,
}

impl Stamp {
    pub(super) fn of(shared: &Shared) -> Self {
        Self {
            store: shared.store_id(),
            now: shared.now(),
            valid_ms: shared.options.trigger_valid_ms,
        }
    }

    fn deadline(&self) -> Timestamp {
        self.now.plus_ms(self.valid_ms)
    }

    /// One that is published later has little time left to be taken.
    fn fresh_until(&self) -> Timestamp {
        self.now.plus_ms(self.valid_ms / 2)
    }
}

/// Writes triggers. Keeps the part that is the same for all runs of a job's version.
pub(super) struct Triggers {
    key: Option<SigningKey>,
    parts: HashMap<JobId, Arc<JobSnapshot>>,
}

impl Triggers {
    pub(super) fn new(key: Option<SigningKey>) -> Self {
        Self {
            key,
            parts: HashMap::new(),
        }
    }

    /// The trigger of this run for this executor, signed where its handler needs it.
    pub(super) fn write(
        &mut self,
        run: &ClaimedRun,
        executor: ExecutorName,
        mark: DispatchRequest,
        stamp: Stamp,
    ) -> Ready {
        let part = self.part(run);
        let mut trigger = Trigger {
            v: VERSION,
            store: stamp.store,
            run: run.id,
            attempt: run.attempt,
            group: run.job.spec.group.clone(),
            executor,
            kind: run.kind,
            fire_at: run.fire_at,
            shard: run.shard.clone(),
            params: run.params.clone().or_else(|| run.job.spec.params.clone()),
            job: part,
            deadline: stamp.deadline(),
            signature: None,
        };
        let payload = message(&mut trigger, self.key.as_ref());
        Ready {
            id: run.attempt_id(),
            mark,
            in_doubt: false,
            maybe_published: false,
            fresh_until: stamp.fresh_until(),
            due_at: run.due_at,
            priority: run.job.spec.priority,
            message: Outgoing {
                queue: QueueId::Executor {
                    group: run.job.spec.group.to_string(),
                    executor: trigger.executor.to_string(),
                },
                topic: run.job.spec.name.to_string(),
                // Another store's run of the same number is another run.
                id: format!("{}:{}:{}", stamp.store.short(), run.id, run.attempt),
                payload,
            },
        }
    }

    fn part(&mut self, run: &ClaimedRun) -> Arc<JobSnapshot> {
        let job = &run.job;
        if let Some(part) = self.parts.get(&job.id)
            && part.version == job.version
        {
            return part.clone();
        }
        if self.parts.len() >= MAX_PARTS {
            self.parts.clear();
        }
        let spec = &job.spec;
        let part = Arc::new(JobSnapshot {
            id: job.id,
            name: spec.name.clone(),
            version: job.version,
            handler: spec.handler.clone(),
            block: spec.block,
            scope: spec.scope,
            backlog: spec.backlog,
            timeout: spec.timeout,
            kill_grace: spec.kill_grace,
            on_lost: spec.on_lost,
            fence: spec.fence,
            priority: spec.priority,
            lane_per_shard: matches!(spec.route, cueline_model::Route::Sharded(_)),
        });
        self.parts.insert(job.id, part.clone());
        part
    }
}

/// The trigger as it goes out.
fn message(trigger: &mut Trigger, key: Option<&SigningKey>) -> Bytes {
    match key {
        Some(key) if trigger.job.handler.needs_signature() => key.sign(trigger),
        _ => encode(trigger),
    }
    .into()
}

/// Gives a trigger that could not go out for long the time to be taken that it would have had.
pub(super) fn freshen(ready: &mut Ready, key: Option<&SigningKey>, stamp: Stamp) {
    // What was written here can be read here.
    if let Ok(mut trigger) = decode::<Trigger>(&ready.message.payload) {
        trigger.deadline = stamp.deadline();
        ready.message.payload = message(&mut trigger, key);
        ready.fresh_until = stamp.fresh_until();
    }
}
