//! Failover: what was meant for an executor that has fallen silent goes to others (G10).
//!
//! By then the executor has stopped its own attempts: it fences itself before. What is still in its queue never got there, and is routed
//! again. What it had taken may have run: that is for the job's `on_lost` to decide. The (run, attempt) guard refuses whatever the executor
//! says about these attempts when it comes back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_broker::{Delivery, QueueId, Settlement};
use cueline_model::{AttemptId, ExecutorName, GroupName, OutcomeKind, Timestamp};
use cueline_protocol::{Trigger, decode};
use cueline_runtime::{Backoff, Duty, Next};
use cueline_store::{AttemptReport, ErrorKind, OutstandingAttempt, StoreError};

use crate::counts::add;
use crate::error::StageError;
use crate::finding::ended;
use crate::hearing::hears;
use crate::shared::Shared;

/// Looks after executors that have fallen silent.
pub(crate) struct Failover {
    shared: Arc<Shared>,
    /// Silent ones of which nothing is left, by when they were last heard: not looked at again for a while.
    done: HashMap<Owner, (Timestamp, Timestamp)>,
    /// What of others' results was before those of a silent one, at the most, when that was first looked at.
    backlogs: HashMap<Owner, Backlog>,
    /// Silent ones of which something was given to others, by when they were last heard: a failover counts once, however many turns it takes.
    counted: HashMap<Owner, Timestamp>,
}

/// What a turn took away from one executor.
#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    routed_again: usize,
    lost: usize,
}

/// How many results there were to be taken in, and how many this node had taken in by then.
#[derive(Debug, Clone, Copy)]
struct Backlog {
    depth: u64,
    taken_in: u64,
}

type Owner = (GroupName, ExecutorName);

/// Triggers taken from a queue at once, and attempts ended at once.
pub(crate) const BATCH: usize = 500;
/// At most so many batches of one executor in one turn; the next turn goes on.
const BATCHES: usize = 200;
/// About eight seconds: less than a delivery may be kept unsettled.
const PATIENT_TRIES: usize = 12;
/// How long an empty queue is waited at: what its dead consumer held may come back.
const QUEUE_WAIT: Duration = Duration::from_millis(50);
/// One of which nothing was left is looked at again after this.
const AGAIN_AFTER_MS: i64 = 30_000;
/// Results that were reported before the silence have this long to be taken in before the attempts count as lost.
const RESULTS_PATIENCE_MS: i64 = 60_000;

impl Duty for Failover {
    type Error = StageError;

    fn name(&self) -> &'static str {
        "failover"
    }

    async fn activate(&mut self) -> Result<Next, StageError> {
        self.turn().await?;
        let every = (self.shared.options.failover_after_ms / 10).clamp(100, 2_000);
        Ok(Next::After(Duration::from_millis(every)))
    }
}

impl Failover {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            done: HashMap::new(),
            backlogs: HashMap::new(),
            counted: HashMap::new(),
        }
    }

    /// How many attempts were taken away from silent executors.
    pub(crate) async fn turn(&mut self) -> Result<usize, StageError> {
        let shared = self.shared.clone();
        let executors = shared.store.executors().await?;
        let now = shared.now();
        let silent: BTreeMap<Owner, Timestamp> = executors
            .into_iter()
            .filter(|e| is_silent(&shared, e.last_heartbeat_at, now))
            .map(|e| {
                (
                    (e.heartbeat.executor.group, e.heartbeat.executor.name),
                    e.last_heartbeat_at,
                )
            })
            .collect();
        self.done.retain(|owner, _| silent.contains_key(owner));
        self.backlogs.retain(|owner, _| silent.contains_key(owner));
        self.counted.retain(|owner, _| silent.contains_key(owner));
        let due: BTreeMap<Owner, Timestamp> = silent
            .into_iter()
            .filter(|(owner, beat)| {
                !self
                    .done
                    .get(owner)
                    .is_some_and(|(known, at)| known == beat && now.since_ms(*at) < AGAIN_AFTER_MS)
            })
            .collect();
        let mut moved = 0;
        for (owner, last_heartbeat_at) in due {
            let backlogs = &mut self.backlogs;
            let mut taken = Moved::default();
            let nothing_left = fail_over(
                &shared,
                &owner,
                backlogs,
                last_heartbeat_at,
                now,
                &mut taken,
            )
            .await;
            // Whatever went wrong after it.
            moved += self.count(&owner, last_heartbeat_at, taken);
            if nothing_left? {
                self.done.insert(owner, (last_heartbeat_at, now));
            }
        }
        Ok(moved)
    }

    /// Counts and tells what was taken from an executor; how many attempts.
    fn count(&mut self, owner: &Owner, last_heartbeat_at: Timestamp, taken: Moved) -> usize {
        let Moved { routed_again, lost } = taken;
        let moved = routed_again + lost;
        if moved == 0 {
            return 0;
        }
        let (group, executor) = owner;
        tracing::warn!(%group, %executor, routed_again, lost, "failed over an executor that has fallen silent");
        let counters = &self.shared.counters;
        add(&counters.failed_over, moved);
        let before = self.counted.insert(owner.clone(), last_heartbeat_at);
        add(
            &counters.failovers,
            usize::from(before != Some(last_heartbeat_at)),
        );
        self.shared.wakers.claim.wake();
        moved
    }
}

