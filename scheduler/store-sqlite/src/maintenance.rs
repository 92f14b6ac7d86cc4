//! Deletes expired runs, and repairs fixed-delay jobs.

use cueline_model::Timestamp;
use cueline_store::adapter::convert::to_i64;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;
use crate::follow_ups::set_next_fires;

/// A window of runs by id: the highest id, the earliest time of writing, and the ids of the expired runs. A shard is
/// kept as long as another shard of its fire is live, because the follow-ups of the last end depend on all shards. The
/// same holds for the runs of a flow run with a live child run.
pub(crate) const EXPIRED: &str = "
    SELECT max(id), min(created_at), json_group_array(id) FILTER (WHERE ended_at < ?2
        AND (shard_total = 1 OR NOT EXISTS
            (SELECT 1 FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
                AND s.ended_at IS NULL))
        AND NOT EXISTS (SELECT 1 FROM run c WHERE c.fire_key = CASE WHEN part.kind IN (1, 2) THEN part.fire_key ELSE part.id END
            AND c.kind = 2 AND c.ended_at IS NULL))
    FROM (SELECT id, created_at, ended_at, shard_total, fire_key, job_id, kind FROM run WHERE id > ?1 ORDER BY id LIMIT ?3) part";

const DELETES: [&str; 4] = [
    "DELETE FROM run_log WHERE run_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM run_event WHERE run_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM trigger_key WHERE first_run IN (SELECT value FROM json_each(?1))",
    "DELETE FROM run WHERE id IN (SELECT value FROM json_each(?1))",
];

/// Executors whose last heartbeat has expired too, and that hold no run. The live runs are read once, not once for each
/// executor.
const DELETE_EXECUTORS: &str = "
    DELETE FROM executor WHERE last_heartbeat_at < ?1
        AND name NOT IN (SELECT r.executor FROM run r WHERE r.state IN (1, 2, 3) AND r.state < 10 AND r.executor IS NOT NULL)";

const IDLE_WITHOUT_NEXT_FIRE: &str = "
    SELECT d.job_id, d.version FROM job_due d
    WHERE d.fixed_delay = 1 AND d.enabled = 1 AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = d.job_id AND r.delays_next_fire = 1 AND r.state < 10)";

/// The number of runs that one statement examines.
const WINDOW: usize = 5_000;

const PAGES: &str = "
    SELECT (SELECT freelist_count FROM pragma_freelist_count), (SELECT page_count FROM pragma_page_count)";

/// Moves free pages behind the end of the file. The number of pages bounds how long other writers wait.
const RELEASE_PAGES: &str = "PRAGMA incremental_vacuum(250)";

/// Free pages that stay for new rows: 16 MiB, or a fifth of the file if that is more. In the long run as many rows come as
/// go, and pages that were given back would have to be allocated again.
pub(crate) fn spare_pages(pages: i64) -> i64 {
    (pages / 5).max(4_096)
}

impl SqliteStore {
    /// A file of a build that did not create it with incremental vacuum keeps its size.
    pub(crate) async fn release_space(&self) -> Result<bool> {
        let mut conn = self.db.read().await?;
        let (free, pages): (i64, i64) = sqlx::query_as(PAGES).fetch_one(&mut *conn).await?;
        drop(conn);
        if free <= spare_pages(pages) {
            return Ok(false);
        }
        let mut tx = self.db.write().await?;
        // Each row of the answer is a page, so all of them have to be read.
        sqlx::query(RELEASE_PAGES).fetch_all(&mut *tx).await?;
        let (left, pages): (i64, i64) = sqlx::query_as(PAGES).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        Ok(left < free && left > spare_pages(pages))
    }

    pub(crate) async fn delete_expired_runs(
        &self,
        older_than_ms: u64,
        limit: usize,
    ) -> Result<u64> {
        let before = self.db.now().minus_ms(older_than_ms).as_millis();
        let expired = self.expired_runs(before, limit).await?;
        let mut tx = self.db.write().await?;
        if !expired.is_empty() {
            for delete in DELETES {
                sqlx::query(delete)
                    .bind(Json(&expired))
                    .execute(&mut *tx)
                    .await?;
            }
        }
        sqlx::query(DELETE_EXECUTORS)
            .bind(before)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(expired.len() as u64)
    }

    /// At most `limit` ids of runs that ended before this time, lowest first. They are read before the transaction that
    /// deletes them, because all writers wait for that one. An expired run stays expired.
    async fn expired_runs(&self, before: i64, limit: usize) -> Result<Vec<i64>> {
        let mut conn = self.db.read().await?;
        let mut after = 0_i64;
        let mut expired: Vec<i64> = Vec::new();
        while expired.len() < limit {
            let (last, earliest, ids): (Option<i64>, Option<i64>, Json<Vec<i64>>) =
                sqlx::query_as(EXPIRED)
                    .bind(after)
                    .bind(before)
                    .bind(to_i64(WINDOW))
                    .fetch_one(&mut *conn)
                    .await?;
            expired.extend(ids.0);
            // A run ends after it was written, so runs that were written later have not expired either.
            match (last, earliest) {
                (Some(last), Some(earliest)) if earliest < before => after = last,
                _ => break,
            }
        }
        expired.truncate(limit);
        Ok(expired)
    }

    pub(crate) async fn repair_fixed_delay_jobs(&self) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let idle: Vec<(i64, i64)> = sqlx::query_as(IDLE_WITHOUT_NEXT_FIRE)
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
