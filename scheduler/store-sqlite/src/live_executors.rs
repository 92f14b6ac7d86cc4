//! The live and the silent executors, for the planner and for child runs.

use std::collections::BTreeSet;

use cueline_model::{ExecutorId, ExecutorLabels, ExecutorName, GroupName, Timestamp};
use cueline_store::adapter::live_executors::{KnownExecutor, LiveExecutors};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;

const ACCEPTING: &str = "
    SELECT json_group_array(json_array(group_name, name, json(capabilities), json(labels), last_heartbeat_at))
    FROM (SELECT group_name, name, capabilities, labels, last_heartbeat_at FROM executor
          WHERE gone = 0 AND draining = 0 AND refusal IS NULL ORDER BY group_name, name)";

impl SqliteStore {
    /// The executors that accept triggers if they are live at `now`.
    pub(crate) async fn live_executors(
        &self,
        conn: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<LiveExecutors> {
        type Row = (
            GroupName,
            ExecutorName,
            BTreeSet<String>,
            ExecutorLabels,
            Timestamp,
        );
        let silent_since = now.minus_ms(self.db.executor_dead_after_ms());
        let Json(rows): Json<Vec<Row>> = sqlx::query_scalar(ACCEPTING).fetch_one(conn).await?;
        let executors =
            rows.into_iter()
                .map(
                    |(group, name, capabilities, labels, last_heartbeat_at)| KnownExecutor {
                        id: ExecutorId { group, name },
                        capabilities,
                        labels,
                        is_live: last_heartbeat_at > silent_since,
                    },
                );
        Ok(LiveExecutors::new(executors.collect()))
    }
}
