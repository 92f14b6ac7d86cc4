//! An engine without tasks or timers, for tests that set the clock. A stage takes a turn only when it is called.

use std::sync::Arc;

use cueline_broker::Broker;
use cueline_protocol::SigningKeys;
use cueline_runtime::{Clock, Duty, Next};
use cueline_store::Store;
use cueline_store::admin::SchedulerAdmin;

use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::origin::origins::Origins;
use crate::queue_consumer::{QueueConsumer, consume_once};
use crate::stages::Stages;

/// The same stages as an [`Engine`](crate::Engine)'s, called one by one.
pub struct ManualEngine {
    stages: Stages,
}

impl std::fmt::Debug for ManualEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualEngine")
            .field("node", &self.stages.claims.node())
            .finish_non_exhaustive()
    }
}

/// More than any test has runs, because nothing receives confirmations while the publish stage has its turn.
const MAX_CONFIRMATIONS: usize = 1_000_000;

/// What a [`tick`](ManualEngine::tick) did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tick {
    /// Triggers that the broker confirmed.
    pub published: usize,
    /// Reports ingested.
    pub ingested: usize,
}

impl ManualEngine {
    /// An engine on these ports. Runs are prepared when they are due, not earlier, so that the effects of a tick depend
    /// on the clock alone.
    ///
    /// # Errors
    ///
    /// When the store or the broker fails.
    pub async fn new(
        store: Arc<dyn Store>,
        broker: Broker,
        clock: Arc<dyn Clock>,
        options: EngineOptions,
        keys: Option<SigningKeys>,
        origins: Origins,
    ) -> Result<Self, EngineError> {
        let options = EngineOptions {
            prepare_ahead_ms: 0,
            ..options
        };
        let opening = Stages::open(
            store,
            broker,
            clock,
            &options,
            keys,
            origins,
            MAX_CONFIRMATIONS,
        );
        let stages = opening.await?;
        Ok(Self { stages })
    }

    /// Gives every stage its turns, until nothing is left to do at this instant.
    ///
    /// # Errors
    ///
    /// The error of the first stage that fails. Later stages get no turn.
    pub async fn tick(&mut self) -> Result<Tick, EngineError> {
        let mut done = Tick::default();
        self.receive_heartbeats().await?;
        self.stages.node_lease.renew().await?;
        self.stages.heartbeats.expire();
        done.ingested += self.ingest().await?;
        self.claim().await?;
        self.prepare().await?;
        done.published += self.publish().await?;
        self.stages.overdue.activate().await?;
        self.stages.cancellations.activate().await?;
        Ok(done)
    }

