//! Lanes that all executors of a group share: what the store knows of them, and the marks that are taken back.

use std::collections::HashSet;

use cueline_model::{RunId, Timestamp};
use cueline_store::adapter::lanes::{LaneFacts, LaneGroup, LanePosition};
use cueline_store::{DispatchRequest, NodeId};
use serde::Deserialize;
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;

/// A place in a lane as a text that sorts like it.
macro_rules! place {
    ($at:literal, $id:literal) => {
        concat!("printf('%020d:%020d', ", $at, ", ", $id, ")")
    };
}

/// The facts of each lane, in the columns of [`Facts`]. One look at the live runs of its job, whatever number of requests
/// the lane has.
pub(crate) const FACTS: &str = concat!(
    "
    SELECT json_group_array(json((
        SELECT json_array(
            count(*) FILTER (WHERE o.state > 0),
            min(o.id) FILTER (WHERE o.state > 0),
            min(o.id) FILTER (WHERE o.state > 0 AND o.elsewhere),
            coalesce(max(o.elsewhere) FILTER (WHERE o.state > 1), 0),
            coalesce(max(o.moved) FILTER (WHERE o.state > 0), 0),
            min(o.executor) FILTER (WHERE o.state > 0 AND o.elsewhere),
            max(o.executor) FILTER (WHERE o.state > 0 AND o.elsewhere),
            min(o.place) FILTER (WHERE o.state = 1 AND o.elsewhere),
            min(o.place) FILTER (WHERE o.state = 1 AND NOT o.elsewhere AND o.claimed_by IS NOT ?3),
            min(o.place) FILTER (WHERE o.waits),
            count(*) FILTER (WHERE o.waits AND o.place < ",
    place!("g.value ->> 4", "g.value ->> 5"),
    "))
        FROM (
            SELECT r.id, r.state, r.executor, r.claimed_by, r.published_group IS NOT NULL AS moved,
                (r.executor <> g.value ->> 2 OR r.published_group IS NOT NULL) AS elsewhere,
                ",
    place!(
        "CASE WHEN r.retries = 0 THEN r.fire_at ELSE r.due_at END",
        "r.id"
    ),
    " AS place,
                (r.state = 0 AND r.due_at <= max(g.value ->> 3, ?4) AND r.cancel_requested = 0
                    AND r.id NOT IN (SELECT value FROM json_each(?2))) AS waits
            FROM run r INDEXED BY run_lane WHERE r.job_id = g.value ->> 0 AND r.shard_index = g.value ->> 1 AND r.state < 10
        ) o)))
    FROM json_each(?1) g"
);

/// Certainly not published.
const SET_UNPUBLISHED: &str = "
    UPDATE run SET maybe_published = 0 FROM json_each(?1) e
    WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.claimed_by = ?2 AND run.state = 1";

/// The claim stays, unless the job has changed since the request. Then any node claims the run with the new definition.
pub(crate) const TAKE_BACK: &str = "
    UPDATE run SET state = 0, claimed_by = CASE WHEN d.version = e.value ->> 2 THEN claimed_by END
    FROM json_each(?1) e CROSS JOIN job_due d
    WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.claimed_by = ?2 AND run.state = 1
        AND d.job_id = run.job_id
    RETURNING run.id, run.claimed_by IS NOT NULL";

#[derive(Deserialize)]
struct Facts(
    u64,
    Option<i64>,
    Option<i64>,
    i64,
    i64,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    u64,
);

impl From<Facts> for LaneFacts {
    fn from(facts: Facts) -> Self {
        Self {
            live: facts.0,
            first_live: facts.1,
            first_elsewhere: facts.2,
            is_published_elsewhere: facts.3 != 0,
            is_moved: facts.4 != 0,
            executors: facts.5.zip(facts.6),
            dispatching_elsewhere: facts.7.as_deref().and_then(position),
            other_node: facts.8.as_deref().and_then(position),
            waiting: facts.9.as_deref().and_then(position),
            ahead: facts.10,
        }
    }
}

fn position(text: &str) -> Option<LanePosition> {
    let (at, run) = text.split_once(':')?;
    Some((at.parse().ok()?, run.parse().ok()?))
}

/// Reads the facts of each group.
pub(crate) async fn read_facts(
    conn: &mut SqliteConnection,
    node: NodeId,
    groups: &[LaneGroup<'_>],
    requests: &[DispatchRequest],
    now: Timestamp,
) -> Result<Vec<LaneFacts>> {
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<_> = groups
        .iter()
        .map(|g| {
            let (job, shard) = (g.lane.job, g.lane.shard);
            let until = g.until.as_millis();
            (job, shard, g.executor, until, g.first.0, g.first.1)
        })
        .collect();
    let runs: Vec<RunId> = requests.iter().map(|r| r.attempt.run).collect();
    let Json(facts): Json<Vec<Facts>> = sqlx::query_scalar(FACTS)
        .bind(serde_json::to_string(&rows)?)
        .bind(serde_json::to_string(&runs)?)
        .bind(node.0)
        .bind(now.as_millis())
        .fetch_one(conn)
        .await?;
    Ok(facts.into_iter().map(LaneFacts::from).collect())
}

impl SqliteStore {
    /// Returns marked attempts that were certainly not published to `scheduled`. Ends those that were cancelled, or whose
    /// job was stopped, while they were marked. Returns the runs that the node still claims.
    pub(crate) async fn take_back(
        &self,
        tx: &mut SqliteConnection,
        node: NodeId,
        requests: &[&DispatchRequest],
    ) -> Result<HashSet<RunId>> {
        let rows: Vec<_> = requests
            .iter()
            .map(|r| (r.attempt.run, r.attempt.attempt, r.job_version))
            .collect();
        let list = serde_json::to_string(&rows)?;
        sqlx::query(SET_UNPUBLISHED)
            .bind(&list)
            .bind(node.0)
            .execute(&mut *tx)
            .await?;
        self.end_released(&mut *tx, node, &list).await?;
        let kept: Vec<(i64, bool)> = sqlx::query_as(TAKE_BACK)
            .bind(&list)
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await?;
        let claimed = kept.into_iter().filter(|(_, claimed)| *claimed);
        Ok(claimed.map(|(id, _)| RunId(id)).collect())
    }
}
