//! Claim: due jobs become runs, and runs that nobody works on are taken over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_model::{MisfirePolicy, OutcomeKind, RunKind, Timestamp};
use cueline_runtime::{Duty, Next};
use cueline_store::{ClaimedRun, FireDueRequest, StoreError};

use crate::finding::ended;
use crate::plan::SchedulePlanner;
use crate::shared::Shared;

/// Fires what is due within the lookahead and puts it on the wheel.
pub(crate) struct Claim(pub(crate) Arc<Shared>);

impl Duty for Claim {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "claim"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        claim(&self.0).await
    }
}

pub(crate) async fn claim(shared: &Shared) -> Result<Next, StoreError> {
    let turn = take(shared).await;
    shared.claimed(turn)
}

async fn take(shared: &Shared) -> Result<Next, StoreError> {
    let options = &shared.options;
    let poll = Duration::from_millis(options.poll_ms);
    let Some(node) = shared.node() else {
        return Ok(Next::After(Duration::from_millis(20)));
    };
    let room = options.max_held.saturating_sub(shared.held());
    if room < options.claim_batch {
        // Memory is full of claimed runs: what is not claimed waits in the database, which loses nothing.
        return Ok(Next::After(Duration::from_millis(20)));
    }
    let waiting = shared
        .store
        .claim_waiting(node, options.lookahead_ms, options.claim_batch)
        .await?;
    let waiting_more = waiting.len() >= options.claim_batch;
    let (late, waiting) = waiting
        .into_iter()
        .partition(|run| is_misfire(run, shared.now()));
    // First: whatever goes wrong from here on, they are this node's, and nobody else looks for them.
    shared.schedule(waiting);
    skip(shared, late).await?;

    let planner = SchedulePlanner {
        lookahead_ms: options.lookahead_ms,
        ..SchedulePlanner::default()
    };
    // A job that fires often makes many runs within the lookahead: then fewer jobs make a batch, so that the store is never held up for long.
    let runs_per_job = shared.runs_per_job.load(Ordering::Relaxed);
    let limit = (options.claim_batch / runs_per_job).max(1);
    let request = FireDueRequest {
        node,
        horizon_ms: options.lookahead_ms,
        limit,
    };
    let fired = shared.store.fire_due(request, &planner).await?;
    let ratio = fired.runs.len().div_ceil(fired.due_jobs.max(1)).max(1);
    shared.runs_per_job.store(ratio, Ordering::Relaxed);
    shared.schedule(fired.runs);
    if waiting_more || fired.limit_reached {
        return Ok(Next::Now);
    }
    // Half the lookahead: whatever becomes due meanwhile is still found ahead of its time.
    Ok(Next::After(
        poll.min(Duration::from_millis(options.lookahead_ms / 2)),
    ))
}

/// Written ahead of its fire time by a node that died, found by this one too late for a job that would rather not. What waited for an
/// executor is not late in this sense: its due time was put off.
fn is_misfire(run: &ClaimedRun, now: Timestamp) -> bool {
    let spec = &run.job.spec;
    run.kind == RunKind::Schedule
        && run.attempt == 1
        && !run.maybe_published
        && spec.misfire.policy == MisfirePolicy::Skip
        && run.due_at == spec.due_at(run.job.id, run.fire_at)
        && run.due_at.plus_ms(spec.misfire.grace.as_millis()) < now
}

async fn skip(shared: &Shared, late: Vec<ClaimedRun>) -> Result<(), StoreError> {
    if late.is_empty() {
        return Ok(());
    }
    let now = shared.now();
    let reports: Vec<_> = late
        .iter()
        .map(|run| {
            let message = format!(
                "misfire policy skip: found {} ms late",
                now.since_ms(run.due_at)
            );
            ended(run.attempt_id(), OutcomeKind::Skipped, now, message)
        })
        .collect();
    let written = shared.store.ingest_reports(&reports).await;
    if written.is_err() {
        // They are claimed, and neither skipped nor on the wheel, whatever it was that failed: a new claim finds them.
        shared.doubt();
    }
    written.map(drop)
}
