//! Dispatch: route, mark, publish.
//!
//! Two stages, so that nothing slow lies between a run's due time and its trigger's publication. *Prepare* takes runs off the
//! wheel a little ahead of time, chooses executors, marks the runs `dispatching` in the store (which fails for whatever was cancelled, paused or
//! edited: the mark is the fence of G3) and writes the triggers. *Publish* sends them when they are due.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, Outgoing, QueueId, Refusal};
use cueline_model::{ExecutorName, JobId, Outcome, OutcomeKind, Timestamp};
use cueline_protocol::{JobPart, Trigger, VERSION, encode};
use cueline_runtime::{Duty, Next};
use cueline_store::{AttemptId, DispatchMark, Report, ReportBody, StoreError, WaitingRun};
use tokio::sync::mpsc;

use crate::route::Router;
use crate::shared::{Ready, Shared, lock};

/// What can go wrong on the way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DispatchError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Job parts are kept for so many jobs; past that all are made anew.
const MAX_PARTS: usize = 50_000;

/// Takes runs off the wheel and makes their triggers ready.
pub(crate) struct Prepare {
    shared: Arc<Shared>,
    router: Router,
    parts: HashMap<JobId, Arc<JobPart>>,
}

impl Duty for Prepare {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "prepare"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        self.prepare().await
    }
}

impl Prepare {
    pub(crate) fn new(shared: Arc<Shared>, router: Router) -> Self {
        Self {
            shared,
            router,
            parts: HashMap::new(),
        }
    }

    pub(crate) async fn prepare(&mut self) -> Result<Next, StoreError> {
        let shared = self.shared.clone();
        let Some(node) = shared.node() else {
            return Ok(Next::After(Duration::from_millis(20)));
        };
        let ahead = shared.now().plus_ms(shared.options.prepare_ahead_ms);
        let runs = lock(&shared.wheel).pop_due(ahead, shared.options.dispatch_batch);
        if runs.is_empty() {
            return Ok(Next::After(self.until_next()));
        }
        let (routed, homeless) = self.route(runs);
        self.park(homeless).await?;
        let marks: Vec<DispatchMark> = routed.iter().map(mark).collect();
        let taken = match shared.store.begin_dispatch(node, &marks).await {
            Ok(taken) => taken,
            Err(e) => {
                shared.schedule(routed.into_iter().map(|(run, _)| run).collect());
                return Err(e);
            }
        };
        let mut taken = taken.into_iter().peekable();
        let mut ready = Vec::with_capacity(routed.len());
        for (run, executor) in routed {
            let id = AttemptId {
                run: run.id,
                attempt: run.attempt,
            };
            if taken.next_if_eq(&id).is_some() {
                ready.push(self.ready(&run, executor));
            } else {
                tracing::debug!(run = %run.id, "run was cancelled, paused or edited before its trigger went out");
            }
        }
        let mut outbox = lock(&shared.outbox);
        for item in ready {
            outbox.insert(item.due_at, item.priority, item.id.run, item);
        }
        drop(outbox);
        shared.wakers.publish.wake();
        Ok(Next::Now)
    }

    fn until_next(&self) -> Duration {
        let shared = &self.shared;
        let next = lock(&shared.wheel).next_due();
        next.map_or(Duration::from_secs(1), |due| {
            let wait = due.since_ms(shared.now()) - shared.options.prepare_ahead_ms.cast_signed();
            // A little later than need be, so that what is due one after the other is marked together; there is time until it is due.
            Duration::from_millis(
                u64::try_from(wait).unwrap_or(0) + shared.options.prepare_ahead_ms / 2,
            )
        })
    }

