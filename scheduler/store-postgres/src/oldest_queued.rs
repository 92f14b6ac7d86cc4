//! The age of the oldest queued attempt of each executor, for metrics.

use cueline_model::Timestamp;
use cueline_store::OldestQueued;

use crate::PgStore;
use crate::error::Result;
use crate::executors::executor_id;

/// Reads the live runs once, and no ended ones. No index begins with the state or the executor: each dispatch sets
/// these columns, and an index on them would end the updates that stay on their page.
pub(crate) const OLDEST: &str = "
    SELECT coalesce(l.published_group, j.group_name), l.executor, min(l.queued_at)
    FROM run_live l JOIN job j ON j.id = l.job_id
    WHERE l.state = 2 AND l.queued_at IS NOT NULL AND l.executor IS NOT NULL
    GROUP BY 1, 2";

impl PgStore {
    pub(crate) async fn oldest_queued_attempts(&self) -> Result<Vec<OldestQueued>> {
        let mut conn = self.db.read().await?;
        let rows: Vec<(String, String, i64)> = sqlx::query_as(OLDEST).fetch_all(&mut *conn).await?;
        let now = self.db.now(&mut conn).await?;
        rows.into_iter()
            .map(|(group, name, queued_at)| {
                let executor = executor_id(&group, &name)?;
                let queued_at = Timestamp::from_millis(queued_at);
                Ok(OldestQueued::since(executor, queued_at, now))
            })
            .collect()
    }
}
