//! The age of the oldest queued attempt of each executor, for metrics.

use cueline_model::{ExecutorId, Timestamp};
use cueline_store::OldestQueued;
use cueline_store::adapter::convert::parse_name;

use crate::SqliteStore;
use crate::error::Result;

/// Reads the queued runs once, by the index on the state.
pub(crate) const OLDEST: &str = "
    SELECT coalesce(r.published_group, j.group_name), r.executor, min(r.queued_at)
    FROM run r CROSS JOIN job j ON j.id = r.job_id
    WHERE r.state = 2 AND r.state < 10 AND r.queued_at IS NOT NULL AND r.executor IS NOT NULL
    GROUP BY 1, 2";

impl SqliteStore {
    pub(crate) async fn oldest_queued_attempts(&self) -> Result<Vec<OldestQueued>> {
        let rows: Vec<(String, String, i64)> = sqlx::query_as(OLDEST)
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        let now = self.db.now();
        rows.into_iter()
            .map(|(group, name, queued_at)| {
                let executor = ExecutorId {
                    group: parse_name(&group)?,
                    name: parse_name(&name)?,
                };
                let queued_at = Timestamp::from_millis(queued_at);
                Ok(OldestQueued::since(executor, queued_at, now))
            })
            .collect()
    }
}
