//! What the stages of one engine share: ports, clock, wheel, outbox, and the ways to wake each other.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cueline_broker::{Broker, Outgoing};
use cueline_model::{AttemptId, StoreId, Timestamp};
use cueline_protocol::SigningKey;
use cueline_runtime::{Activator, Clock, Rush};
use cueline_store::{ClaimedRun, DispatchRequest, ErrorKind, NodeId, Store, StoreError};

use crate::counts::Counters;
use crate::lock::lock;
use crate::options::EngineOptions;
use crate::queues::Wanted;
use crate::registry::Registry;
use crate::wheel::Wheel;

/// A trigger on its way to the broker: marked `dispatching` in the store, to be published when it is due.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) id: AttemptId,
    pub(crate) mark: DispatchRequest,
    /// Whether the mark still stands is not known: it has to be set again before the trigger is published.
    pub(crate) in_doubt: bool,
    /// A try to publish it was not answered: it may be in its queue. From then on it is published until the broker has taken it, and never
    /// given back to be routed again.
    pub(crate) maybe_published: bool,
    /// Published later, its message has to be written anew: little would be left of the time in which an executor may take it.
    pub(crate) fresh_until: Timestamp,
    pub(crate) due_at: Timestamp,
    pub(crate) priority: u8,
    pub(crate) message: Outgoing,
}

/// Who is to be woken when something happened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wakers {
    pub(crate) claim: Activator,
    pub(crate) prepare: Activator,
    pub(crate) publish: Activator,
    pub(crate) cancel: Activator,
    pub(crate) node: Activator,
    pub(crate) queues: Activator,
}

pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: EngineOptions,
    pub(crate) key: Option<SigningKey>,
    /// Which store it is; read at the start.
    store_id: OnceLock<StoreId>,
    pub(crate) registry: Registry,
    /// Whose queues are to be declared.
    pub(crate) queues: Wanted,
    pub(crate) wheel: Mutex<Wheel<ClaimedRun>>,
    pub(crate) outbox: Mutex<Wheel<Ready>>,
    pub(crate) parked: Mutex<Vec<ClaimedRun>>,
    pub(crate) wakers: Wakers,
    pub(crate) counters: Counters,
    /// Results that this node has taken in.
    pub(crate) taken_in: AtomicU64,
    /// Triggers on their way out.
    pub(crate) rush: Rush,
    /// Runs that a due job made in the last claim, at least 1: how many jobs make a batch.
    pub(crate) runs_per_job: AtomicUsize,
    node: AtomicI64,
    /// A call that may have claimed or marked runs has failed: the store may hold claims of this node that it does not know of.
    in_doubt: AtomicBool,
    hears_since_ms: AtomicI64,
    heard_itself_ms: AtomicI64,
    wrote_beats_ms: AtomicI64,
    counts_since_ms: AtomicI64,
    /// Tells this process's voice from every other's. An identity, not a decision: nothing that a seed should reproduce depends on it.
    pub(crate) voice: u64,
    /// Database time minus this node's time, in milliseconds.
    offset_ms: AtomicI64,
}

const NO_NODE: i64 = -1;