/// Silent for longer than it may be, for all of which time this node could have heard it.
fn is_silent(shared: &Shared, last_heartbeat_at: Timestamp, now: Timestamp) -> bool {
    let since = last_heartbeat_at.max(shared.counts_since());
    let patience = i64::try_from(shared.options.failover_after_ms).unwrap_or(i64::MAX);
    now.since_ms(since) > patience && hears(shared, now)
}

/// Takes away what the executor was given; whether nothing is left.
async fn fail_over(
    shared: &Shared,
    owner: &Owner,
    backlogs: &mut HashMap<Owner, Backlog>,
    last_heartbeat_at: Timestamp,
    now: Timestamp,
    taken: &mut Moved,
) -> Result<bool, StageError> {
    let (group, name) = owner;
    let outstanding = outstanding_of(shared, owner).await?;
    let silence = format!(
        "executor {name} has been silent for {} s",
        now.since_ms(last_heartbeat_at) / 1_000
    );
    // `last_heartbeat_at` is from the beginning of the turn, and others came first: meanwhile it may have come back.
    let silent = || {
        is_silent(shared, last_heartbeat_at, shared.now()) && !shared.registry.is_alive(group, name)
    };
    let drained = &mut taken.routed_again;
    drain_while(
        shared,
        owner,
        OutcomeKind::Returned,
        &silence,
        silent,
        drained,
    )
    .await?;
    if !silent() {
        return Ok(false);
    }
    if outstanding.is_empty() {
        return Ok(true);
    }
    // What is handed out to it and not settled comes back to the queue first, and what it has reported counts.
    let waited_ms = now.since_ms(last_heartbeat_at.max(shared.counts_since()))
        - i64::try_from(shared.options.failover_after_ms).unwrap_or(i64::MAX);
    let quiet = is_quiet(shared, owner, backlogs, waited_ms).await?;
    // The broker may have been away while it was asked.
    if !quiet || !silent() {
        return Ok(false);
    }
    // What it was given since then is not what its silence was about.
    let (left, later): (Vec<_>, Vec<_>) = outstanding_of(shared, owner)
        .await?
        .into_iter()
        .partition(|o| o.queued_at <= now);
    for batch in left.chunks(BATCH) {
        if !silent() {
            return Ok(false);
        }
        let reports: Vec<AttemptReport> = batch
            .iter()
            .map(|o| ended(o.attempt, OutcomeKind::Lost, now, why_lost(o, &silence)))
            .collect();
        shared.store.ingest_reports(&reports).await?;
        taken.lost += batch.len();
    }
    Ok(later.is_empty())
}

fn why_lost(o: &OutstandingAttempt, silence: &str) -> String {
    if o.state == cueline_model::RunState::Running {
        format!("{silence}, and the attempt was running there")
    } else {
        format!(
            "{silence}; it had taken the trigger, and whether the attempt had started is not known"
        )
    }
}

/// Everything that the store says the executor was given.
pub(crate) async fn outstanding_of(
    shared: &Shared,
    (group, name): &Owner,
) -> Result<Vec<OutstandingAttempt>, StageError> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = shared.store.outstanding_attempts(0, after, 1_000).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.attempt.run);
        let full = page.len() >= 1_000;
        all.extend(
            page.into_iter()
                .filter(|o| o.executor.group == *group && o.executor.name == *name),
        );
        if !full || all.len() >= BATCH * BATCHES {
            break;
        }
    }
    Ok(all)
}

/// Takes triggers out of the executor's queue and ends their attempts as `kind`; how many.
///
/// One that was handed out before may have been started: it stays with what is unknown.
pub(crate) async fn drain(
    shared: &Shared,
    owner: &Owner,
    kind: OutcomeKind,
    why: &str,
) -> Result<usize, StageError> {
    let mut count = 0;
    drain_while(shared, owner, kind, why, || true, &mut count).await?;
    Ok(count)
}

