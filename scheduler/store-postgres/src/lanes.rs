//! Lanes that all executors of a group share: what the store knows of them, and the marks that are taken back.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use cueline_model::{AttemptId, Timestamp};
use cueline_store::adapter::convert::to_u64;
use cueline_store::adapter::lanes::{LaneFacts, LaneGroup, LanePosition};
use cueline_store::{DispatchRequest, ErrorKind, LaneWait, NodeId};
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};

use crate::PgStore;
use crate::columns::{attempt_columns, column, to_i32};
use crate::dispatch::attempt_id;
use crate::error::Result;
use crate::follow_ups;

/// Builds [`CONTESTED`].
macro_rules! contested {
    () => {
        "
    SELECT g.position FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::boolean[], $5::bigint[], $6::bigint[], $7::bigint[])
            WITH ORDINALITY g (job_id, shard_index, executor, has_places, until, last_at, last_run, position)
        CROSS JOIN LATERAL (
            SELECT FROM run_live l WHERE l.job_id = g.job_id AND l.shard_index = g.shard_index AND CASE
                WHEN l.state = 0 THEN NOT l.cancel_requested
                    AND l.due_at <= greatest(g.until, coalesce($11, (extract(epoch FROM now()) * 1000)::bigint))
                    AND (CASE WHEN l.retries = 0 AND l.kind <> 4 THEN l.fire_at ELSE l.due_at END, l.id) < (g.last_at, g.last_run)
                    AND ($10 OR ($8::bigint[])[width_bucket(l.id, $8::bigint[])] IS DISTINCT FROM l.id)
                WHEN g.has_places THEN NOT $10 OR ($8::bigint[])[width_bucket(l.id, $8::bigint[])] IS DISTINCT FROM l.id
                ELSE l.executor <> g.executor OR l.published_group IS NOT NULL
                    OR (NOT $10 AND l.state = 1 AND l.claimed_by IS DISTINCT FROM $9)
                END
            LIMIT 1
        ) other"
    };
}

/// The lanes in which another run matters for the batch: nearly all have none, and need no [`FACTS`]. It stops at the first
/// such run of a lane. `$8` are the runs of the batch, sorted. `$10` tells whether they are marked.
///
/// - An attempt matters that is at another executor or in another group, whose place counts, or, before the marks, that
///   another node is publishing.
/// - A due run that is `scheduled` matters if it is older than the last of the batch: after the marks, it may have been
///   returned since the first look. Then it may be one of the batch, whose attempt was published before.
pub(crate) const CONTESTED: &str = contested!();

