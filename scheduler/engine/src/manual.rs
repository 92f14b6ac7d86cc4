//! An engine that moves only when told to: for tests that set the clock.

use cueline_model::AttemptId;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Channel, Listener};
use cueline_protocol::SigningKey;
use cueline_runtime::{Clock, Next};
use cueline_store::Store;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::mpsc;

use crate::desk::Desk;
use crate::dispatch::{Prepare, Publish};
use crate::engine::open;
use crate::error::EngineError;
use crate::failover::Failover;
use crate::options::EngineOptions;
use crate::route::Router;
use crate::shared::Shared;
use crate::{
    cancel, claim, dead, hearing, heartbeats, ingest, node, queues, reap, reconcile, requests,
};

/// The stages of an engine, one turn of each at a call.
pub struct ManualEngine {
    shared: Arc<Shared>,
    prepare: Prepare,
    publish: Publish,
    failover: Failover,
    confirmations: mpsc::Receiver<AttemptId>,
    /// Confirmed by the broker, and not yet written down.
    unwritten: Vec<AttemptId>,
    heartbeats: Listener,
}

impl std::fmt::Debug for ManualEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualEngine")
            .field("node", &self.shared.node())
            .finish_non_exhaustive()
    }
}

const QUIET_TURNS: usize = 4;

/// What a tick did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tick {
    /// Triggers that the broker confirmed.
    pub published: usize,
    /// Reports taken in.
    pub ingested: usize,
}

impl ManualEngine {
    /// An engine on these ports; the clock is the test's. Looks ahead by nothing, so that what a tick does follows from the clock alone.
    pub async fn new(
        store: Arc<dyn Store>,
        broker: Broker,
        clock: Arc<dyn Clock>,
        options: EngineOptions,
        key: Option<SigningKey>,
    ) -> Result<Self, EngineError> {
        let options = EngineOptions {
            prepare_ahead_ms: 0,
            ..options
        };
        let shared = Shared::new(store, broker, clock, options, key);
        let heartbeats = shared.broker.listen(&Channel::Heartbeats).await?;
        open(&shared).await?;
        let (confirmed, confirmations) = mpsc::channel(1_000_000);
        let router = Router::new(StdRng::seed_from_u64(shared.options.seed));
        Ok(Self {
            prepare: Prepare::new(shared.clone(), router),
            publish: Publish::new(shared.clone(), confirmed),
            failover: Failover::new(shared.clone()),
            shared,
            confirmations,
            unwritten: Vec::new(),
            heartbeats,
        })
    }

    /// One turn of every stage, as often as there is something to do at this instant.
    pub async fn tick(&mut self) -> Result<Tick, EngineError> {
        let mut done = Tick::default();
        self.hear().await?;
        node::keep(&self.shared).await?;
        self.shared.registry.expire(self.shared.now());
        done.ingested += self.take_in().await?;
        self.claim().await?;
        self.prepare().await?;
        done.published += self.publish().await?;
        reap::reap(&self.shared).await?;
        cancel::pass_on(&self.shared).await?;
        Ok(done)
    }

    /// Takes note of heartbeats that have arrived, and declares the queues that this calls for.
    pub async fn hear(&mut self) -> Result<(), EngineError> {
        let mut beats = Vec::new();
        let mut quiet = 0;
        // A driver may pass announcements on by a task of its own: it is quiet when that has had its turns.
        while quiet < QUIET_TURNS {
            match self.heartbeats.try_recv() {
                Ok(beat) => {
                    beats.push(beat);
                    quiet = 0;
                }
                Err(_) => quiet += 1,
            }
            tokio::task::yield_now().await;
        }
        heartbeats::hear(&self.shared, &beats).await?;
        queues::declare_all(&self.shared).await;
        hearing::caught_up(&self.shared);
        Ok(())
    }

    /// Claims all that is due within the lookahead.
    pub async fn claim(&mut self) -> Result<(), EngineError> {
        while claim::claim(&self.shared).await? == Next::Now {}
        Ok(())
    }

    /// Routes and marks all that is due now.
    pub async fn prepare(&mut self) -> Result<(), EngineError> {
        while self.prepare.prepare().await? == Next::Now {}
        Ok(())
    }

    /// Publishes all that is due now and writes down what was confirmed; how many.
    pub async fn publish(&mut self) -> Result<usize, EngineError> {
        while self.publish.publish().await? == Next::Now {}
        while let Ok(id) = self.confirmations.try_recv() {
            self.unwritten.push(id);
        }
        self.shared.store.confirm_dispatch(&self.unwritten).await?;
        Ok(std::mem::take(&mut self.unwritten).len())
    }

    /// Takes in all reports that have arrived; how many.
    pub async fn take_in(&mut self) -> Result<usize, EngineError> {
        let mut all = 0;
        loop {
            match ingest::once(&self.shared, Duration::ZERO).await? {
                0 => return Ok(all),
                n => all += n,
            }
        }
    }

    /// Hears itself over the broker, as it does each second.
    pub fn hear_itself(&self) {
        hearing::hear(&self.shared);
    }

    /// Takes away what silent executors were given; how many attempts.
    pub async fn fail_over(&mut self) -> Result<usize, EngineError> {
        Ok(self.failover.turn().await?)
    }

    /// Carries out the trigger requests that have come over the broker; how many messages.
    pub async fn take_requests(&mut self) -> Result<usize, EngineError> {
        Ok(requests::once(&self.shared).await?)
    }

    /// Keeps the dead letters that have come; how many messages.
    pub async fn take_dead(&mut self) -> Result<usize, EngineError> {
        Ok(dead::once(&self.shared, Duration::ZERO).await?)
    }

    /// For what people do with queues and dead letters.
    pub fn desk(&self) -> Desk {
        Desk(self.shared.clone())
    }

    /// Compares with executors what was queued more than `older_than_ms` ago; how many triggers go out again with the next tick.
    pub async fn reconcile(&mut self, older_than_ms: u64) -> Result<usize, EngineError> {
        let outstanding = self
            .shared
            .store
            .outstanding_attempts(older_than_ms, None, 1_000)
            .await?;
        Ok(reconcile::compare(&self.shared, outstanding).await?)
    }
}
