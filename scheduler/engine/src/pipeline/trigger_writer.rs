//! Writes triggers: turns runs and their executors into signed messages.
//!
//! All triggers of all handlers are signed here, those that are published again too. One signature covers many of them, so
//! they are written first and signed together. Only a process with a broker of its own leaves native ones unsigned.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::Outgoing;
use cueline_model::{HandlerSpec, Job, JobId, Route, Session, StoreId, Timestamp};
use cueline_protocol::{JobSnapshot, SigningKeys, Trigger, VERSION, decode, encode};
use cueline_store::{ClaimedRun, DispatchRequest};

use crate::addresses::executor_queue;
use crate::claims::{PendingPublish, is_skipped_if_late};

/// At this many job snapshots the cache is cleared.
const MAX_SNAPSHOTS: usize = 50_000;

/// Gives triggers their deadline and signature.
#[derive(Clone)]
pub(crate) struct TriggerSigner {
    /// Without keys no trigger is signed.
    pub(crate) keys: Option<SigningKeys>,
    /// Whether triggers of native handlers are signed too.
    pub(crate) signs_native: bool,
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

    /// Whether a scheduler with these keys may have written the message, from which `trigger` was read. If the trigger
    /// is one that is signed, only a holder of the key of its group can have written it.
    pub(crate) fn may_have_written(&self, message: &[u8], trigger: &Trigger) -> bool {
        match self.keys_for(trigger) {
            Some(keys) => {
                let key = keys.of(&trigger.group).verifying_keys();
                key.verify(message, trigger).is_ok()
            }
            None => trigger.signature.is_none(),
        }
    }

    /// Whether a scheduler with these keys has signed the message, from which `trigger` was read.
    pub(crate) fn has_signed(&self, message: &[u8], trigger: &Trigger) -> bool {
        self.keys_for(trigger).is_some() && self.may_have_written(message, trigger)
    }

    /// The keys, if a trigger of this handler is signed.
    fn keys_for(&self, trigger: &Trigger) -> Option<&SigningKeys> {
        let is_native = matches!(trigger.job.handler, HandlerSpec::Native(_));
        self.keys
            .as_ref()
            .filter(|_| self.signs_native || !is_native)
    }

    /// The messages of the triggers, in the same order. Those that are signed are signed together.
    fn encode(&self, triggers: &mut [Trigger]) -> Vec<Bytes> {
        let (signed, unsigned): (Vec<_>, Vec<_>) = triggers
            .iter_mut()
            .enumerate()
            .partition(|(_, trigger)| self.keys_for(trigger).is_some());
        let mut messages = vec![Bytes::new(); signed.len() + unsigned.len()];
        for (place, trigger) in unsigned {
            trigger.signature = None;
            messages[place] = encode(trigger).into();
        }
        let (places, mut signed): (Vec<_>, Vec<_>) = signed.into_iter().unzip();
        if let Some(keys) = &self.keys {
            for (place, message) in places.into_iter().zip(keys.sign_all(&mut signed)) {
                messages[place] = message.into();
            }
        }
        messages
    }

    /// Rebuilds triggers with a full deadline if they have waited too long, or if they were written for an earlier
    /// session than `session_of` them. Otherwise their executors would return them.
    pub(crate) fn refresh(
        &self,
        pending: &mut [PendingPublish],
        session_of: impl Fn(&PendingPublish) -> Option<Session>,
        now: Timestamp,
    ) {
        let (mut places, mut triggers) = (Vec::new(), Vec::new());
        for (place, one) in pending.iter_mut().enumerate() {
            let session = session_of(one);
            if now <= one.rebuild_after && session <= one.session {
                continue;
            }
            // This process wrote the message, so it can read it.
            if let Ok(mut trigger) = decode::<Trigger>(&one.message.payload) {
                one.session = one.session.max(session);
                one.rebuild_after = self.rebuild_after(now);
                trigger.session = one.session;
                trigger.deadline = self.deadline(now);
                places.push(place);
                triggers.push(trigger);
            }
        }
        for (place, payload) in places.into_iter().zip(self.encode(&mut triggers)) {
            pending[place].message.payload = payload;
        }
    }
}

/// A trigger that is not signed yet.
pub(crate) struct WrittenTrigger {
    trigger: Trigger,
    /// It has no message yet.
    pub(crate) pending: PendingPublish,
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

    /// Writes the trigger for the present session of its executor. It has to be [signed](Self::sign).
    pub(crate) fn write(
        &mut self,
        run: &ClaimedRun,
        dispatch: DispatchRequest,
        session: Option<Session>,
        now: Timestamp,
    ) -> WrittenTrigger {
        let spec = &run.job.spec;
        let trigger = Trigger {
            v: VERSION,
            store: self.store_id,
            run: run.id,
            attempt: run.attempt,
            group: spec.group.clone(),
            executor: dispatch.executor.clone(),
            kind: run.kind,
            fire_at: run.fire_at,
            lane_at: (run.lane_at != run.fire_at).then_some(run.lane_at),
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
            payload: Bytes::new(),
        };
        let pending = PendingPublish {
            dispatch,
            is_dispatch_uncertain: false,
            maybe_published: false,
            is_skipped_if_late: is_skipped_if_late(run),
            group: spec.group.clone(),
            session,
            rebuild_after: self.signer.rebuild_after(now),
            due_at: run.due_at,
            order_at: order_at(run, now),
            priority: run.priority(),
            message,
        };
        WrittenTrigger { trigger, pending }
    }

    /// Signs triggers together.
    pub(crate) fn sign(&self, written: Vec<WrittenTrigger>) -> Vec<PendingPublish> {
        let parts = written.into_iter().map(|one| (one.trigger, one.pending));
        let (mut triggers, mut pending): (Vec<Trigger>, Vec<PendingPublish>) = parts.unzip();
        for (one, payload) in pending.iter_mut().zip(self.signer.encode(&mut triggers)) {
            one.message.payload = payload;
        }
        pending
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
            handler: spec.handler.for_worker(),
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

/// The place of a trigger among those that wait for their publication. A run that is due already, or was routed before,
/// goes by its place in its lane: a failover makes it due anew, after newer runs. Others are not published before they are
/// due.
fn order_at(run: &ClaimedRun, now: Timestamp) -> Timestamp {
    if run.due_at <= now || run.attempt > 1 {
        run.due_at.min(run.lane_at)
    } else {
        run.due_at
    }
}
