//! The executors that are alive, as the planner and the writing of child runs need them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{ExecutorName, JobSpec, Timestamp};
use cueline_store::StoreError;
use sqlx::postgres::PgConnection;

use crate::error::failed;
use crate::rows::name;

const LIVE: &str = "
    SELECT grp, name, capabilities FROM executor
    WHERE NOT gone AND NOT draining AND last_heartbeat_at > $1 ORDER BY grp, name";

struct Row {
    group: String,
    name: ExecutorName,
    announced: BTreeSet<String>,
}

/// Live executors, with what was asked of them so far.
pub(crate) struct Live {
    executors: Vec<Row>,
    asked: HashMap<(String, String), Arc<[ExecutorName]>>,
}

impl Live {
    /// For a job whose runs do not depend on who is alive.
    pub(crate) fn nobody() -> Self {
        Self {
            executors: Vec::new(),
            asked: HashMap::new(),
        }
    }

    /// The executors that are live at `now`.
    pub(crate) async fn load(
        conn: &mut PgConnection,
        now: Timestamp,
        dead_after_ms: u64,
    ) -> Result<Self, StoreError> {
        let rows: Vec<(String, String, Vec<String>)> = sqlx::query_as(LIVE)
            .bind(now.minus_ms(dead_after_ms).as_millis())
            .fetch_all(conn)
            .await
            .map_err(failed("read the live executors"))?;
        let executors = rows
            .into_iter()
            .map(|(group, text, announced)| {
                Ok(Row {
                    group,
                    name: name(&text)?,
                    announced: announced.into_iter().collect(),
                })
            })
            .collect::<Result<_, StoreError>>()?;
        Ok(Self {
            executors,
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
                .filter(|row| row.group == *group && row.announced.contains(needed))
                .map(|row| row.name.clone())
                .collect()
        });
        Arc::clone(found)
    }
}
