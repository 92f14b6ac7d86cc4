//! Repairs fixed-delay jobs.

use cueline_model::Timestamp;

use crate::PgStore;
use crate::error::Result;
use crate::follow_ups::{lock_jobs, set_next_fires};

/// Executed without locks, and again with the found jobs locked. Locking all fixed-delay jobs would delay the ends of
/// their runs.
const MAYBE_IDLE: &str = "
    SELECT d.job_id FROM job_due d WHERE d.fixed_delay AND d.enabled AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.delays_next_fire)";

const IDLE_WITHOUT_NEXT_FIRE: &str = "
    SELECT d.job_id, d.version FROM unnest($1::bigint[]) e (id) JOIN job_due d ON d.job_id = e.id
    WHERE d.fixed_delay AND d.enabled AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.delays_next_fire)";

impl PgStore {
    /// The server reuses the space of deleted rows by its autovacuum, and dropped days give theirs back at once.
    #[expect(clippy::unused_async, reason = "other stores ask their file")]
    pub(crate) async fn release_space(&self) -> Result<bool> {
        Ok(false)
    }

    pub(crate) async fn repair_fixed_delay_jobs(&self) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let maybe_idle: Vec<i64> = sqlx::query_scalar(MAYBE_IDLE).fetch_all(&mut *tx).await?;
        if maybe_idle.is_empty() {
            return Ok(0);
        }
        lock_jobs(&mut tx, maybe_idle.clone()).await?;
        let idle: Vec<(i64, i64)> = sqlx::query_as(IDLE_WITHOUT_NEXT_FIRE)
            .bind(maybe_idle)
            .fetch_all(&mut *tx)
            .await?;
        let jobs = self.definitions.get(&mut tx, idle).await?;
        // A job with an exhausted schedule has no next fire time and needs no repair.
        let next: Vec<(i64, Option<Timestamp>)> = jobs
            .iter()
            .map(|(id, job)| (*id, job.spec.next_fire(now)))
            .filter(|(_, at)| at.is_some())
            .collect();
        if !next.is_empty() {
            set_next_fires(&mut tx, &next).await?;
        }
        tx.commit().await?;
        Ok(next.len() as u64)
    }
}
