//! Effects of the end of a run, in the transaction that ends it: the next fire time of fixed-delay jobs, and child
//! runs (those are in `children.rs`).

use cueline_model::Timestamp;
use cueline_store::IngestSummary;
use cueline_store::adapter::follow_ups::{latest_ends, next_fires_after};
use cueline_store::adapter::report_batch::{BatchWrites, keep_earliest};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::column;
use crate::database::WriteTx;
use crate::error::Result;

pub(crate) const LOCK_JOBS: &str = "
    SELECT 1 FROM unnest($1::bigint[]) e (id) JOIN job_due d ON d.job_id = e.id
    ORDER BY d.job_id FOR NO KEY UPDATE OF d";

/// The given fixed-delay jobs that are enabled and have no live run.
pub(crate) const IDLE: &str = "
    SELECT d.job_id, d.version FROM unnest($1::bigint[]) e (id) JOIN job_due d ON d.job_id = e.id
    WHERE d.fixed_delay AND d.enabled AND NOT EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.delays_next_fire)";

pub(crate) const SET_NEXT_FIRE: &str = "
    UPDATE job_due SET next_fire_at = e.next_fire_at FROM unnest($1::bigint[], $2::bigint[]) e (job_id, next_fire_at)
    WHERE job_due.job_id = e.job_id";

/// Locks jobs until the end of the transaction.
pub(crate) async fn lock_jobs(conn: &mut PgConnection, mut jobs: Vec<i64>) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    jobs.sort_unstable();
    jobs.dedup();
    sqlx::query(LOCK_JOBS).bind(jobs).execute(conn).await?;
    Ok(())
}

/// Writes next fire times. The caller has locked these jobs.
pub(crate) async fn set_next_fires(
    conn: &mut PgConnection,
    next: &[(i64, Option<Timestamp>)],
) -> Result<()> {
    sqlx::query(SET_NEXT_FIRE)
        .bind(column(next, |(job, _)| *job))
        .bind(column(next, |(_, at)| at.map(Timestamp::as_millis)))
        .execute(conn)
        .await?;
    Ok(())
}

impl PgStore {
    /// Writes the effects of the ends of a batch. Returns the summary of the batch with these effects.
    pub(crate) async fn follow_up(
        &self,
        tx: &mut WriteTx,
        writes: &BatchWrites,
    ) -> Result<IngestSummary> {
        let now = tx.now;
        let mut summary = writes.summary.clone();
        let delayed = writes.delayed_jobs(now);
        if let Some(next) = self.schedule_fixed_delays(tx, &delayed).await? {
            keep_earliest(&mut summary.next_due_at, next);
        }
        summary.child_runs = self.write_child_runs(tx, writes).await?;
        if summary.child_runs > 0 {
            keep_earliest(&mut summary.next_due_at, now);
        }
        Ok(summary)
    }

    /// Sets the next fire times of the fixed-delay jobs among `ended` (job, end of a run) that have no live run.
    /// Returns the earliest one. The caller has locked these jobs.
    pub(crate) async fn schedule_fixed_delays(
        &self,
        conn: &mut PgConnection,
        ended: &[(i64, Timestamp)],
    ) -> Result<Option<Timestamp>> {
        if ended.is_empty() {
            return Ok(None);
        }
        let ends = latest_ends(ended);
        let idle: Vec<(i64, i64)> = sqlx::query_as(IDLE)
            .bind(ends.keys().copied().collect::<Vec<_>>())
            .fetch_all(&mut *conn)
            .await?;
        if idle.is_empty() {
            return Ok(None);
        }
        let jobs = self.definitions.get(conn, idle.iter().copied()).await?;
        let next = next_fires_after(&ends, &idle, &jobs);
        set_next_fires(conn, &next).await?;
        Ok(next.iter().filter_map(|(_, at)| *at).min())
    }
}