    /// Stores the heartbeats that have arrived, declares the queues that they request, reports name conflicts, and enrols
    /// the keys that they announce.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn receive_heartbeats(&mut self) -> Result<(), EngineError> {
        let stages = &mut self.stages;
        let Stages {
            heartbeats,
            heartbeat_inbox,
            ..
        } = stages;
        heartbeats.store_waiting(heartbeat_inbox).await?;
        stages.queues.declare_all().await;
        stages.name_conflicts.send_all().await;
        if let Some(enrolment) = &stages.enrolment {
            enrolment.carry_out_all().await;
        }
        Ok(())
    }

    /// Creates the next runs of backfills.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn advance_backfills(&mut self) -> Result<(), EngineError> {
        self.stages.backfills.activate().await?;
        Ok(())
    }

    /// Checks the conditions of alarm rules.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn check_alarms(&mut self) -> Result<(), EngineError> {
        self.stages.check_alarms.activate().await?;
        Ok(())
    }

    /// Sends the messages of alarms that are due, and waits for their answers.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn send_alarms(&mut self) -> Result<(), EngineError> {
        self.stages.send_alarms.activate().await?;
        self.stages.send_alarms.finish_sending().await;
        Ok(())
    }

    /// Deletes a batch of what has passed its retention.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn delete_expired(&mut self) -> Result<(), EngineError> {
        self.stages.retention.activate().await?;
        Ok(())
    }

    /// Reads the keys of workers that have changed in the store.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn refresh_keys(&mut self) -> Result<(), EngineError> {
        if let Some(refresh_keys) = &mut self.stages.refresh_keys {
            refresh_keys.activate().await?;
        }
        Ok(())
    }

    /// Reads the quotas of namespaces, and counts their waiting runs.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn refresh_quotas(&mut self) -> Result<(), EngineError> {
        self.stages.refresh_quotas.activate().await?;
        Ok(())
    }

    /// Pretends that a loopback heartbeat was received.
    pub fn receive_loopback_heartbeat(&self) {
        self.stages.loopback.record();
    }

    /// Claims all jobs and runs that are due within the lookahead.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn claim(&mut self) -> Result<(), EngineError> {
        while self.stages.claim.activate().await? == Next::Now {}
        Ok(())
    }

    /// Routes and marks all runs that are due.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn prepare(&mut self) -> Result<(), EngineError> {
        while self.stages.prepare.activate().await? == Next::Now {}
        Ok(())
    }

    /// Asks the executors that routes depend on, and waits for their answers.
    pub async fn ping(&mut self) {
        let Ok(_) = self.stages.pings.activate().await;
        self.stages.pings.finish().await;
    }

    /// Reads which attempts of jobs with the route `busyover` have not ended.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn refresh_outstanding(&mut self) -> Result<(), EngineError> {
        self.stages.refresh_outstanding.activate().await?;
        Ok(())
    }

    /// Publishes all triggers that are due and confirms them. Returns the number of confirmations.
    ///
    /// # Errors
    ///
    /// When the store or the broker fails.
    pub async fn publish(&mut self) -> Result<usize, EngineError> {
        while self.stages.publish.activate().await? == Next::Now {}
        Ok(self.stages.confirm.write_received().await?)
    }

    /// Ingests all reports that have arrived. Returns their number.
    ///
    /// # Errors
    ///
    /// When the store or the broker fails.
    pub async fn ingest(&mut self) -> Result<usize, EngineError> {
        consume_all(&*self.stages.ingest).await
    }

    /// Fails over silent executors. Returns the number of attempts taken from them.
    ///
    /// # Errors
    ///
    /// When the store or the broker fails.
    pub async fn fail_over(&mut self) -> Result<usize, EngineError> {
        self.stages.failover.fail_over_all().await
    }

    /// Forgets executors that have been silent for long, and declares the queues of those that returned meanwhile.
    /// Returns the number of forgotten ones.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn forget_executors(&mut self) -> Result<usize, EngineError> {
        let forgotten = self.stages.forget_executors.forget().await?;
        self.stages.queues.declare_all().await;
        Ok(forgotten)
    }

    /// Carries out the trigger requests that have arrived over the broker. Returns the number of messages.
    ///
    /// # Errors
    ///
    /// When the broker fails.
    pub async fn carry_out_requests(&mut self) -> Result<usize, EngineError> {
        consume_once(&*self.stages.trigger_requests).await
    }

    /// Stores the dead letters that have arrived, unless it has to be decided later whether they end an attempt. Returns
    /// the number stored.
    ///
    /// # Errors
    ///
    /// When the store or the broker fails.
    pub async fn store_dead_letters(&mut self) -> Result<usize, EngineError> {
        consume_once(&*self.stages.dead_letters).await
    }

    /// Compares attempts queued more than `older_than_ms` ago with what executors hold. Returns the number of
    /// triggers that the next tick publishes again. Attempts that may have started end `lost` if a comparison missed
    /// them `older_than_ms` ago.
    ///
    /// # Errors
    ///
    /// When the store or the broker fails.
    pub async fn reconcile(&mut self, older_than_ms: u64) -> Result<usize, EngineError> {
        let reconcile = &mut self.stages.reconcile;
        reconcile.compare_older_than(older_than_ms).await
    }

    /// Carries out requests of operators.
    pub fn admin(&self) -> Arc<dyn SchedulerAdmin> {
        self.stages.admin.clone()
    }
}

async fn consume_all<C: QueueConsumer>(consumer: &C) -> Result<usize, EngineError> {
    let mut total = 0;
    loop {
        match consume_once(consumer).await? {
            0 => return Ok(total),
            count => total += count,
        }
    }
}