/// The same, as long as the reason for it holds: a broker that was away answers late.
async fn drain_while(
    shared: &Shared,
    (group, name): &Owner,
    kind: OutcomeKind,
    why: &str,
    holds: impl Fn() -> bool,
    count: &mut usize,
) -> Result<(), StageError> {
    let queue = QueueId::Executor {
        group: group.to_string(),
        executor: name.to_string(),
    };
    for _ in 0..BATCHES {
        let batch = match shared.broker.fetch(&queue, BATCH, QUEUE_WAIT).await {
            Ok(batch) => batch,
            // The queue went with its broker: there is nothing in it.
            Err(e) if e.kind() == cueline_broker::ErrorKind::Permanent => {
                tracing::debug!(%queue, error = %e, "the queue of a silent executor cannot be read");
                break;
            }
            Err(e) => return Err(e.into()),
        };
        if batch.is_empty() {
            break;
        }
        if !holds() {
            give_back(shared, &queue, &batch, Duration::ZERO).await?;
            break;
        }
        end(shared, &queue, &batch, kind, why, count).await?;
    }
    Ok(())
}

async fn end(
    shared: &Shared,
    queue: &QueueId,
    batch: &[Delivery],
    kind: OutcomeKind,
    why: &str,
    count: &mut usize,
) -> Result<(), StageError> {
    let now = shared.now();
    let mut reports = Vec::with_capacity(batch.len());
    let mut settlements = Vec::with_capacity(batch.len());
    for delivery in batch {
        let settlement = match decode::<Trigger>(&delivery.payload) {
            Ok(Trigger { store, .. }) if shared.foreign(store).is_some() => {
                let why = shared.foreign(store).unwrap_or_default();
                Settlement::Dead(format!("failed to route the trigger again: {why}"))
            }
            Ok(trigger) => {
                let id = AttemptId {
                    run: trigger.run,
                    attempt: trigger.attempt,
                };
                if !delivery.redelivered || kind != OutcomeKind::Returned {
                    reports.push(ended(id, kind, now, why));
                }
                Settlement::Ack
            }
            Err(e) => Settlement::Dead(e.to_string()),
        };
        settlements.push((delivery.receipt, settlement));
    }
    if let Err(e) = write_down(shared, &reports).await {
        give_back(shared, queue, batch, Duration::from_millis(200)).await?;
        return Err(e.into());
    }
    *count += reports.len();
    Ok(shared.broker.settle(queue, &settlements).await?)
}

async fn give_back(
    shared: &Shared,
    queue: &QueueId,
    batch: &[Delivery],
    after: Duration,
) -> Result<(), StageError> {
    let again: Vec<_> = batch
        .iter()
        .map(|d| (d.receipt, Settlement::Retry(after)))
        .collect();
    Ok(shared.broker.settle(queue, &again).await?)
}

/// With some patience: given back to the queue, they would count as handed out before, and so as perhaps started.
async fn write_down(shared: &Shared, reports: &[AttemptReport]) -> Result<(), StoreError> {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    for _ in 0..PATIENT_TRIES {
        match shared.store.ingest_reports(reports).await {
            Err(e) if e.kind() == ErrorKind::Transient => {
                tracing::warn!(error = %e, "failed to write down a failover; trying again");
                tokio::time::sleep(backoff.next_wait()).await;
            }
            done => return done.map(drop),
        }
    }
    shared.store.ingest_reports(reports).await.map(drop)
}

/// Nothing is left in its queue, and what it has reported has been taken in, or has been waited for long enough.
async fn is_quiet(
    shared: &Shared,
    owner: &Owner,
    backlogs: &mut HashMap<Owner, Backlog>,
    waited_ms: i64,
) -> Result<bool, StageError> {
    let queue = QueueId::Executor {
        group: owner.0.to_string(),
        executor: owner.1.to_string(),
    };
    let stats = shared
        .broker
        .stats(&[queue.clone(), QueueId::Results])
        .await?;
    let depth = |of: &QueueId| {
        let found = stats.iter().find(|s| s.queue == *of);
        found.map_or(0, |s| s.ready + s.unsettled)
    };
    let (queued, results) = (depth(&queue), depth(&QueueId::Results));
    let taken_in = shared.taken_in.load(Ordering::Relaxed);
    let first = *backlogs.entry(owner.clone()).or_insert(Backlog {
        depth: results,
        taken_in,
    });
    // Under load the queue is never empty. But results come in order: who has taken in as many as there were has left none of those behind.
    let passed = taken_in - first.taken_in >= first.depth;
    Ok(queued == 0 && (results == 0 || passed || waited_ms > RESULTS_PATIENCE_MS))
}