    fn route(
        &mut self,
        runs: Vec<WaitingRun>,
    ) -> (Vec<(WaitingRun, ExecutorName)>, Vec<WaitingRun>) {
        let mut routed = Vec::with_capacity(runs.len());
        let mut homeless = Vec::new();
        for run in runs {
            let chosen = if run.published_maybe {
                // It may be in that executor's queue already: anybody else would run it a second time.
                run.executor.clone()
            } else {
                let spec = &run.job.spec;
                let candidates = self
                    .shared
                    .registry
                    .candidates(&spec.group, &spec.handler.capability());
                self.router.choose(&run, &candidates)
            };
            match chosen {
                Some(executor) => routed.push((run, executor)),
                None => homeless.push(run),
            }
        }
        (routed, homeless)
    }

    /// Runs without a live executor wait in memory until one appears, past the bound in the store, and end `unroutable` after their
    /// dispatch deadline.
    async fn park(&self, homeless: Vec<WaitingRun>) -> Result<(), StoreError> {
        if homeless.is_empty() {
            return Ok(());
        }
        let mut homeless = homeless.into_iter();
        {
            let mut parked = lock(&self.shared.parked);
            let room = self.shared.options.max_parked.saturating_sub(parked.len());
            parked.extend(homeless.by_ref().take(room));
        }
        let rest: Vec<AttemptId> = homeless
            .map(|run| AttemptId {
                run: run.id,
                attempt: run.attempt,
            })
            .collect();
        let Some(node) = self.shared.node().filter(|_| !rest.is_empty()) else {
            return Ok(());
        };
        let later = self.shared.now().plus_ms(PARKED_IN_STORE_MS);
        self.shared
            .store
            .release_runs(node, &rest, Some(later))
            .await
    }

    fn ready(&mut self, run: &WaitingRun, executor: ExecutorName) -> Ready {
        let part = self.part(run);
        let mut trigger = Trigger {
            v: VERSION,
            run: run.id,
            attempt: run.attempt,
            executor,
            kind: run.kind,
            fire_at: run.fire_at,
            shard: run.shard.clone(),
            params: run.params.clone().or_else(|| run.job.spec.params.clone()),
            job: part,
            signature: None,
        };
        if let Some(key) = &self.shared.key
            && trigger.job.handler.needs_signature()
        {
            key.sign(&mut trigger);
        }
        Ready {
            id: AttemptId {
                run: run.id,
                attempt: run.attempt,
            },
            due_at: run.due_at,
            priority: run.job.spec.priority,
            message: Outgoing {
                queue: QueueId::Executor {
                    group: run.job.spec.group.to_string(),
                    executor: trigger.executor.to_string(),
                },
                topic: run.job.spec.name.to_string(),
                id: format!("{}:{}", run.id, run.attempt),
                payload: Bytes::from(encode(&trigger)),
            },
        }
    }

    fn part(&mut self, run: &WaitingRun) -> Arc<JobPart> {
        let job = &run.job;
        if let Some(part) = self.parts.get(&job.id)
            && part.version == job.version
        {
            return part.clone();
        }
        if self.parts.len() >= MAX_PARTS {
            self.parts.clear();
        }
        let spec = &job.spec;
        let part = Arc::new(JobPart {
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
            priority: spec.priority,
            lane_per_shard: matches!(spec.route, cueline_model::Route::Sharded(_)),
        });
        self.parts.insert(job.id, part.clone());
        part
    }
}

/// So long a run that found no room among the parked ones is left in the store before it is looked at again.
const PARKED_IN_STORE_MS: u64 = 10_000;

fn mark((run, executor): &(WaitingRun, ExecutorName)) -> DispatchMark {
    DispatchMark {
        run: run.id,
        attempt: run.attempt,
        version: run.job.version,
        executor: executor.clone(),
    }
}