/// After the marks: the runs of `$8` that may have lost theirs, and whether that is because of their job; and the lanes of
/// [`CONTESTED`]. `$12` are the versions of the jobs of the runs. `$13` tells of each run whether it is alone in its lane in
/// this batch: 0 if it is not, or has no lane, otherwise as [`lane_kind`]. One statement, because a due run waits for it.
///
/// - The job of a run has another version than the request, or is deleted. The change of a job may not have waited for a
///   mark.
/// - Another run of the lane matters. A run that is alone, as nearly all are, is compared on the way, which costs less than
///   a list of lanes. With several runs, the lane is read once for all of them.
pub(crate) const LOST: &str = concat!(
    "SELECT NULL::bigint AS position, l.id, l.attempt, (SELECT d.version FROM job_due d WHERE d.job_id = l.job_id)
        IS DISTINCT FROM ($12::bigint[])[width_bucket(l.id, $8::bigint[])] AS is_changed
    FROM run_live l WHERE l.id = ANY ($8::bigint[]) AND l.state = 1 AND l.claimed_by = $9 AND (
        (SELECT d.version FROM job_due d WHERE d.job_id = l.job_id) IS DISTINCT FROM ($12::bigint[])[width_bucket(l.id, $8::bigint[])]
        OR (($13::smallint[])[width_bucket(l.id, $8::bigint[])] > 0 AND EXISTS (
            SELECT FROM run_live o WHERE o.job_id = l.job_id AND o.shard_index = l.shard_index AND o.id <> l.id AND CASE
                WHEN o.state = 0 THEN NOT o.cancel_requested
                    AND o.due_at <= greatest(l.due_at, coalesce($11, (extract(epoch FROM now()) * 1000)::bigint))
                    AND (CASE WHEN o.retries = 0 AND o.kind <> 4 THEN o.fire_at ELSE o.due_at END, o.id)
                        < (CASE WHEN l.retries = 0 AND l.kind <> 4 THEN l.fire_at ELSE l.due_at END, l.id)
                WHEN (SELECT ($13::smallint[])[width_bucket(l.id, $8::bigint[])]) = 2 THEN true
                ELSE o.executor <> l.executor OR o.published_group IS NOT NULL
                END)))
    UNION ALL SELECT c.position, NULL, NULL, NULL FROM (",
    contested!(),
    ") c"
);

/// The facts of each lane. One look at the live runs of its job, whatever number of requests the lane has.
///
/// `$6` are the runs that do not count while they are `scheduled`, sorted. `$8` is a test's clock.
pub(crate) const FACTS: &str = "
    SELECT g.position, f.* FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::bigint[], $5::bigint[], $9::bigint[])
            WITH ORDINALITY g (job_id, shard_index, executor, until, at, run, position)
        CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE o.state > 0) AS live,
                min(o.id) FILTER (WHERE o.state > 0) AS first_live,
                min(o.id) FILTER (WHERE o.state > 0 AND o.elsewhere) AS first_elsewhere,
                coalesce(bool_or(o.elsewhere) FILTER (WHERE o.state > 1), false) AS published_elsewhere,
                coalesce(bool_or(o.moved) FILTER (WHERE o.state > 0), false) AS moved,
                min(o.executor COLLATE \"C\") FILTER (WHERE o.state > 0 AND o.elsewhere) AS low,
                max(o.executor COLLATE \"C\") FILTER (WHERE o.state > 0 AND o.elsewhere) AS high,
                min(o.place) FILTER (WHERE o.state = 1 AND o.elsewhere) AS dispatching_elsewhere,
                min(o.place) FILTER (WHERE o.state = 1 AND NOT o.elsewhere AND o.claimed_by IS DISTINCT FROM $7) AS other_node,
                min(o.place) FILTER (WHERE o.waits) AS waiting,
                count(*) FILTER (WHERE o.waits AND o.place < ARRAY[g.at, g.run]) AS ahead
            FROM (
                SELECT l.id, l.state, l.executor, l.claimed_by, l.published_group IS NOT NULL AS moved,
                    l.executor <> g.executor OR l.published_group IS NOT NULL AS elsewhere,
                    ARRAY[CASE WHEN l.retries = 0 AND l.kind <> 4 THEN l.fire_at ELSE l.due_at END, l.id] AS place,
                    l.state = 0 AND l.due_at <= greatest(g.until, coalesce($8, (extract(epoch FROM now()) * 1000)::bigint))
                        AND NOT l.cancel_requested
                        AND ($6::bigint[])[width_bucket(l.id, $6::bigint[])] IS DISTINCT FROM l.id AS waits
                FROM run_live l WHERE l.job_id = g.job_id AND l.shard_index = g.shard_index
            ) o
        ) f
    ORDER BY g.position";

/// The jobs of attempts whose marks are taken back, which are locked before the runs.
pub(crate) const JOBS: &str = "
    SELECT DISTINCT l.job_id FROM unnest($1::bigint[]) e (id) JOIN run_live l ON l.id = e.id
    WHERE l.claimed_by = $2 AND l.state = 1";

/// Certainly not published.
const SET_UNPUBLISHED: &str = "
    UPDATE run_live l SET maybe_published = false FROM unnest($1::bigint[], $2::integer[]) e (id, attempt)
    WHERE l.id = e.id AND l.attempt = e.attempt AND l.claimed_by = $3 AND l.state = 1 AND l.maybe_published";

/// The claim stays, unless the job has changed since the request. Then any node claims the run with the new definition.
pub(crate) const TAKE_BACK: &str = "
    UPDATE run_live l SET state = 0, claimed_by = CASE WHEN d.version = e.version THEN l.claimed_by END
    FROM unnest($1::bigint[], $2::integer[], $3::bigint[]) e (id, attempt, version), job_due d
    WHERE l.id = e.id AND l.attempt = e.attempt AND l.claimed_by = $4 AND l.state = 1 AND d.job_id = l.job_id
    RETURNING l.id, l.claimed_by IS NOT NULL";

const MAX_TRIES: usize = 5;

/// A row of [`LOST`]: the position of a lane; or a run, its attempt, and whether its job has changed.
type LostRow = (Option<i64>, Option<i64>, Option<i32>, Option<bool>);

/// When a batch looks at its lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    BeforeMarks,
    AfterMarks,
}

