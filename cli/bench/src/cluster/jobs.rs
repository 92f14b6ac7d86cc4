//! The jobs of a load.

use std::time::Duration;

use anyhow::Result;
use cueline_model::{Actor, ActorKind};

use super::Cluster;
use crate::load::Load;
use crate::progress::bar;

/// Jobs that are applied in one call.
const APPLY_BATCH: usize = 10_000;
/// Without progress for this long, a benchmark fails.
pub(super) const STUCK_TIMEOUT: Duration = Duration::from_mins(1);

/// Creates the jobs.
pub(super) async fn apply(cluster: &Cluster, load: &Load) -> Result<()> {
    let bar = bar(load.jobs.len() as u64, "jobs");
    for jobs in load.jobs.chunks(APPLY_BATCH) {
        cluster
            .store
            .store
            .apply_jobs(jobs, false, &Actor::new(ActorKind::User, "a benchmark"))
            .await?;
        bar.inc(jobs.len() as u64);
    }
    bar.finish_and_clear();
    Ok(())
}
