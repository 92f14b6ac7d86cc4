//! What an explanation needs to know, in one snapshot.

use async_trait::async_trait;
use cueline_model::{GroupName, JobName};
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::queries::JobRow;
use cueline_store::{
    MAX_SITUATION_RUNS, MAX_SITUATION_VERSIONS, Order, Run, Situation, Situations, StoreError,
    Subject, waiting_run,
};
use sqlx::SqliteConnection;

use crate::dispatch::limits;
use crate::error::Result;
use crate::runs::{read_runs, run_detail};
use crate::{SqliteStore, audit, backfills, executors, summaries};

pub(crate) const LIVE_OF_JOB: &str =
    "SELECT id FROM run WHERE job_id = ?1 AND ended_at IS NULL ORDER BY id LIMIT ?2";

impl SqliteStore {
    async fn read_situation(&self, subject: Subject<'_>) -> Result<Situation> {
        let mut tx = self.db.snapshot().await?;
        let mut run = match subject {
            Subject::Run(id) => Some(run_detail(&mut tx, id).await?),
            Subject::Job(_) => None,
        };
        let name: JobName = match (subject, &run) {
            (Subject::Run(_), Some(detail)) => detail.run.job.clone(),
            (Subject::Job(name), _) => name.clone(),
            (Subject::Run(id), None) => return Err(StoreError::no_run(id).into()),
        };
        let rows: Vec<JobRow> = sqlx::query_as(summaries::BY_NAME)
            .bind(name.as_str())
            .fetch_all(&mut *tx)
            .await?;
        let job = self.summaries(&mut tx, &rows).await?.pop();
        let id = match &run {
            Some(detail) => detail.run.job_id.0,
            None => rows.first().map_or(0, |row| row.0),
        };
        if job.is_none() && run.is_none() {
            return Err(StoreError::no_job(name.as_str()).into());
        }
        let live = live_runs(&mut tx, id).await?;
        let group: Option<GroupName> = job.as_ref().map(|job| job.job.spec.group.clone());
        let executors = match &group {
            Some(group) => executors::of_group(&mut tx, group).await?,
            None => Vec::new(),
        };
        let is_paused = job.as_ref().is_some_and(|job| !job.job.spec.is_enabled());
        let versions = if is_paused {
            let (order, most) = (Order::Descending, MAX_SITUATION_VERSIONS);
            audit::versions(&mut tx, &name, order, None, most).await?
        } else {
            Vec::new()
        };
        let rules = self.present_rules(&mut tx).await?;
        let quotas = self.quota_loads_in(&mut tx).await?;
        let namespace = name.namespace();
        let backfill = backfills::active_of_job(&mut tx, id).await?;
        let limits = match &job {
            Some(job) => limits::of_job(&mut tx, job.job.id, &job.job.spec).await?,
            None => Vec::new(),
        };
        // Read last, so that nothing is in the future.
        let now = self.db.now();
        if run.is_none()
            && let Some(waits) = waiting_run(&live, now)
        {
            run = Some(run_detail(&mut tx, waits.id).await?);
        }
        Ok(Situation {
            now,
            job,
            run,
            live,
            executors,
            versions,
            rules,
            quotas: quotas.into_iter().find(|load| load.namespace == namespace),
            backfill,
            limits,
        })
    }
}

async fn live_runs(conn: &mut SqliteConnection, job: i64) -> Result<Vec<Run>> {
    let ids: Vec<i64> = sqlx::query_scalar(LIVE_OF_JOB)
        .bind(job)
        .bind(to_i64(MAX_SITUATION_RUNS))
        .fetch_all(&mut *conn)
        .await?;
    let mut live = read_runs(conn, &ids).await?;
    live.sort_by_key(|run| run.id);
    Ok(live)
}

#[async_trait]
impl Situations for SqliteStore {
    async fn situation(&self, subject: Subject<'_>) -> std::result::Result<Situation, StoreError> {
        let read = self.read_situation(subject).await;
        read.map_err(|error| error.failed_to("read the situation of a job"))
    }
}
