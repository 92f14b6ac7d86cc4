//! Reads the earlier runs of jobs whose route depends on them, before this node chooses for the first time.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::JobId;
use cueline_store::{ClaimedRun, RunFilter, Store, StoreError};

use crate::database_clock::DatabaseClock;
use crate::route::{MAX_ATTEMPTS, Outstanding, Router};

/// The last runs that are read of all jobs together.
const MAX_RUNS: usize = 1_000;

pub(crate) struct EarlierRuns {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) outstanding: Arc<Outstanding>,
}

impl EarlierRuns {
    /// Reads them for all jobs that `router` needs them for, at once. Without them it chooses by what this node
    /// dispatches from now on, and they are read before the next choice.
    pub(crate) async fn read_for(&self, router: &mut Router, runs: &[ClaimedRun]) {
        let unread = router.unread(runs);
        if !unread.history.is_empty()
            && let Err(error) = self.read_history(router, &unread.history, runs).await
        {
            tracing::warn!(%error, "failed to read the last runs of jobs with the route lfu or lru; they are chosen for without");
        }
        if !unread.outstanding.is_empty()
            && let Err(error) = self.read_outstanding(&unread.outstanding).await
        {
            tracing::warn!(%error, "failed to read the outstanding runs of jobs with the route busyover or any; they are chosen for without");
        }
    }

    async fn read_history(
        &self,
        router: &mut Router,
        jobs: &[JobId],
        runs: &[ClaimedRun],
    ) -> Result<(), StoreError> {
        let specs = runs.iter().map(|run| (run.job.id, &run.job.spec));
        let names: HashMap<_, _> = specs.map(|(id, spec)| (id, spec.name.clone())).collect();
        let filter = RunFilter {
            jobs: jobs
                .iter()
                .filter_map(|job| names.get(job).cloned())
                .collect(),
            limit: MAX_RUNS,
            ..RunFilter::default()
        };
        let mut found: HashMap<JobId, Vec<_>> = jobs.iter().map(|job| (*job, Vec::new())).collect();
        for run in self.store.runs(&filter).await? {
            // A short run may end before its confirmation is written, which then changes nothing.
            let used_at = run.queued_at.or(run.ended_at);
            if let Some(of_job) = found.get_mut(&run.job_id)
                && let (Some(executor), Some(at)) = (run.executor, used_at)
            {
                of_job.push((executor, at));
            }
        }
        let now = self.clock.now();
        for (job, runs) in found {
            router.add_history(job, runs, now);
        }
        Ok(())
    }

    /// Reads the attempts of jobs that have not ended.
    pub(crate) async fn read_outstanding(&self, jobs: &[JobId]) -> Result<(), StoreError> {
        let read_at = self.clock.now();
        let found = self.store.attempts_of_jobs(jobs, MAX_ATTEMPTS).await?;
        self.outstanding.replace(jobs, found, read_at);
        Ok(())
    }
}
