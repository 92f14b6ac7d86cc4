//! The executors that are alive, as the planner and the writing of child runs need them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{ExecutorName, JobSpec, Timestamp};
use cueline_store::StoreError;
use serde::Deserialize;
use sqlx::SqliteConnection;

use crate::error::failed;
use crate::rows::decode;

const LIVE: &str = "
    SELECT json_group_array(json_array(grp, name, json(capabilities)))
    FROM (SELECT grp, name, capabilities FROM executor
          WHERE gone = 0 AND draining = 0 AND last_heartbeat_at > ?1 ORDER BY grp, name)";

#[derive(Deserialize)]
struct Row(String, ExecutorName, BTreeSet<String>);

/// Live executors, with what was asked of them so far.
pub(crate) struct Live {
    executors: Vec<Row>,
    asked: HashMap<(String, String), Arc<[ExecutorName]>>,
}

impl Live {
    /// The executors that are live at `now`.
    pub(crate) async fn load(
        conn: &mut SqliteConnection,
        now: Timestamp,
        dead_after_ms: u64,
    ) -> Result<Self, StoreError> {
        let text: String = sqlx::query_scalar(LIVE)
            .bind(now.minus_ms(dead_after_ms).as_millis())
            .fetch_one(conn)
            .await
            .map_err(failed("read the live executors"))?;
        Ok(Self {
            executors: decode(&text)?,
            asked: HashMap::new(),
        })
    }

    /// Those in the job's group that announce its handler, sorted by name.
    pub(crate) fn candidates(&mut self, spec: &JobSpec) -> Arc<[ExecutorName]> {
        if self.executors.is_empty() {
            return Arc::new([]);
        }
        let executors = &self.executors;
        let capability = spec.handler.capability();
        let key = (spec.group.as_str().to_owned(), capability.into_owned());
        let found = self.asked.entry(key).or_insert_with_key(|(group, needed)| {
            executors
                .iter()
                .filter(|Row(g, _, announced)| g == group && announced.contains(needed))
                .map(|Row(_, name, _)| name.clone())
                .collect()
        });
        Arc::clone(found)
    }
}