/// What a statement about lanes is asked with, apart from the lanes.
struct Question {
    node: NodeId,
    /// The runs of the batch, sorted.
    runs: Vec<i64>,
    look: Look,
    /// That of a test.
    clock: Option<i64>,
}

impl Question {
    /// Runs that do not wait because this call asks for them. After the marks none: one that is `scheduled` then was returned.
    fn left_out(&self) -> &[i64] {
        match self.look {
            Look::BeforeMarks => &self.runs,
            Look::AfterMarks => &[],
        }
    }
}

/// Binds the parameters of [`CONTESTED`].
macro_rules! bind_contested {
    ($query:expr, $groups:expr, $question:expr) => {
        $query
            .bind(column($groups, |g| g.lane.job.0))
            .bind(column($groups, |g| to_i32(g.lane.shard)))
            .bind(column($groups, |g| g.executor.as_str()))
            .bind(column($groups, |g| g.has_places()))
            .bind(column($groups, |g| g.until.as_millis()))
            .bind(column($groups, |g| g.last.0))
            .bind(column($groups, |g| g.last.1))
            .bind(&$question.runs)
            .bind($question.node.0)
            .bind($question.look == Look::AfterMarks)
            .bind($question.clock)
    };
}

/// Reads the facts of each group.
async fn read_facts(
    conn: &mut PgConnection,
    groups: &[&LaneGroup<'_>],
    question: &Question,
) -> Result<Vec<LaneFacts>> {
    let rows = sqlx::query(FACTS)
        .bind(column(groups, |g| g.lane.job.0))
        .bind(column(groups, |g| to_i32(g.lane.shard)))
        .bind(column(groups, |g| g.executor.as_str()))
        .bind(column(groups, |g| g.until.as_millis()))
        .bind(column(groups, |g| g.first.0))
        .bind(question.left_out())
        .bind(question.node.0)
        .bind(question.clock)
        .bind(column(groups, |g| g.first.1))
        .fetch_all(conn)
        .await?;
    rows.iter().map(facts).collect()
}

/// The facts of all groups. `contested` has the indexes of those that need a full look, ascending.
async fn facts_of(
    conn: &mut PgConnection,
    groups: &[LaneGroup<'_>],
    contested: Vec<usize>,
    question: &Question,
) -> Result<Vec<LaneFacts>> {
    let mut facts = vec![LaneFacts::default(); groups.len()];
    let chosen = contested.iter().filter_map(|index| groups.get(*index));
    let chosen: Vec<&LaneGroup<'_>> = chosen.collect();
    if chosen.is_empty() {
        return Ok(facts);
    }
    let read = read_facts(conn, &chosen, question).await?;
    for (index, read) in contested.into_iter().zip(read) {
        if let Some(facts) = facts.get_mut(index) {
            *facts = read;
        }
    }
    Ok(facts)
}

fn facts(row: &PgRow) -> Result<LaneFacts> {
    let position = |column: &str| -> Result<Option<LanePosition>> {
        let place: Option<Vec<i64>> = row.try_get(column)?;
        Ok(place.and_then(|place| Some((*place.first()?, *place.get(1)?))))
    };
    let (low, high): (Option<String>, Option<String>) = (row.try_get("low")?, row.try_get("high")?);
    Ok(LaneFacts {
        live: to_u64(row.try_get::<i64, _>("live")?),
        first_live: row.try_get("first_live")?,
        first_elsewhere: row.try_get("first_elsewhere")?,
        is_published_elsewhere: row.try_get("published_elsewhere")?,
        is_moved: row.try_get("moved")?,
        executors: low.zip(high),
        dispatching_elsewhere: position("dispatching_elsewhere")?,
        other_node: position("other_node")?,
        waiting: position("waiting")?,
        ahead: to_u64(row.try_get::<i64, _>("ahead")?),
    })
}

impl PgStore {
    /// What is visible before the marks. A lane in which no other run matters has the facts of an idle one.
    pub(crate) async fn lane_facts(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
        groups: &[LaneGroup<'_>],
    ) -> Result<Vec<LaneFacts>> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let question = self.question(node, requests, Look::BeforeMarks);
        let mut conn = self.db.generic_plan().await?;
        let query = sqlx::query_scalar(CONTESTED);
        let contested: Vec<i64> = bind_contested!(query, groups, question)
            .fetch_all(&mut *conn)
            .await?;
        let index = |position: i64| usize::try_from(position - 1).ok();
        let contested = contested.into_iter().filter_map(index).collect();
        let facts = facts_of(&mut conn, groups, contested, &question).await?;
        conn.keep();
        Ok(facts)
    }

    /// What is visible after the marks: the attempts whose job has changed or is deleted, and the facts of the lanes.
    pub(crate) async fn lost_marks(
        &self,
        conn: &mut PgConnection,
        node: NodeId,
        requests: &[DispatchRequest],
        groups: &[LaneGroup<'_>],
    ) -> Result<(Vec<AttemptId>, Vec<LaneFacts>)> {
        let question = self.question(node, requests, Look::AfterMarks);
        // The lanes with several runs, by their indexes in `groups`.
        let shared = groups.iter().enumerate();
        let shared = shared.filter(|(_, group)| group.members().len() > 1);
        let (indexes, shared): (Vec<usize>, Vec<&LaneGroup<'_>>) = shared.unzip();
        let in_shared = shared.iter().flat_map(|group| group.members());
        let in_shared: HashSet<i64> = in_shared
            .filter_map(|at| Some(requests.get(*at)?.attempt.run.0))
            .collect();
        let of_runs: BTreeMap<i64, &DispatchRequest> =
            requests.iter().map(|r| (r.attempt.run.0, r)).collect();
        let kinds = of_runs.iter().map(|(run, request)| match request {
            _ if in_shared.contains(run) => 0,
            request => lane_kind(request),
        });
        let kinds: Vec<i16> = kinds.collect();
        let versions: Vec<i64> = of_runs.values().map(|r| r.job_version).collect();
        let query = sqlx::query_as(LOST);
        let rows: Vec<LostRow> = bind_contested!(query, &shared, question)
            .bind(versions)
            .bind(kinds)
            .fetch_all(&mut *conn)
            .await?;
        if rows.is_empty() {
            return Ok((Vec::new(), vec![LaneFacts::default(); groups.len()]));
        }
        let runs = rows
            .iter()
            .filter_map(|(_, run, attempt, changed)| Some((run.zip(*attempt)?, (*changed)?)));
        let changed = runs.clone().filter(|(_, is_changed)| *is_changed);
        let changed = changed.map(|(attempt, _)| attempt_id(attempt)).collect();
        // A run whose job has changed may also have lost its lane.
        let lost: HashSet<i64> = runs.map(|((run, _), _)| run).collect();
        let is_lost = |at: &usize| {
            let request = requests.get(*at);
            request.is_some_and(|request| lost.contains(&request.attempt.run.0))
        };
        let positions = rows.iter().filter_map(|(position, ..)| *position);
        let positions = positions.filter_map(|at| usize::try_from(at - 1).ok());
        let of_shared: HashSet<usize> = positions
            .filter_map(|at| indexes.get(at).copied())
            .collect();
        let contested = groups.iter().enumerate();
        let contested = contested.filter(|(index, group)| {
            of_shared.contains(index) || group.members().iter().any(is_lost)
        });
        let contested = contested.map(|(index, _)| index).collect();
        let facts = facts_of(conn, groups, contested, &question).await?;
        Ok((changed, facts))
    }

    fn question(&self, node: NodeId, requests: &[DispatchRequest], look: Look) -> Question {
        let runs: BTreeSet<i64> = requests.iter().map(|r| r.attempt.run.0).collect();
        Question {
            node,
            runs: runs.into_iter().collect(),
            look,
            clock: self.db.test_clock().map(Timestamp::as_millis),
        }
    }

    /// Takes marks back, and removes those from `waits` whose runs have ended or are not claimed any more.
    pub(crate) async fn take_back_of(
        &self,
        node: NodeId,
        requests: &[&DispatchRequest],
        waits: &mut Vec<LaneWait>,
    ) -> Result<()> {
        if requests.is_empty() {
            return Ok(());
        }
        let claimed = self.take_back(node, requests).await?;
        let taken: HashSet<i64> = requests.iter().map(|r| r.attempt.run.0).collect();
        waits.retain(|wait| {
            let run = wait.attempt.run.0;
            !taken.contains(&run) || claimed.contains(&run)
        });
        Ok(())
    }

    /// Returns marked attempts that were certainly not published to `scheduled`. Ends those that were cancelled, or whose
    /// job was stopped, while they were marked. Returns the runs that the node still claims.
    async fn take_back(&self, node: NodeId, requests: &[&DispatchRequest]) -> Result<HashSet<i64>> {
        if requests.is_empty() {
            return Ok(HashSet::new());
        }
        // Retried here, because the caller counts them as waiting.
        for _ in 1..MAX_TRIES {
            match self.try_take_back(node, requests).await {
                Err(error) if error.kind() == ErrorKind::Transient => {}
                done => return done,
            }
        }
        self.try_take_back(node, requests).await
    }

    async fn try_take_back(
        &self,
        node: NodeId,
        requests: &[&DispatchRequest],
    ) -> Result<HashSet<i64>> {
        let attempts: Vec<_> = requests.iter().map(|r| r.attempt).collect();
        let (ids, numbers) = attempt_columns(&attempts);
        let mut versions: Vec<(i64, i64)> = requests
            .iter()
            .map(|r| (r.attempt.run.0, r.job_version))
            .collect();
        versions.sort_unstable();
        let mut tx = self.db.write().await?;
        let jobs: Vec<i64> = sqlx::query_scalar(JOBS)
            .bind(&ids)
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await?;
        follow_ups::lock_jobs(&mut tx, jobs).await?;
        sqlx::query(SET_UNPUBLISHED)
            .bind(&ids)
            .bind(&numbers)
            .bind(node.0)
            .execute(&mut *tx)
            .await?;
        self.end_released(&mut tx, node, &ids, &numbers).await?;
        let kept: Vec<(i64, bool)> = sqlx::query_as(TAKE_BACK)
            .bind(&ids)
            .bind(&numbers)
            .bind(versions.iter().map(|v| v.1).collect::<Vec<_>>())
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        let claimed = kept.into_iter().filter(|(_, claimed)| *claimed);
        Ok(claimed.map(|(id, _)| id).collect())
    }
}

/// The lane of a run for statements: none (0), one with one holder (1), one with places (2).
pub(crate) fn lane_kind(request: &DispatchRequest) -> i16 {
    match &request.lane {
        None => 0,
        Some(place) if place.slots.is_none() => 1,
        Some(_) => 2,
    }
}
