//! Triggers: a run and its executor become a message.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::Outgoing;
use cueline_model::{Job, JobId, Route, StoreId, Timestamp};
use cueline_protocol::{JobSnapshot, SigningKey, Trigger, VERSION, decode, encode};
use cueline_store::{ClaimedRun, DispatchRequest};

use super::node_claims::PendingPublish;
use crate::addresses::executor_queue;

/// Job snapshots that are kept; past that all are forgotten and made again when needed.
const MAX_SNAPSHOTS: usize = 50_000;

/// Gives triggers their deadline and signature.
#[derive(Clone)]
pub(crate) struct TriggerSigner {
    /// Without a key no trigger is signed.
    pub(crate) key: Option<SigningKey>,
    /// How long after its writing an executor that does not know the attempt accepts the trigger, in ms.
    pub(crate) valid_ms: u64,
}

impl TriggerSigner {
    fn deadline(&self, now: Timestamp) -> Timestamp {
        now.plus_ms(self.valid_ms)
    }

    /// A trigger published later than this has less than half of its time left.
    fn fresh_until(&self, now: Timestamp) -> Timestamp {
        now.plus_ms(self.valid_ms / 2)
    }

    /// Signs where the handler demands it.
    fn encode(&self, trigger: &mut Trigger) -> Bytes {
        match &self.key {
            Some(key) if trigger.job.handler.needs_signature() => key.sign(trigger),
            _ => encode(trigger),
        }
        .into()
    }

    /// Writes the trigger anew with a full deadline, if it has waited too long for its publication.
    pub(crate) fn refresh(&self, pending: &mut PendingPublish, now: Timestamp) {
        if now <= pending.fresh_until {
            return;
        }
        // This process wrote the message, so it can read it.
        if let Ok(mut trigger) = decode::<Trigger>(&pending.message.payload) {
            trigger.deadline = self.deadline(now);
            pending.message.payload = self.encode(&mut trigger);
            pending.fresh_until = self.fresh_until(now);
        }
    }
}

/// Writes triggers. Keeps the part that all runs of a job's version share.
pub(crate) struct TriggerWriter {
    signer: TriggerSigner,
    store_id: StoreId,
    snapshots: HashMap<JobId, Arc<JobSnapshot>>,
}

impl TriggerWriter {
    pub(crate) fn new(signer: TriggerSigner, store_id: StoreId) -> Self {
        Self {
            signer,
            store_id,
            snapshots: HashMap::new(),
        }
    }

    pub(crate) fn write(
        &mut self,
        run: &ClaimedRun,
        mark: DispatchRequest,
        now: Timestamp,
    ) -> PendingPublish {
        let spec = &run.job.spec;
        let mut trigger = Trigger {
            v: VERSION,
            store: self.store_id,
            run: run.id,
            attempt: run.attempt,
            group: spec.group.clone(),
            executor: mark.executor.clone(),
            kind: run.kind,
            fire_at: run.fire_at,
            shard: run.shard.clone(),
            params: run.params.clone().or_else(|| spec.params.clone()),
            job: self.snapshot(&run.job),
            deadline: self.signer.deadline(now),
            signature: None,
        };
        let message = Outgoing {
            queue: executor_queue(&spec.group, &mark.executor),
            topic: spec.name.to_string(),
            // The store is part of the identity: run ids repeat across stores, and stores may share a broker.
            id: format!("{}:{}:{}", self.store_id.short(), run.id, run.attempt),
            payload: self.signer.encode(&mut trigger),
        };
        PendingPublish {
            mark,
            mark_uncertain: false,
            maybe_published: false,
            fresh_until: self.signer.fresh_until(now),
            due_at: run.due_at,
            priority: spec.priority,
            message,
        }
    }

    fn snapshot(&mut self, job: &Job) -> Arc<JobSnapshot> {
        if let Some(snapshot) = self.snapshots.get(&job.id)
            && snapshot.version == job.version
        {
            return snapshot.clone();
        }
        if self.snapshots.len() >= MAX_SNAPSHOTS {
            self.snapshots.clear();
        }
        let spec = &job.spec;
        let snapshot = Arc::new(JobSnapshot {
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
            lane_per_shard: matches!(spec.route, Route::Sharded(_)),
        });
        self.snapshots.insert(job.id, snapshot.clone());
        snapshot
    }
}