/// Ends runs that have been without a live executor for too long.
pub(crate) async fn give_up_on_parked(shared: &Shared) -> Result<(), StoreError> {
    let now = shared.now();
    let expired: Vec<WaitingRun> = {
        let mut parked = lock(&shared.parked);
        parked
            .extract_if(.., |run| {
                run.due_at
                    .plus_ms(run.job.spec.dispatch_deadline.as_millis())
                    <= now
            })
            .collect()
    };
    if expired.is_empty() {
        return Ok(());
    }
    let reports: Vec<Report> = expired
        .iter()
        .map(|run| {
            let spec = &run.job.spec;
            ended(
                run.id,
                run.attempt,
                OutcomeKind::Unroutable,
                now,
                format!(
                    "no live executor of group {} that can run {} within {}",
                    spec.group,
                    spec.handler.capability(),
                    spec.dispatch_deadline
                ),
            )
        })
        .collect();
    if let Err(e) = shared.store.ingest(&reports).await {
        lock(&shared.parked).extend(expired);
        return Err(e);
    }
    Ok(())
}

pub(crate) fn ended(
    run: cueline_model::RunId,
    attempt: u32,
    kind: OutcomeKind,
    at: Timestamp,
    message: String,
) -> Report {
    Report {
        id: AttemptId { run, attempt },
        executor: None,
        body: ReportBody::Ended(Outcome::new(kind, at).because(message)),
    }
}

/// Publishes triggers that are due.
pub(crate) struct Publish {
    shared: Arc<Shared>,
    confirmed: mpsc::Sender<AttemptId>,
}

impl Duty for Publish {
    type Error = DispatchError;

    fn name(&self) -> &'static str {
        "publish"
    }

    async fn activate(&mut self) -> Result<Next, DispatchError> {
        self.publish().await
    }
}

impl Publish {
    pub(crate) fn new(shared: Arc<Shared>, confirmed: mpsc::Sender<AttemptId>) -> Self {
        Self { shared, confirmed }
    }

    pub(crate) async fn publish(&self) -> Result<Next, DispatchError> {
        let shared = &self.shared;
        let now = shared.now();
        let (due, next) = {
            let mut outbox = lock(&shared.outbox);
            (
                outbox.pop_due(now, shared.options.publish_batch),
                outbox.next_due(),
            )
        };
        if due.is_empty() {
            let wait = next.map_or(1_000, |due| u64::try_from(due.since_ms(now)).unwrap_or(0));
            return Ok(Next::After(Duration::from_millis(wait)));
        }
        let messages: Vec<Outgoing> = due.iter().map(|r| r.message.clone()).collect();
        let answers = match shared.broker.publish(&messages).await {
            Ok(answers) => answers,
            Err(e) => {
                // They stay `dispatching` and go out on the next turn: the executor drops what it knows.
                let mut outbox = lock(&shared.outbox);
                for item in due {
                    outbox.insert(item.due_at, item.priority, item.id.run, item);
                }
                return Err(e.into());
            }
        };
        let mut refused = Vec::new();
        for (item, answer) in due.iter().zip(answers) {
            match answer {
                Ok(()) => {
                    if self.confirmed.send(item.id).await.is_err() {
                        tracing::warn!(
                            "the confirm stage has ended; what it missed is found again by the next node"
                        );
                    }
                }
                Err(refusal) => refused.push((item.id, refusal)),
            }
        }
        self.refused(refused).await?;
        Ok(Next::Now)
    }

    async fn refused(&self, refused: Vec<(AttemptId, Refusal)>) -> Result<(), StoreError> {
        let Some(node) = self.shared.node().filter(|_| !refused.is_empty()) else {
            return Ok(());
        };
        let now = self.shared.now();
        let (mut never, mut later) = (Vec::new(), Vec::new());
        for (id, refusal) in refused {
            tracing::warn!(run = %id.run, error = %refusal, "the broker refused a trigger");
            match refusal {
                Refusal::TooLarge { .. } => never.push(ended(
                    id.run,
                    id.attempt,
                    OutcomeKind::Failed,
                    now,
                    format!("failed to publish the trigger: {refusal}"),
                )),
                Refusal::Full { .. } | Refusal::NoQueue(_) => later.push(id),
            }
        }
        if !later.is_empty() {
            self.shared
                .store
                .release_runs(node, &later, Some(now.plus_ms(1_000)))
                .await?;
        }
        if !never.is_empty() {
            self.shared.store.ingest(&never).await?;
        }
        Ok(())
    }
}
