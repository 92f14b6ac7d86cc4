//! Gives space back to the file system, and repairs fixed-delay jobs.

use cueline_model::Timestamp;

use crate::SqliteStore;
use crate::error::Result;
use crate::follow_ups::set_next_fires;

const IDLE_WITHOUT_NEXT_FIRE: &str = "
    SELECT d.job_id, d.version FROM job_due d
    WHERE d.fixed_delay = 1 AND d.enabled = 1 AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = d.job_id AND r.delays_next_fire = 1 AND r.ended_at IS NULL)";

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
