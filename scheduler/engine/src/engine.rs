//! The engine as a whole: its options, its tasks, and how they stop.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Channel, QueueId};
use cueline_protocol::SigningKey;
use cueline_runtime::{Activator, Clock, Lifecycle, duty};
use cueline_store::Store;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::mpsc;

use crate::cancel::Cancel;
use crate::claim::Claim;
use crate::desk::Desk;
use crate::dispatch::{Prepare, Publish};
use crate::error::EngineError;
use crate::failover::Failover;
use crate::node::Node;
use crate::options::EngineOptions;
use crate::reap::Reap;
use crate::reconcile::Reconcile;
use crate::retention::Retention;
use crate::route::Router;
use crate::shared::Shared;
use crate::{confirm, dead, hearing, heartbeats, ingest, node, queues, requests};

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

/// What is not taken in within this time after the stop is left to the next node.
const LAST_RESULTS: Duration = Duration::from_secs(5);

pub(crate) async fn open(shared: &Shared) -> Result<(), EngineError> {
    for queue in [QueueId::Results, QueueId::Requests, QueueId::Dead] {
        shared.broker.declare(&queue).await?;
    }
    shared.identify().await?;
    node::keep(shared).await?;
    heartbeats::remember(shared).await?;
    Ok(())
}

/// Batches of confirmations that wait at the most; past it nothing is published. More than a crowd that is let pass before they are written down
/// brings: it would not pass.
const CONFIRM_BATCHES: usize = 16;

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
        let (confirmed, confirmations) =
            mpsc::channel(shared.options.confirm_batch * CONFIRM_BATCHES);
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
        let (a, s) = on(&wakers.node);
        lifecycle.spawn("node", duty::run(Node(shared.clone()), a, s));
        let (a, s) = on(&Activator::new());
        lifecycle.spawn("reap", duty::run(Reap(shared.clone()), a, s));
        let (a, s) = on(&Activator::new());
        lifecycle.spawn("reconcile", duty::run(Reconcile::new(shared.clone()), a, s));
        let (a, s) = on(&Activator::new());
        lifecycle.spawn("failover", duty::run(Failover::new(shared.clone()), a, s));
        let (a, s) = on(&Activator::new());
        lifecycle.spawn("retention", duty::run(Retention(shared.clone()), a, s));
        lifecycle.spawn(
            "confirm",
            confirm::run(shared.clone(), confirmations, stop.clone()),
        );
        lifecycle.spawn("ingest", ingest::run(shared.clone(), stop.clone()));
        lifecycle.spawn("requests", requests::run(shared.clone(), stop.clone()));
        lifecycle.spawn("dead letters", dead::run(shared.clone(), stop.clone()));
        lifecycle.spawn("queues", queues::run(shared.clone(), stop.clone()));
        lifecycle.spawn("hearing", hearing::run(shared.clone(), stop.clone()));
        lifecycle.spawn(
            "heartbeats",
            heartbeats::listen(shared.clone(), heartbeats, stop),
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

    /// For what people do with queues and dead letters.
    pub fn desk(&self) -> Desk {
        Desk(self.shared.clone())
    }

    /// After the tasks have stopped: gives up the lease, so that another node (or the next start) takes over at once, and takes in what executors
    /// have still reported, for at most 5 s.
    pub async fn finish(&self) -> Result<(), EngineError> {
        let released = match self.shared.node() {
            Some(node) => self.shared.store.release_lease(node).await,
            None => Ok(()),
        };
        ingest::finish(&self.shared, LAST_RESULTS).await;
        Ok(released?)
    }
}
