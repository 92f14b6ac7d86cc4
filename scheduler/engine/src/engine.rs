//! A running scheduler node: starts its tasks and finishes its work after the stop.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::Broker;
use cueline_protocol::SigningKeys;
use cueline_runtime::{Activator, Clock, Duty, Lifecycle, duty};
use cueline_store::Store;
use cueline_store::admin::SchedulerAdmin;

use crate::admin::Admin;
use crate::claims::NodeClaims;
use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::origin::origins::Origins;
use crate::pipeline::confirm::MAX_WAITING_BATCHES;
use crate::pipeline::ingest::Ingest;
use crate::queue_consumer::{self, QueueConsumer};
use crate::stages::Stages;

/// A running scheduler node. Its tasks end with the [`Lifecycle`] that it was started in.
pub struct Engine {
    store: Arc<dyn Store>,
    claims: Arc<NodeClaims>,
    ingest: Arc<Ingest>,
    admin: Arc<Admin>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("node", &self.claims.node())
            .finish_non_exhaustive()
    }
}

/// After the stop, results are ingested for at most this long. The next node ingests the rest.
const LAST_RESULTS: Duration = Duration::from_secs(5);

impl Engine {
    /// Registers the node and starts its tasks in `lifecycle`. With `keys`, all triggers are signed. Without, workers
    /// accept them only if they were told to. Messages of workers count if `origins` verifies them.
    ///
    /// # Errors
    ///
    /// When the store or the broker fails. In this case no task has been started.
    pub async fn start(
        store: Arc<dyn Store>,
        broker: Broker,
        clock: Arc<dyn Clock>,
        options: EngineOptions,
        keys: Option<SigningKeys>,
        origins: Origins,
        lifecycle: &Lifecycle,
    ) -> Result<Self, EngineError> {
        let max_confirmations = options.confirm_batch * MAX_WAITING_BATCHES;
        let ports = store.clone();
        let opening = Stages::open(
            ports,
            broker,
            clock,
            &options,
            keys,
            origins,
            max_confirmations,
        );
        let stages = opening.await?;
        let engine = Self {
            store,
            claims: stages.claims.clone(),
            ingest: stages.ingest.clone(),
            admin: stages.admin.clone(),
        };
        engine.spawn(stages, lifecycle);
        Ok(engine)
    }

    fn spawn(&self, stages: Stages, tasks: &Lifecycle) {
        let (admin, claims) = (&self.admin, &self.claims);
        let timer_only = &Activator::new();
        spawn_duty(tasks, stages.claim, &admin.claim);
        spawn_duty(tasks, stages.prepare, &claims.wake_prepare);
        spawn_duty(tasks, stages.publish, &claims.wake_publish);
        spawn_duty(tasks, stages.node_lease, &claims.wake_lease_renewal);
        spawn_duty(tasks, stages.failover, timer_only);
        spawn_duty(tasks, stages.forget_executors, timer_only);
        spawn_duty(tasks, stages.reconcile, timer_only);
        spawn_duty(tasks, stages.cancellations, &admin.cancellations);
        spawn_duty(tasks, stages.overdue, timer_only);
        spawn_duty(tasks, stages.retention, timer_only);
        spawn_duty(tasks, stages.time_zones, timer_only);
        spawn_duty(tasks, stages.window_plans, timer_only);
        spawn_duty(tasks, stages.backfills, timer_only);
        spawn_duty(tasks, stages.send_alarms, timer_only);
        spawn_duty(tasks, stages.check_alarms, timer_only);
        spawn_duty(tasks, stages.refresh_quotas, timer_only);
        spawn_duty(tasks, stages.refresh_outstanding, timer_only);
        let wake_pings = stages.pings.registry.wake_pings.clone();
        spawn_duty(tasks, stages.pings, &wake_pings);
        if let Some(refresh_keys) = stages.refresh_keys {
            let wanted = refresh_keys.keys.wanted.clone();
            spawn_duty(tasks, refresh_keys, &wanted);
        }
        spawn_consumer(tasks, "ingest", stages.ingest);
        spawn_consumer(tasks, "trigger requests", stages.trigger_requests);
        spawn_consumer(tasks, "dead letters", stages.dead_letters);
        let stop = || tasks.stop();
        tasks.spawn("confirm", stages.confirm.run(stop()));
        tasks.spawn(
            "heartbeats",
            stages.heartbeats.run(stages.heartbeat_inbox, stop()),
        );
        tasks.spawn("loopback", stages.loopback.run(stop()));
        tasks.spawn("name conflicts", stages.name_conflicts.run(stop()));
        tasks.spawn("queue provisioner", stages.queues.run(stop()));
        if let Some(enrolment) = stages.enrolment {
            tasks.spawn("enrolment", enrolment.run(stop()));
        }
    }

    /// Carries out requests of operators.
    pub fn admin(&self) -> Arc<dyn SchedulerAdmin> {
        self.admin.clone()
    }

    /// Call this after the tasks have stopped. Releases the node's lease first, so that another node, or the next
    /// start, takes over at once. Then ingests the results that executors have reported, for at most 5 s.
    ///
    /// # Errors
    ///
    /// When the lease could not be released. It then expires.
    pub async fn finish(&self) -> Result<(), EngineError> {
        let released = match self.claims.node() {
            Some(node) => self.store.release_lease(node).await,
            None => Ok(()),
        };
        self.ingest.finish(LAST_RESULTS).await;
        Ok(released?)
    }
}

/// Starts a task that activates `duty` when its timer fires and whenever `activator` is woken.
fn spawn_duty<D: Duty>(tasks: &Lifecycle, duty: D, activator: &Activator) {
    let name = duty.name();
    tasks.spawn(name, duty::run(duty, activator.clone(), tasks.stop()));
}

fn spawn_consumer<C: QueueConsumer>(tasks: &Lifecycle, name: &'static str, consumer: Arc<C>) {
    tasks.spawn(name, queue_consumer::run(consumer, tasks.stop()));
}
