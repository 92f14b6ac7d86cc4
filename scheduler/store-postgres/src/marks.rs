//! Marks runs `dispatching`, and finds those that this node may publish.

pub(crate) mod limits;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use cueline_model::{AttemptId, Timestamp};
use cueline_store::adapter::lanes::{
    LaneFacts, LaneGroup, after_mark, before_mark, lane_groups, marked_if_idle, may_be_marked,
};
use cueline_store::{BegunDispatch, DispatchRequest, ErrorKind, NodeId};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::{column, to_i32};
use crate::dispatch::attempt_id;
use crate::error::Result;
use crate::lanes::lane_kind;

/// The values of a run are at the index of its id in the sorted $1. There is no join. The planner assumes that
/// `run_live` is empty if it is new, or was empty at its last analysis. With a join it would then search the whole list
/// for each row.
///
/// The statement sees the job version from its start. A concurrent change of the version also ends the claims of
/// waiting runs. PostgreSQL checks a changed row again, so the run is refused. But the node may have claimed the run
/// again meanwhile. [`LOST`](crate::lanes::LOST) finds that case.
///
/// The time is read once, and the answer is one row with lists. Both together cost a sixth of the statement if they are for
/// each run.
macro_rules! begin {
    ($also:literal) => {
        concat!(
            "WITH marked AS (UPDATE run_live l SET state = 1,
                executor = ($5::text[])[($4::integer[])[width_bucket(l.id, $1::bigint[])]],
                dispatched_at = (SELECT coalesce($7, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)),
                maybe_published = false, published_group = NULL
            WHERE l.id = ANY ($1::bigint[]) AND l.state = 0 AND l.claimed_by = $6
                AND l.attempt = ($2::integer[])[width_bucket(l.id, $1::bigint[])]
                AND ($3::bigint[])[width_bucket(l.id, $1::bigint[])]
                    = (SELECT d.version FROM job_due d WHERE d.job_id = l.job_id)",
            $also,
            " RETURNING l.id, l.attempt)
            SELECT coalesce(array_agg(id), '{}'), coalesce(array_agg(attempt), '{}') FROM marked"
        )
    };
}

pub(crate) const BEGIN: &str = begin!("");

/// Marks only runs of lanes in which no other run matters, so that nearly no run needs a look before its mark. The
/// conditions are those of [`CONTESTED`](crate::lanes::CONTESTED). `$8` are the [kinds](lane_kind) of
/// their lanes.
///
/// A job may have many live runs, and each is looked at. So what depends only on the run is a subquery, which PostgreSQL
/// reads once for the run, and whether another run is in the batch is the last question.
pub(crate) const BEGIN_IDLE: &str = begin!(
    " AND (($8::smallint[])[width_bucket(l.id, $1::bigint[])] = 0 OR NOT EXISTS (
        SELECT FROM run_live o WHERE o.job_id = l.job_id AND o.shard_index = l.shard_index AND o.id <> l.id AND CASE
            WHEN o.state = 0 THEN NOT o.cancel_requested
                AND o.due_at <= greatest(l.due_at, coalesce($7, (extract(epoch FROM now()) * 1000)::bigint))
                AND (CASE WHEN o.retries = 0 AND o.kind <> 4 THEN o.fire_at ELSE o.due_at END, o.id)
                    < (CASE WHEN l.retries = 0 AND l.kind <> 4 THEN l.fire_at ELSE l.due_at END, l.id)
                AND ($1::bigint[])[width_bucket(o.id, $1::bigint[])] IS DISTINCT FROM o.id
            WHEN (SELECT ($8::smallint[])[width_bucket(l.id, $1::bigint[])]) = 2
                THEN ($1::bigint[])[width_bucket(o.id, $1::bigint[])] IS DISTINCT FROM o.id
            ELSE (o.executor <> (SELECT ($5::text[])[($4::integer[])[width_bucket(l.id, $1::bigint[])]])
                    OR o.published_group IS NOT NULL OR (o.state = 1 AND o.claimed_by IS DISTINCT FROM $6))
                AND ($1::bigint[])[width_bucket(o.id, $1::bigint[])] IS DISTINCT FROM o.id
            END))"
);

/// Positions of the requests that the node may publish. This call or an earlier one of this node moved them to
/// `dispatching`. The row lock waits for a release that may still be in progress, because its answer was lost.
pub(crate) const ACCEPTED: &str = "
    SELECT e.position FROM unnest($1::bigint[], $2::integer[], $3::text[]) WITH ORDINALITY e (id, attempt, executor, position)
        JOIN run_live l ON l.id = e.id
    WHERE l.attempt = e.attempt AND l.state = 1 AND l.claimed_by = $4 AND l.executor = e.executor ORDER BY e.position FOR SHARE OF l";

/// How a batch is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Looks at the lanes itself, and leaves out runs in whose lane another run matters: [`BEGIN_IDLE`].
    IfIdle,
    /// The lanes were looked at: [`BEGIN`].
    AfterLook,
}

