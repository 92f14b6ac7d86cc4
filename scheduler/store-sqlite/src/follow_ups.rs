//! Effects of the end of a run, in the transaction that ends it: the next fire time of fixed-delay jobs, and child
//! runs (those are in `children.rs`).

use cueline_model::Timestamp;
use cueline_store::IngestSummary;
use cueline_store::adapter::follow_ups::{latest_ends, next_fires_after};
use cueline_store::adapter::report_batch::{BatchWrites, keep_earliest};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;

/// The given fixed-delay jobs that are enabled and have no live run.
pub(crate) const IDLE: &str = "
    SELECT json_group_array(json_array(d.job_id, d.version))
    FROM json_each(?1) e CROSS JOIN job_due d ON d.job_id = e.value
    WHERE d.fixed_delay = 1 AND d.enabled = 1
        AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = d.job_id AND r.delays_next_fire = 1 AND r.ended_at IS NULL)";

const SET_NEXT_FIRE: &str = "
    UPDATE job_due SET next_fire_at = e.value ->> 1 FROM json_each(?1) e WHERE job_id = e.value ->> 0";

/// Writes next fire times.
pub(crate) async fn set_next_fires(
    conn: &mut SqliteConnection,
    next: &[(i64, Option<Timestamp>)],
) -> Result<()> {
    sqlx::query(SET_NEXT_FIRE)
        .bind(Json(next))
        .execute(conn)
        .await?;
    Ok(())
}

impl SqliteStore {
    /// Writes the effects of the ends of a batch. Returns the summary of the batch with these effects.
    pub(crate) async fn follow_up(
        &self,
        conn: &mut SqliteConnection,
        writes: &BatchWrites,
        now: Timestamp,
    ) -> Result<IngestSummary> {
        let mut summary = writes.summary.clone();
        let delayed = writes.delayed_jobs(now);
        if let Some(next) = self.schedule_fixed_delays(conn, &delayed).await? {
            keep_earliest(&mut summary.next_due_at, next);
        }
        summary.child_runs = self.write_child_runs(conn, writes, now).await?;
        if summary.child_runs > 0 {
            keep_earliest(&mut summary.next_due_at, now);
        }
        Ok(summary)
    }

    /// Sets the next fire times of the fixed-delay jobs among `ended` (job, end of a run) that have no live run.
    /// Returns the earliest one.
    pub(crate) async fn schedule_fixed_delays(
        &self,
        conn: &mut SqliteConnection,
        ended: &[(i64, Timestamp)],
    ) -> Result<Option<Timestamp>> {
        if ended.is_empty() {
            return Ok(None);
        }
        let ends = latest_ends(ended);
        let Json(idle): Json<Vec<(i64, i64)>> = sqlx::query_scalar(IDLE)
            .bind(Json(ends.keys().collect::<Vec<_>>()))
            .fetch_one(&mut *conn)
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
