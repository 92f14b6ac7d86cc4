//! The live executors, for the planner and for child runs.

use cueline_model::{ExecutorId, Timestamp};
use cueline_store::adapter::convert::parse_name;
use cueline_store::adapter::live_executors::LiveExecutors;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::error::Result;

const LIVE: &str = "
    SELECT group_name, name, capabilities FROM executor
    WHERE NOT gone AND NOT draining AND last_heartbeat_at > $1 ORDER BY group_name, name";

impl PgStore {
    /// The executors that are live at `now`.
    pub(crate) async fn live_executors(
        &self,
        conn: &mut PgConnection,
        now: Timestamp,
    ) -> Result<LiveExecutors> {
        let dead_after_ms = self.db.executor_dead_after_ms();
        let rows: Vec<(String, String, Vec<String>)> = sqlx::query_as(LIVE)
            .bind(now.minus_ms(dead_after_ms).as_millis())
            .fetch_all(conn)
            .await?;
        let executors = rows
            .into_iter()
            .map(|(group, name, capabilities)| {
                let id = ExecutorId {
                    group: parse_name(&group)?,
                    name: parse_name(&name)?,
                };
                Ok((id, capabilities.into_iter().collect()))
            })
            .collect::<Result<_>>()?;
        Ok(LiveExecutors::new(executors))
    }
}
