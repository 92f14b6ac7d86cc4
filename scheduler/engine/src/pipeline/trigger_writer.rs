//! Writes triggers: turns a run and its executor into a message.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::Outgoing;
use cueline_model::{Job, JobId, Route, Session, StoreId, Timestamp};
use cueline_protocol::{JobSnapshot, SigningKey, Trigger, VERSION, decode, encode};
use cueline_store::{ClaimedRun, DispatchRequest};

use crate::addresses::executor_queue;
use crate::claims::PendingPublish;

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

    /// When the trigger was written, by the estimate of the database's clock on its node.
    pub(crate) fn written_at(&self, trigger: &Trigger) -> Timestamp {
        trigger.deadline.minus_ms(self.valid_ms)
    }

    /// Whether the trigger has at least half of its time left.
    pub(crate) fn is_fresh(&self, trigger: &Trigger, now: Timestamp) -> bool {
        now <= self.rebuild_after(self.written_at(trigger))
    }

    /// Whether a scheduler with this key may have written the message, from which `trigger` was read. If the trigger
    /// needs a signature, only a holder of the key can have written it.
    pub(crate) fn may_have_written(&self, message: &[u8], trigger: &Trigger) -> bool {
        match self.key_of(trigger) {
            Some(key) => key.verifying_keys().verify(message, trigger).is_ok(),
            None => trigger.signature.is_none(),
        }
    }

    /// Whether a scheduler with this key has signed the message, from which `trigger` was read.
    pub(crate) fn has_signed(&self, message: &[u8], trigger: &Trigger) -> bool {
        self.key_of(trigger).is_some() && self.may_have_written(message, trigger)
    }

    /// The key, if the trigger's handler requires a signature.
    fn key_of(&self, trigger: &Trigger) -> Option<&SigningKey> {
        let needed = trigger.job.handler.needs_signature();
        self.key.as_ref().filter(|_| needed)
    }

    fn encode(&self, trigger: &mut Trigger) -> Bytes {
        match self.key_of(trigger) {
            Some(key) => key.sign(trigger),
            None => encode(trigger),
        }
        .into()
    }

    /// Rebuilds the trigger with a full deadline if it has waited too long, or if it was written for an earlier session
    /// than `session`. Otherwise its executor would return it.
    pub(crate) fn refresh(
        &self,
        pending: &mut PendingPublish,
        session: Option<Session>,
        now: Timestamp,
    ) {
        if now <= pending.rebuild_after && session <= pending.session {
            return;
        }
        // This process wrote the message, so it can read it.
        if let Ok(mut trigger) = decode::<Trigger>(&pending.message.payload) {
            pending.session = pending.session.max(session);
            trigger.session = pending.session;
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

    /// Writes the trigger for the present session of its executor.
    pub(crate) fn write(
        &mut self,
        run: &ClaimedRun,
        dispatch: DispatchRequest,
        session: Option<Session>,
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
            session,
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
            group: spec.group.clone(),
            session,
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
