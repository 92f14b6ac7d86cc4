//! Reap: ends what will not end by itself.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::OutcomeKind;
use cueline_runtime::{Duty, Next};
use cueline_store::StoreError;

use crate::finding::ended;
use crate::parked;
use crate::shared::Shared;

/// Ends runs past their deadlines.
pub(crate) struct Reap(pub(crate) Arc<Shared>);

/// At most so many in one turn; the rest follows at once.
const BATCH: usize = 1_000;
const EVERY: Duration = Duration::from_secs(1);

impl Duty for Reap {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "reap"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        reap(&self.0).await
    }
}

pub(crate) async fn reap(shared: &Shared) -> Result<Next, StoreError> {
    parked::give_up(shared).await?;
    let overdue = shared
        .store
        .overdue_attempts(shared.options.overdue_slack_ms, BATCH)
        .await?;
    if overdue.is_empty() {
        return Ok(Next::After(EVERY));
    }
    let now = shared.now();
    let reports: Vec<_> = overdue
        .iter()
        .map(|id| {
            let message = "its executor did not report the end in time";
            ended(*id, OutcomeKind::Lost, now, message)
        })
        .collect();
    shared.store.ingest_reports(&reports).await?;
    shared.wakers.claim.wake();
    Ok(if overdue.len() < BATCH {
        Next::After(EVERY)
    } else {
        Next::Now
    })
}