impl Shared {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        broker: Broker,
        clock: Arc<dyn Clock>,
        options: EngineOptions,
        key: Option<SigningKey>,
    ) -> Arc<Self> {
        let registry = Registry::new(options.executor_dead_after_ms);
        Arc::new(Self {
            store,
            broker,
            clock,
            options,
            key,
            store_id: OnceLock::new(),
            registry,
            queues: Wanted::default(),
            wheel: Mutex::default(),
            outbox: Mutex::default(),
            parked: Mutex::default(),
            wakers: Wakers::default(),
            counters: Counters::default(),
            taken_in: AtomicU64::new(0),
            rush: Rush::default(),
            runs_per_job: AtomicUsize::new(1),
            node: AtomicI64::new(NO_NODE),
            in_doubt: AtomicBool::new(false),
            hears_since_ms: AtomicI64::new(i64::MIN),
            heard_itself_ms: AtomicI64::new(0),
            wrote_beats_ms: AtomicI64::new(0),
            counts_since_ms: AtomicI64::new(i64::MIN),
            voice: RandomState::new().hash_one(std::process::id()),
            offset_ms: AtomicI64::new(0),
        })
    }

    /// Which store it is.
    ///
    /// # Panics
    ///
    /// Before [`identify`](Self::identify), which comes before any stage is started.
    pub(crate) fn store_id(&self) -> StoreId {
        *self
            .store_id
            .get()
            .expect("the store was identified at the start")
    }

    /// Learns which store it is.
    pub(crate) async fn identify(&self) -> Result<(), StoreError> {
        let id = self.store.store_id().await?;
        // A second start of the same engine finds the same.
        let _ = self.store_id.set(id);
        Ok(())
    }

    /// Why a message about a run in the store `theirs` is not for this scheduler; `None` if it is.
    pub(crate) fn foreign(&self, theirs: StoreId) -> Option<String> {
        let ours = self.store_id();
        (theirs != ours).then(|| {
            format!(
                "it is about a run of another store, {theirs}, and these schedulers' store is {ours}"
            )
        })
    }

    /// Now, by the database's clock as far as this node knows it.
    pub(crate) fn now(&self) -> Timestamp {
        let offset = self.offset_ms.load(Ordering::Relaxed);
        Timestamp::from_millis(self.clock.now_ms().saturating_add(offset))
    }

    /// How long it is until then. To the microsecond: what counts from the last full millisecond waits for longer than it need.
    pub(crate) fn until(&self, at: Timestamp) -> Duration {
        let offset = self.offset_ms.load(Ordering::Relaxed);
        let at_us = at.as_millis().saturating_sub(offset).saturating_mul(1_000);
        let left = at_us.saturating_sub(self.clock.now_us());
        Duration::from_micros(u64::try_from(left).unwrap_or(0))
    }

    /// Takes over what the database's clock showed just now; the difference to this node's own clock.
    pub(crate) fn set_offset(&self, database: Timestamp) -> i64 {
        let offset = database.as_millis().saturating_sub(self.clock.now_ms());
        self.offset_ms.store(offset, Ordering::Relaxed);
        offset
    }

    /// This node; `None` until it is registered.
    pub(crate) fn node(&self) -> Option<NodeId> {
        match self.node.load(Ordering::Acquire) {
            NO_NODE => None,
            id => Some(NodeId(id)),
        }
    }

    pub(crate) fn set_node(&self, node: Option<NodeId>) {
        self.node
            .store(node.map_or(NO_NODE, |n| n.0), Ordering::Release);
    }

    /// From now on executors are heard: one that has not been heard before may be alive all the same.
    pub(crate) fn begin_to_hear(&self) {
        self.hears_since_ms
            .store(self.now().as_millis(), Ordering::Relaxed);
    }

    /// It has heard itself over the broker; when it had before.
    pub(crate) fn heard_itself(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_millis(
            self.heard_itself_ms
                .swap(now.as_millis(), Ordering::Relaxed),
        )
    }

    /// All signs of life that have come are written down; when that was so before.
    pub(crate) fn wrote_beats(&self, now: Timestamp) -> Timestamp {
        let before_ms = &self.wrote_beats_ms;
        Timestamp::from_millis(before_ms.swap(now.as_millis(), Ordering::Relaxed))
    }

    /// From now on the store knows of those who speak: their silence is counted anew.
    pub(crate) fn begin_to_count(&self) {
        self.counts_since_ms
            .store(self.now().as_millis(), Ordering::Relaxed);
    }

    /// Since when this node has heard executors and written down what it heard.
    pub(crate) fn counts_since(&self) -> Timestamp {
        let since = Timestamp::from_millis(self.counts_since_ms.load(Ordering::Relaxed));
        since.max(self.hears_since())
    }

    /// When all signs of life were last written down.
    pub(crate) fn last_wrote_beats(&self) -> Timestamp {
        Timestamp::from_millis(self.wrote_beats_ms.load(Ordering::Relaxed))
    }

    /// When it last heard itself.
    pub(crate) fn last_heard_itself(&self) -> Timestamp {
        Timestamp::from_millis(self.heard_itself_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn hears_since(&self) -> Timestamp {
        Timestamp::from_millis(self.hears_since_ms.load(Ordering::Relaxed))
    }

    /// Passes on what came of a call that claims or marks runs. When it may have done so and its answer was lost, the node claims anew:
    /// nobody else ever looks for the runs of a node that is alive.
    pub(crate) fn claimed<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(e) = &result
            && e.kind() == ErrorKind::Transient
        {
            self.doubt();
        }
        result
    }

    pub(crate) fn doubt(&self) {
        self.in_doubt.store(true, Ordering::Release);
        self.wakers.node.wake();
    }

    pub(crate) fn take_doubt(&self) -> bool {
        self.in_doubt.swap(false, Ordering::AcqRel)
    }

    /// How many runs this node holds in memory.
    pub(crate) fn held(&self) -> usize {
        lock(&self.wheel).len() + lock(&self.outbox).len() + lock(&self.parked).len()
    }

    /// Puts claimed runs on the wheel.
    pub(crate) fn schedule(&self, runs: Vec<ClaimedRun>) {
        if runs.is_empty() {
            return;
        }
        let mut wheel = lock(&self.wheel);
        for run in runs {
            wheel.insert(run.due_at, run.job.spec.priority, run.id, run);
        }
        drop(wheel);
        self.wakers.prepare.wake();
    }

    /// Forgets all claimed runs: the node's lease has run out, they may be another's.
    pub(crate) fn forget_all(&self) {
        lock(&self.wheel).clear();
        lock(&self.outbox).clear();
        lock(&self.parked).clear();
    }
}
