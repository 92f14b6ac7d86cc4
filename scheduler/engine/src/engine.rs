//! The engine as a whole: its options, its tasks, and how they stop.

use std::sync::Arc;

use cueline_broker::{Broker, BrokerError, Channel, QueueId};
use cueline_protocol::SigningKey;
use cueline_runtime::{Activator, Clock, Lifecycle, duty};
use cueline_store::{Store, StoreError};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::mpsc;

use crate::cancel::Cancel;
use crate::claim::Claim;
use crate::dispatch::{Prepare, Publish};
use crate::node::Node;
use crate::reap::Reap;
use crate::reconcile::Reconcile;
use crate::retention::Retention;
use crate::route::Router;
use crate::shared::Shared;
use crate::{confirm, ingest, node, registry};

/// How an engine works. The defaults suit one machine as well as a cluster.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The node's name, for people.
    pub node_name: String,
    /// Seed of the random choices (`route = "random"`).
    pub seed: u64,
    /// Jobs and runs are claimed so long before they are due; 1,500 ms.
    pub lookahead_ms: u64,
    /// The store is asked at least this often; 500 ms.
    pub poll_ms: u64,
    /// Jobs, or runs, claimed in one transaction; 2,000.
    pub claim_batch: usize,
    /// Claimed runs held in memory; past that nothing more is claimed until some have gone out. 100,000.
    pub max_held: usize,
    /// Runs without a live executor held in memory; past that they are given back to the store for 10 s. 10,000.
    pub max_parked: usize,
    /// Runs are routed and marked so long before they are due; 25 ms. A pause, edit or delete waits for at most this and one publish.
    pub prepare_ahead_ms: u64,
    /// Runs routed and marked in one transaction; 1,000.
    pub dispatch_batch: usize,
    /// Triggers published at once; 250, so that of many due at the same instant the first start while the last are published.
    pub publish_batch: usize,
    /// Confirmations written at once; 2,000.
    pub confirm_batch: usize,
    /// Results taken in at once; 2,000.
    pub ingest_batch: usize,
    /// The node's lease; 15 s. Another node takes over what a dead one had claimed after this.
    pub lease_ms: u64,
    /// An executor that has been silent for this long gets nothing more; 15 s.
    pub executor_dead_after_ms: u64,
    /// An attempt that was queued this long ago is compared with what its executor holds; 30 s.
    pub reconcile_after_ms: u64,
    /// A run that its executor should have stopped is given up this long after its timeout and kill grace; 60 s.
    pub overdue_slack_ms: u64,
    /// Ended runs are kept for this long; 7 days.
    pub retention_ms: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            node_name: "scheduler".to_owned(),
            seed: 0,
            lookahead_ms: 1_500,
            poll_ms: 500,
            claim_batch: 2_000,
            max_held: 100_000,
            max_parked: 10_000,
            prepare_ahead_ms: 25,
            dispatch_batch: 1_000,
            publish_batch: 250,
            confirm_batch: 2_000,
            ingest_batch: 2_000,
            lease_ms: 15_000,
            executor_dead_after_ms: 15_000,
            reconcile_after_ms: 30_000,
            overdue_slack_ms: 60_000,
            retention_ms: 7 * 24 * 3_600_000,
        }
    }
}

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store.
    #[error("failed to start the engine: {0}")]
    Store(#[from] StoreError),
    /// The broker.
    #[error("failed to start the engine: {0}")]
    Broker(#[from] BrokerError),
}

/// Wakes the engine when somebody else has written intent to the store.
#[derive(Debug, Clone)]
pub struct Nudges {
    /// Something may be due.
    pub due: Activator,
    /// A cancellation was asked for.
    pub cancel: Activator,
}

/// A running scheduler node.
pub struct Engine {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("node", &self.shared.node())
            .finish_non_exhaustive()
    }
}

pub(crate) async fn open(shared: &Shared) -> Result<(), EngineError> {
    for queue in [QueueId::Results, QueueId::Requests, QueueId::Dead] {
        shared.broker.declare(&queue).await?;
    }
    node::keep(shared).await?;
    Ok(())
}

impl Engine {
    /// Starts the node's tasks in `lifecycle`. Triggers are signed with `key` if there is one.
    pub async fn start(
        store: Arc<dyn Store>,
        broker: Broker,
        clock: Arc<dyn Clock>,
        options: EngineOptions,
        key: Option<SigningKey>,
        lifecycle: &Lifecycle,
    ) -> Result<Self, EngineError> {
        let shared = Shared::new(store, broker, clock, options, key);
        let heartbeats = shared.broker.listen(&Channel::Heartbeats).await?;
        open(&shared).await?;
        let stop = lifecycle.stop();
        let (confirmed, confirmations) = mpsc::channel(shared.options.confirm_batch * 4);
        let router = Router::new(StdRng::seed_from_u64(shared.options.seed));
        let wakers = shared.wakers.clone();

        let on = |activator: &Activator| (activator.clone(), stop.clone());
        let (a, s) = on(&wakers.claim);
        lifecycle.spawn("claim", duty::run(Claim(shared.clone()), a, s));
        let (a, s) = on(&wakers.prepare);
        lifecycle.spawn(
            "prepare",
            duty::run(Prepare::new(shared.clone(), router), a, s),
        );
        let (a, s) = on(&wakers.publish);
        lifecycle.spawn(
            "publish",
            duty::run(Publish::new(shared.clone(), confirmed), a, s),
        );
        let (a, s) = on(&wakers.cancel);
        lifecycle.spawn("cancel", duty::run(Cancel(shared.clone()), a, s));
        let (a, s) = on(&Activator::new());
        lifecycle.spawn("node", duty::run(Node(shared.clone()), a, s));
        let (a, s) = on(&Activator::new());
        lifecycle.spawn("reap", duty::run(Reap(shared.clone()), a, s));
        let (a, s) = on(&Activator::new());
        lifecycle.spawn("reconcile", duty::run(Reconcile::new(shared.clone()), a, s));
        let (a, s) = on(&Activator::new());
        lifecycle.spawn("retention", duty::run(Retention(shared.clone()), a, s));
        lifecycle.spawn(
            "confirm",
            confirm::run(shared.clone(), confirmations, stop.clone()),
        );
        lifecycle.spawn("ingest", ingest::run(shared.clone(), stop.clone()));
        lifecycle.spawn(
            "registry",
            registry::listen(shared.clone(), heartbeats, stop),
        );
        Ok(Self { shared })
    }

    /// What to wake after writing to the store.
    pub fn nudges(&self) -> Nudges {
        Nudges {
            due: self.shared.wakers.claim.clone(),
            cancel: self.shared.wakers.cancel.clone(),
        }
    }

    /// After the tasks have stopped: takes in what executors have still reported, and gives up the lease, so that another node (or the next
    /// start) takes over at once.
    pub async fn finish(&self) -> Result<(), EngineError> {
        while ingest::once(&self.shared, std::time::Duration::ZERO)
            .await
            .is_ok_and(|n| n > 0)
        {}
        if let Some(node) = self.shared.node() {
            self.shared.store.release_node(node).await?;
        }
        Ok(())
    }
}
