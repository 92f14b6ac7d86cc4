//! Lanes that all executors of a group share: what the store knows of them, and the marks that are taken back.

use std::collections::HashSet;

use cueline_model::{ExecutorName, RunId, Timestamp};
use cueline_store::adapter::lanes::{LaneFacts, LaneGroup, LanePosition, may_be_marked};
use cueline_store::{DispatchRequest, NodeId};
use serde::Deserialize;
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;

/// A place in a lane as a text that sorts like it.
macro_rules! place {
    ($at:expr, $id:literal) => {
        concat!("printf('%020d:%020d', ", $at, ", ", $id, ")")
    };
}

/// The time of a run in its lane.
macro_rules! time_in_lane {
    () => {
        "CASE WHEN r.retries = 0 AND r.kind <> 4 THEN r.fire_at ELSE r.due_at END"
    };
}

/// The groups whose requests other runs of their lanes may keep waiting. Those are few. A group is `[job, shard, time, run,
/// executor]` with the place of its last request, and without the executor if all have the same.
pub(crate) const TO_LOOK_AT: &str = concat!(
    "WITH g AS MATERIALIZED (
        SELECT e.key AS number, e.value ->> 0 AS job, e.value ->> 1 AS shard, e.value ->> 2 AS at, e.value ->> 3 AS run,
            coalesce(?5, e.value ->> 4) AS executor
        FROM jsonb_each(?1) e)
    SELECT json_group_array(g.number) FROM g WHERE EXISTS (
        SELECT 1 FROM run r INDEXED BY run_lane
        WHERE r.job_id = g.job AND r.ended_at IS NULL AND r.id <> g.run AND r.shard_index = g.shard AND CASE r.state
            WHEN 0 THEN r.due_at <= ?4 AND r.cancel_requested = 0 AND (",
    time_in_lane!(),
    ", r.id) < (g.at, g.run) AND r.id NOT IN (SELECT value FROM json_each(?2))
            ELSE r.executor <> g.executor OR r.published_group IS NOT NULL OR (r.state = 1 AND r.claimed_by IS NOT ?3) END)"
);

/// The facts of each lane, in the columns of [`Facts`]. One look at the live runs of its job, whatever number of requests
/// the lane has.
pub(crate) const FACTS: &str = concat!(
    "WITH g AS MATERIALIZED (
        SELECT e.value ->> 0 AS job, e.value ->> 1 AS shard, e.value ->> 2 AS executor, e.value ->> 3 AS until,
            e.value ->> 4 AS first_at, e.value ->> 5 AS first_id
        FROM jsonb_each(?1) e)
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
    place!("g.first_at", "g.first_id"),
    "))
        FROM (
            SELECT r.id, r.state, r.executor, r.claimed_by, r.published_group IS NOT NULL AS moved,
                (r.executor <> g.executor OR r.published_group IS NOT NULL) AS elsewhere,
                ",
    place!(time_in_lane!(), "r.id"),
    " AS place,
                (r.state = 0 AND r.due_at <= max(g.until, ?4) AND r.cancel_requested = 0
                    AND r.id NOT IN (SELECT value FROM json_each(?2))) AS waits
            FROM run r INDEXED BY run_lane WHERE r.job_id = g.job AND r.ended_at IS NULL AND r.shard_index = g.shard
        ) o)))
    FROM g"
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

/// The executor, if all are the same. The lists of a statement then need not have it.
pub(crate) fn same_executor<'a>(
    mut executors: impl Iterator<Item = &'a ExecutorName>,
) -> Option<&'a ExecutorName> {
    let first = executors.next()?;
    executors.all(|executor| executor == first).then_some(first)
}

/// Reads the facts of each group. They are empty where no other run keeps its requests waiting.
pub(crate) async fn read_facts(
    conn: &mut SqliteConnection,
    node: NodeId,
    groups: &[LaneGroup<'_>],
    requests: &[DispatchRequest],
    now: Timestamp,
) -> Result<Vec<LaneFacts>> {
    let mut facts = vec![LaneFacts::default(); groups.len()];
    if groups.is_empty() {
        return Ok(facts);
    }
    let runs: Vec<RunId> = requests.iter().map(|r| r.attempt.run).collect();
    let look = Look {
        node,
        now,
        runs: serde_json::to_string(&runs)?,
    };
    let is_marked = |index: &usize| requests.get(*index).is_some_and(may_be_marked);
    let needs_facts = |g: &LaneGroup<'_>| g.has_places() || g.members().iter().any(is_marked);
    let (mut numbers, new): (Vec<usize>, Vec<usize>) =
        (0..groups.len()).partition(|number| groups.get(*number).is_some_and(needs_facts));
    numbers.extend(look.to_look_at(conn, groups, &new).await?);
    let found = look.facts(conn, groups, &numbers).await?;
    for (number, found) in numbers.into_iter().zip(found) {
        if let Some(facts) = facts.get_mut(number) {
            *facts = found.into();
        }
    }
    Ok(facts)
}

/// What the statements about lanes share.
struct Look {
    node: NodeId,
    now: Timestamp,
    /// The runs of the batch.
    runs: String,
}

impl Look {
    /// Those of the groups with these numbers whose requests may have to wait.
    async fn to_look_at(
        &self,
        conn: &mut SqliteConnection,
        groups: &[LaneGroup<'_>],
        numbers: &[usize],
    ) -> Result<Vec<usize>> {
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let new = || numbers.iter().filter_map(|number| groups.get(*number));
        let same = same_executor(new().map(|g| g.executor));
        let rows: Vec<_> = new()
            .map(|g| {
                let (at, run) = g.last;
                let executor = same.is_none().then_some(g.executor);
                (g.lane.job, g.lane.shard, at, run, executor)
            })
            .collect();
        let until = new().map(|g| g.until).max().unwrap_or(self.now);
        let Json(found): Json<Vec<usize>> = sqlx::query_scalar(TO_LOOK_AT)
            .bind(serde_json::to_string(&rows)?)
            .bind(&self.runs)
            .bind(self.node.0)
            .bind(until.max(self.now).as_millis())
            .bind(same.map(ExecutorName::as_str))
            .fetch_one(conn)
            .await?;
        Ok(found
            .into_iter()
            .filter_map(|n| numbers.get(n).copied())
            .collect())
    }

    async fn facts(
        &self,
        conn: &mut SqliteConnection,
        groups: &[LaneGroup<'_>],
        numbers: &[usize],
    ) -> Result<Vec<Facts>> {
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<_> = numbers
            .iter()
            .filter_map(|number| groups.get(*number))
            .map(|g| {
                let (job, shard) = (g.lane.job, g.lane.shard);
                let until = g.until.as_millis();
                (job, shard, g.executor, until, g.first.0, g.first.1)
            })
            .collect();
        let Json(facts): Json<Vec<Facts>> = sqlx::query_scalar(FACTS)
            .bind(serde_json::to_string(&rows)?)
            .bind(&self.runs)
            .bind(self.node.0)
            .bind(self.now.as_millis())
            .fetch_one(conn)
            .await?;
        Ok(facts)
    }
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
