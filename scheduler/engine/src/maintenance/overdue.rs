//! Ends runs that are past their dispatch deadline, and attempts that are past their timeout without a report.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::OutcomeKind;
use cueline_runtime::{Activator, Duty, Next};
use cueline_store::{Store, StoreError};

use crate::counters::Counters;
use crate::database_clock::DatabaseClock;
use crate::pipeline::unroutable_runs::UnroutableRuns;
use crate::scheduler_report::attempt_ended;

pub(crate) struct Overdue {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) unroutable: UnroutableRuns,
    pub(crate) counters: Arc<Counters>,
    pub(crate) claim: Activator,
    /// How long after timeout and kill grace an executor may still report, in ms.
    pub(crate) slack_ms: u64,
}

/// The most attempts in one turn.
const BATCH: usize = 1_000;
const EVERY: Duration = Duration::from_secs(1);

impl Duty for Overdue {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "overdue"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        self.unroutable.end_expired().await?;
        let overdue = self.store.overdue_attempts(self.slack_ms, BATCH).await?;
        if overdue.is_empty() {
            return Ok(Next::After(EVERY));
        }
        let now = self.clock.now();
        let message = "its executor did not report the end in time";
        let reports: Vec<_> = overdue
            .iter()
            .map(|attempt| attempt_ended(*attempt, OutcomeKind::Lost, now, message))
            .collect();
        let ingested = self.store.ingest_reports(&reports).await?;
        self.counters.note_ended(&ingested);
        self.claim.wake();
        Ok(if overdue.len() < BATCH {
            Next::After(EVERY)
        } else {
            Next::Now
        })
    }
}
