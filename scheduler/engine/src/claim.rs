//! Claim: due jobs become runs, and runs that nobody works on are taken over.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Duty, Next};
use cueline_store::{FireDue, StoreError};

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
    shared.schedule(waiting);

    let planner = SchedulePlanner {
        lookahead_ms: options.lookahead_ms,
        ..SchedulePlanner::default()
    };
    let request = FireDue {
        node,
        horizon_ms: options.lookahead_ms,
        limit: options.claim_batch,
    };
    let fired = shared.store.fire_due(request, &planner).await?;
    shared.schedule(fired.runs);
    if waiting_more || fired.more {
        return Ok(Next::Now);
    }
    // Half the lookahead: whatever becomes due meanwhile is still found ahead of its time.
    Ok(Next::After(
        poll.min(Duration::from_millis(options.lookahead_ms / 2)),
    ))
}
