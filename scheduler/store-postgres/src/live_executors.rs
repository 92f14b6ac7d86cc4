//! The live and the silent executors, for the planner and for child runs.

use cueline_model::{ExecutorId, Timestamp};
use cueline_store::adapter::convert::parse_name;
use cueline_store::adapter::live_executors::{KnownExecutor, LiveExecutors};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::error::Result;
use crate::executors::executor_labels;

const ACCEPTING: &str = "
    SELECT group_name, name, capabilities, labels, last_heartbeat_at > $1 FROM executor
    WHERE NOT gone AND NOT draining AND refusal IS NULL ORDER BY group_name, name";

impl PgStore {
    /// The executors that accept triggers if they are live at `now`.
    pub(crate) async fn live_executors(
        &self,
        conn: &mut PgConnection,
        now: Timestamp,
    ) -> Result<LiveExecutors> {
        let dead_after_ms = self.db.executor_dead_after_ms();
        let rows: Vec<(String, String, Vec<String>, String, bool)> = sqlx::query_as(ACCEPTING)
            .bind(now.minus_ms(dead_after_ms).as_millis())
            .fetch_all(conn)
            .await?;
        let executors = rows
            .into_iter()
            .map(|(group, name, capabilities, labels, is_live)| {
                let id = ExecutorId {
                    group: parse_name(&group)?,
                    name: parse_name(&name)?,
                };
                Ok(KnownExecutor {
                    id,
                    capabilities: capabilities.into_iter().collect(),
                    labels: executor_labels(&labels)?,
                    is_live,
                })
            })
            .collect::<Result<_>>()?;
        Ok(LiveExecutors::new(executors))
    }
}
