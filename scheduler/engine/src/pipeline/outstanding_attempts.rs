//! Reads again and again which attempts of `busyover` and `any` jobs have not ended: other nodes dispatch and ingest too.

use std::time::Duration;

use cueline_runtime::{Duty, Next};
use cueline_store::StoreError;
use tokio::time::Instant;

use super::earlier_runs::EarlierRuns;

/// The time between two readings, if they are quick.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time between two readings.
const LONGEST: Duration = Duration::from_secs(30);
/// A reading takes at most one part of this many of the time.
const SHARE: u32 = 20;

pub(crate) struct RefreshOutstanding {
    pub(crate) earlier_runs: EarlierRuns,
}

impl Duty for RefreshOutstanding {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "outstanding attempts"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let begun_at = Instant::now();
        let earlier = &self.earlier_runs;
        let jobs = earlier.outstanding.jobs(earlier.clock.now());
        if !jobs.is_empty() {
            earlier.read_outstanding(&jobs).await?;
        }
        let pause = begun_at.elapsed().saturating_mul(SHARE);
        Ok(Next::After(pause.clamp(EVERY, LONGEST)))
    }
}
