//! Writes triggers: turns a run and its executor into a message.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::Outgoing;
use cueline_model::{Job, JobId, Route, StoreId, Timestamp};
use cueline_protocol::{JobSnapshot, SigningKey, Trigger, VERSION, decode, encode};
use cueline_store::{ClaimedRun, DispatchRequest};

use super::node_claims::PendingPublish;
use crate::addresses::executor_queue;

/// At this many job snapshots the cache is cleared.
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

    /// A trigger published after this instant has less than half of its time left.
    fn rebuild_after(&self, now: Timestamp) -> Timestamp {
        now.plus_ms(self.valid_ms / 2)
    }

    /// Signs the trigger if its handler requires a signature.
    fn encode(&self, trigger: &mut Trigger) -> Bytes {
        match &self.key {
            Some(key) if trigger.job.handler.needs_signature() => key.sign(trigger),
            _ => encode(trigger),
        }
        .into()
    }

    /// Rebuilds the trigger with a full deadline, if it has waited too long for its publication.
    pub(crate) fn refresh(&self, pending: &mut PendingPublish, now: Timestamp) {
        if now <= pending.rebuild_after {
            return;
        }
        // This process wrote the message, so it can read it.
        if let Ok(mut trigger) = decode::<Trigger>(&pending.message.payload) {
            trigger.deadline = self.deadline(now);
            pending.message.payload = self.encode(&mut trigger);
            pending.rebuild_after = self.rebuild_after(now);
        }
    }
}

/// Writes triggers. Caches the job snapshot, which all runs of a job version share.
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
        dispatch: DispatchRequest,
        now: Timestamp,
    ) -> PendingPublish {
        let spec = &run.job.spec;
        let mut trigger = Trigger {
            v: VERSION,
            store: self.store_id,
            run: run.id,
            attempt: run.attempt,
            group: spec.group.clone(),
            executor: dispatch.executor.clone(),
            kind: run.kind,
            fire_at: run.fire_at,
            shard: run.shard.clone(),
            params: run.params.clone().or_else(|| spec.params.clone()),
            job: self.snapshot(&run.job),
            deadline: self.signer.deadline(now),
            signature: None,
        };
        let message = Outgoing {
            queue: executor_queue(&spec.group, &dispatch.executor),
            topic: spec.name.to_string(),
            // Run ids repeat across stores, and stores may share a broker. The store id keeps messages apart.
            id: format!("{}:{}:{}", self.store_id.short(), run.id, run.attempt),
            payload: self.signer.encode(&mut trigger),
        };
        PendingPublish {
            dispatch,
            is_dispatch_uncertain: false,
            maybe_published: false,
            rebuild_after: self.signer.rebuild_after(now),
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
