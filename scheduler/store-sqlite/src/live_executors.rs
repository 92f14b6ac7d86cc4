//! The live executors, for the planner and for child runs.

use std::collections::BTreeSet;

use cueline_model::{ExecutorId, ExecutorName, GroupName, Timestamp};
use cueline_store::adapter::live_executors::LiveExecutors;
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;

const LIVE: &str = "
    SELECT json_group_array(json_array(group_name, name, json(capabilities)))
    FROM (SELECT group_name, name, capabilities FROM executor
          WHERE gone = 0 AND draining = 0 AND last_heartbeat_at > ?1 ORDER BY group_name, name)";

impl SqliteStore {
    /// The executors that are live at `now`.
    pub(crate) async fn live_executors(
        &self,
        conn: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<LiveExecutors> {
        let dead_after_ms = self.db.executor_dead_after_ms();
        let Json(rows): Json<Vec<(GroupName, ExecutorName, BTreeSet<String>)>> =
            sqlx::query_scalar(LIVE)
                .bind(now.minus_ms(dead_after_ms).as_millis())
                .fetch_one(conn)
                .await?;
        let executors = rows
            .into_iter()
            .map(|(group, name, capabilities)| (ExecutorId { group, name }, capabilities));
        Ok(LiveExecutors::new(executors.collect()))
    }
}
