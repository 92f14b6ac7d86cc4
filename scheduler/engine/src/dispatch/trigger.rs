//! Triggers: a run and an executor, as a message.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::{Outgoing, QueueId};
use cueline_model::{ExecutorName, JobId};
use cueline_protocol::{JobPart, SigningKey, Trigger, VERSION, encode};
use cueline_store::{DispatchMark, WaitingRun};

use crate::shared::Ready;

/// Job parts are kept for so many jobs; past that all are made anew.
const MAX_PARTS: usize = 50_000;

/// Writes triggers. Keeps the part that is the same for all runs of a job's version.
pub(super) struct Triggers {
    key: Option<SigningKey>,
    parts: HashMap<JobId, Arc<JobPart>>,
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
        run: &WaitingRun,
        executor: ExecutorName,
        mark: DispatchMark,
    ) -> Ready {
        let part = self.part(run);
        let mut trigger = Trigger {
            v: VERSION,
            run: run.id,
            attempt: run.attempt,
            executor,
            kind: run.kind,
            fire_at: run.fire_at,
            shard: run.shard.clone(),
            params: run.params.clone().or_else(|| run.job.spec.params.clone()),
            job: part,
            signature: None,
        };
        if let Some(key) = &self.key
            && trigger.job.handler.needs_signature()
        {
            key.sign(&mut trigger);
        }
        Ready {
            id: run.attempt_id(),
            mark,
            in_doubt: false,
            published_maybe: false,
            due_at: run.due_at,
            priority: run.job.spec.priority,
            message: Outgoing {
                queue: QueueId::Executor {
                    group: run.job.spec.group.to_string(),
                    executor: trigger.executor.to_string(),
                },
                topic: run.job.spec.name.to_string(),
                id: format!("{}:{}", run.id, run.attempt),
                payload: Bytes::from(encode(&trigger)),
            },
        }
    }

    fn part(&mut self, run: &WaitingRun) -> Arc<JobPart> {
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
        let part = Arc::new(JobPart {
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