/// The release of changed runs is tried at most this often.
const MAX_RELEASE_TRIES: usize = 5;

impl PgStore {
    pub(crate) async fn begin_dispatch_in_lanes(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<BegunDispatch> {
        if requests.is_empty() {
            return Ok(BegunDispatch::default());
        }
        if requests.iter().any(limits::is_limited) {
            return self.begin_in_limits(node, requests).await;
        }
        self.begin_without_limits(node, requests).await
    }

    async fn begin_without_limits(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<BegunDispatch> {
        let groups = lane_groups(requests);
        let first = marked_if_idle(requests, &groups);
        let (marked, kept) = if first.len() == requests.len() {
            self.mark(node, Mark::IfIdle, requests, &groups).await?
        } else {
            let first = subset(requests, &first);
            let groups = lane_groups(&first);
            self.mark(node, Mark::IfIdle, &first, &groups).await?
        };
        if marked.len() == requests.len() {
            return Ok(kept);
        }
        let rest = requests.iter().filter(|r| !marked.contains(&r.attempt));
        let rest: Vec<DispatchRequest> = rest.cloned().collect();
        if rest.is_empty() {
            return Ok(kept);
        }
        let others = self.begin_after_look(node, &rest).await?;
        let accepted = kept.accepted.into_iter().chain(others.accepted);
        let mut waits = kept.waits;
        waits.extend(others.waits);
        Ok(BegunDispatch {
            accepted: in_order(requests, &accepted.collect()),
            waits,
            ..BegunDispatch::default()
        })
    }

    /// Looks at the lanes, marks the requests that are next in theirs, and looks again.
    async fn begin_after_look(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<BegunDispatch> {
        let groups = lane_groups(requests);
        let facts = self.lane_facts(node, requests, &groups).await?;
        let before = before_mark(requests, &groups, &facts);
        let mut waits = before.waits;
        let taken_back = before.take_back.iter();
        let taken_back: Vec<_> = taken_back
            .filter_map(|index| requests.get(*index))
            .collect();
        self.take_back_of(node, &taken_back, &mut waits).await?;
        let proceed = subset(requests, &before.proceed);
        if proceed.is_empty() {
            return Ok(BegunDispatch {
                waits,
                ..BegunDispatch::default()
            });
        }
        let groups = lane_groups(&proceed);
        let (marked, kept) = self.mark(node, Mark::AfterLook, &proceed, &groups).await?;
        waits.extend(kept.waits);
        let accepted = if marked.len() == proceed.len() {
            kept.accepted
        } else {
            self.accepted(node, &proceed).await?
        };
        Ok(BegunDispatch {
            accepted,
            waits,
            ..BegunDispatch::default()
        })
    }

    /// Moves those requests to `dispatching` that meet the conditions of `mark`. Then looks at their lanes, and at the
    /// versions of their jobs, and takes back the marks that are lost. Returns the marked attempts, and those that stay.
    ///
    /// Each statement is its own transaction, which saves round trips that due runs would wait for.
    async fn mark(
        &self,
        node: NodeId,
        mark: Mark,
        requests: &[DispatchRequest],
        groups: &[LaneGroup<'_>],
    ) -> Result<(HashSet<AttemptId>, BegunDispatch)> {
        let mut conn = self.db.generic_plan().await?;
        let marked = self.mark_on(&mut conn, node, mark, requests).await?;
        if marked.is_empty() {
            conn.keep();
            return Ok((marked, BegunDispatch::default()));
        }
        let seen = self.lost_marks(&mut conn, node, requests, groups).await?;
        conn.keep();
        let kept = self
            .keep_marks(node, requests, groups, &marked, seen)
            .await?;
        Ok((marked, kept))
    }

    /// Moves those requests to `dispatching` that meet the conditions of `mark`, and returns them. The connection may be in a
    /// transaction.
    async fn mark_on(
        &self,
        conn: &mut PgConnection,
        node: NodeId,
        mark: Mark,
        requests: &[DispatchRequest],
    ) -> Result<HashSet<AttemptId>> {
        // An attempt that may be published is `dispatching` already.
        let columns = DispatchColumns::of(requests.iter().filter(|r| !may_be_marked(r)));
        if columns.ids.is_empty() {
            return Ok(HashSet::new());
        }
        let mut query = sqlx::query_as(match mark {
            Mark::IfIdle => BEGIN_IDLE,
            Mark::AfterLook => BEGIN,
        })
        .bind(&columns.ids)
        .bind(&columns.attempts)
        .bind(&columns.versions)
        .bind(&columns.executors)
        .bind(&columns.names)
        .bind(node.0)
        .bind(self.db.test_clock().map(Timestamp::as_millis));
        if mark == Mark::IfIdle {
            query = query.bind(columns.lanes);
        }
        let (ids, attempts): (Vec<i64>, Vec<i32>) = query.fetch_one(conn).await?;
        Ok(ids.into_iter().zip(attempts).map(attempt_id).collect())
    }

    /// Takes back the marks that are lost, and returns those that stay. `seen` is what was visible after the marks: the
    /// changed attempts, and the facts of the lanes.
    async fn keep_marks(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
        groups: &[LaneGroup<'_>],
        marked: &HashSet<AttemptId>,
        (changed, facts): (Vec<AttemptId>, Vec<LaneFacts>),
    ) -> Result<BegunDispatch> {
        // A run that was dispatching before stays, because its trigger may be in a queue.
        let changed: Vec<AttemptId> = changed
            .into_iter()
            .filter(|id| marked.contains(id))
            .collect();
        let mut waits = after_mark(requests, groups, &facts, |id| marked.contains(&id));
        if !changed.is_empty() {
            self.release_changed(node, &changed).await?;
        }
        if changed.is_empty() && waits.is_empty() {
            return Ok(BegunDispatch {
                accepted: in_order(requests, marked),
                ..BegunDispatch::default()
            });
        }
        let lost: HashSet<AttemptId> = waits.iter().map(|wait| wait.attempt).collect();
        let taken_back = requests.iter().filter(|r| lost.contains(&r.attempt));
        self.take_back_of(node, &taken_back.collect::<Vec<_>>(), &mut waits)
            .await?;
        let changed: HashSet<AttemptId> = changed.into_iter().collect();
        let stays = |id: &&AttemptId| !changed.contains(id) && !lost.contains(id);
        let kept: HashSet<AttemptId> = marked.iter().filter(stays).copied().collect();
        Ok(BegunDispatch {
            accepted: in_order(requests, &kept),
            waits,
            ..BegunDispatch::default()
        })
    }

    /// The requests that the node may publish, in their order, with those that an earlier call of this node marked.
    async fn accepted(&self, node: NodeId, requests: &[DispatchRequest]) -> Result<Vec<AttemptId>> {
        let mut conn = self.db.autocommit().await?;
        let positions: Vec<i64> = sqlx::query_scalar(ACCEPTED)
            .bind(column(requests, |r| r.attempt.run.0))
            .bind(column(requests, |r| to_i32(r.attempt.attempt)))
            .bind(column(requests, |r| r.executor.as_str()))
            .bind(node.0)
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        let accepted = positions
            .into_iter()
            .filter_map(|position| requests.get(usize::try_from(position - 1).ok()?))
            .map(|request| request.attempt);
        Ok(in_order(requests, &accepted.collect()))
    }

    /// Retries here, because a repeated `begin_dispatch` would accept these runs as its own earlier ones.
    async fn release_changed(&self, node: NodeId, changed: &[AttemptId]) -> Result<()> {
        for _ in 1..MAX_RELEASE_TRIES {
            match self.release_claims(node, changed, None).await {
                Err(error) if error.kind() == ErrorKind::Transient => {}
                done => return done,
            }
        }
        self.release_claims(node, changed, None).await
    }
}

/// The attempts of a set, each once, in the order of the requests. All of them have a request.
fn in_order(requests: &[DispatchRequest], attempts: &HashSet<AttemptId>) -> Vec<AttemptId> {
    let ids = requests.iter().map(|request| request.attempt);
    if attempts.len() == requests.len() {
        return ids.collect();
    }
    let mut seen = HashSet::with_capacity(attempts.len());
    ids.filter(|id| attempts.contains(id) && seen.insert(*id))
        .collect()
}

/// The requests at ascending indexes.
fn subset<'a>(requests: &'a [DispatchRequest], indexes: &[usize]) -> Cow<'a, [DispatchRequest]> {
    if indexes.len() == requests.len() {
        return Cow::Borrowed(requests);
    }
    let chosen = indexes.iter().filter_map(|index| requests.get(*index));
    Cow::Owned(chosen.cloned().collect())
}

/// Requests as columns, sorted by run id, one for each run.
#[derive(Default)]
struct DispatchColumns<'a> {
    ids: Vec<i64>,
    attempts: Vec<i32>,
    versions: Vec<i64>,
    /// Positions in `names`, from 1. Names are listed once, because many runs go to few executors.
    executors: Vec<i32>,
    names: Vec<&'a str>,
    /// See [`BEGIN_IDLE`].
    lanes: Vec<i16>,
}

impl<'a> DispatchColumns<'a> {
    fn of(requests: impl Iterator<Item = &'a DispatchRequest>) -> Self {
        let mut by_run: Vec<&DispatchRequest> = requests.collect();
        by_run.sort_by_key(|request| request.attempt.run);
        by_run.dedup_by_key(|request| request.attempt.run);
        let mut positions = HashMap::<&str, i32>::new();
        let mut columns = Self::default();
        for request in by_run {
            let name = request.executor.as_str();
            let position = *positions.entry(name).or_insert_with(|| {
                columns.names.push(name);
                i32::try_from(columns.names.len()).unwrap_or(i32::MAX)
            });
            columns.ids.push(request.attempt.run.0);
            columns.attempts.push(to_i32(request.attempt.attempt));
            columns.versions.push(request.job_version);
            columns.executors.push(position);
            columns.lanes.push(lane_kind(request));
        }
        columns
    }
}
