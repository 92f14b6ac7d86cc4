//! The guarded transitions around a publication: scheduled, dispatching, queued, and back.
//!
//! Lists are sorted by id first, so that transactions on the same runs lock them in the same order.

pub(crate) mod limits;

use std::collections::{BTreeMap, HashMap, HashSet};

use cueline_model::{AttemptId, RunId, Timestamp};
use cueline_store::adapter::convert::{to_u32, without_nul};
use cueline_store::adapter::lanes::{
    LaneGroup, after_mark, before_mark, lane_groups, may_be_marked,
};
use cueline_store::adapter::timeline::STOPPED_MEANWHILE;
use cueline_store::{BegunDispatch, ClaimedRun, DispatchRequest, ErrorKind, NodeId};
use sqlx::postgres::PgConnection;

use crate::columns::{attempt_columns, column, id_range, to_i32};
use crate::database::WriteTx;
use crate::end_runs::end_runs;
use crate::error::Result;
use crate::lanes::Look;
use crate::{PgStore, follow_ups, nodes};

/// The values of a run are at the index of its id in the sorted $1. There is no join. The planner assumes that
/// `run_live` is empty if it is new, or was empty at its last analysis. With a join it would then search the whole list
/// for each row.
///
/// The statement sees the job version from its start. A concurrent change of the version also ends the claims of
/// waiting runs. PostgreSQL checks a changed row again, so the run is refused. But the node may have claimed the run
/// again meanwhile. [`CHANGED`] finds that case.
pub(crate) const BEGIN: &str = "
    UPDATE run_live l SET state = 1, executor = ($5::text[])[($4::integer[])[width_bucket(l.id, $1::bigint[])]],
        dispatched_at = coalesce($7, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), maybe_published = false,
        published_group = NULL
    WHERE l.id = ANY ($1::bigint[]) AND l.state = 0 AND l.claimed_by = $6
        AND l.attempt = ($2::integer[])[width_bucket(l.id, $1::bigint[])]
        AND ($3::bigint[])[width_bucket(l.id, $1::bigint[])] = (SELECT d.version FROM job_due d WHERE d.job_id = l.job_id)
    RETURNING l.id";

/// The dispatching runs whose job has another version than the request, or is deleted. The change may not have waited
/// for them.
pub(crate) const CHANGED: &str = "
    SELECT l.id, l.attempt FROM run_live l
    WHERE l.id = ANY ($1::bigint[]) AND l.state = 1 AND l.claimed_by = $3
        AND (SELECT d.version FROM job_due d WHERE d.job_id = l.job_id)
            IS DISTINCT FROM ($2::bigint[])[width_bucket(l.id, $1::bigint[])]";

/// Positions of the requests that the node may publish. This call or an earlier one of this node moved them to
/// `dispatching`. The row lock waits for a release that may still be in progress, because its answer was lost.
pub(crate) const ACCEPTED: &str = "
    SELECT e.position FROM unnest($1::bigint[], $2::integer[], $3::text[]) WITH ORDINALITY e (id, attempt, executor, position)
        JOIN run_live l ON l.id = e.id
    WHERE l.attempt = e.attempt AND l.state = 1 AND l.claimed_by = $4 AND l.executor = e.executor ORDER BY e.position FOR SHARE OF l";

/// For attempts with the same number. Nearly always all are first attempts. The claim stays, but means nothing:
/// removing it would cost an entry in each index.
pub(crate) const CONFIRM: &str = "
    UPDATE run_live l SET state = 2, queued_at = coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.id = ANY ($1) AND l.attempt = $2 AND l.state = 1";

/// The jobs whose runs a release may end. The release locks them, because a concurrent pause would not see and end the
/// released runs.
pub(crate) const JOBS_OF_RELEASED: &str = "
    SELECT DISTINCT l.job_id FROM unnest($1::bigint[]) e (id) JOIN run_live l ON l.id = e.id
    WHERE l.claimed_by = $2 AND l.state = 1 AND NOT l.maybe_published";

/// Ends the unpublished attempts that were cancelled, or whose job was stopped, while they were dispatched. A pause
/// does not end manual runs.
pub(crate) const END_RELEASED: &str = end_runs!(
    "e AS (SELECT * FROM unnest($1::bigint[], $2::integer[]) u (id, attempt)),",
    delete: "USING e WHERE l.id = e.id AND l.attempt = e.attempt AND l.claimed_by = $3 AND l.state = 1 AND NOT l.maybe_published
        AND (l.cancel_requested
            OR NOT EXISTS (SELECT FROM job_due d WHERE d.job_id = l.job_id AND (d.enabled AND coalesce(d.paused_until <= $4, true) OR l.kind = 1)))",
    ends: "CASE WHEN l.cancel_requested OR l.attempt > 1 THEN 15 ELSE 18 END::smallint AS end_state, l.started_at AS began_at,
        $4::bigint AS end_at, l.exit_status AS status, CASE WHEN l.cancel_requested
            THEN coalesce(l.message, 'cancelled before it was published') ELSE $5::text END AS reason, NULL::text AS result",
    within: "AND run.id BETWEEN $6 AND $7",
    then: ", events AS (INSERT INTO run_event (run_id, at, attempt, event, detail)
            SELECT id, $4, attempt, CASE WHEN attempt = 1 THEN 'skipped' ELSE 'cancel' END, $5 FROM gone WHERE NOT cancel_requested)
        SELECT job_id FROM done"
);

/// For attempts with one number, like [`CONFIRM`].
pub(crate) const RELEASE: &str = "
    UPDATE run_live l SET claimed_by = NULL, due_at = greatest(l.due_at, $4),
        state = CASE WHEN l.maybe_published THEN l.state ELSE 0 END
    WHERE l.id = ANY ($1) AND l.attempt = $2 AND l.claimed_by = $3 AND l.state IN (0, 1)";

/// The jobs of queued runs. A reclaim locks them, because a concurrent edit would not see and list the reclaimed runs.
const JOBS_OF_QUEUED: &str = "
    SELECT DISTINCT l.job_id FROM unnest($1::bigint[]) e (id) JOIN run_live l ON l.id = e.id WHERE l.state = 2";

/// Ends the queued attempts whose job was stopped. A pause does not end manual runs.
pub(crate) const END_STOPPED: &str = end_runs!(
    "e AS (SELECT * FROM unnest($1::bigint[], $2::integer[]) u (id, attempt)),",
    delete: "USING e WHERE l.id = e.id AND l.attempt = e.attempt AND l.state = 2
        AND NOT EXISTS (SELECT FROM job_due d WHERE d.job_id = l.job_id AND (d.enabled AND coalesce(d.paused_until <= $3, true) OR l.kind = 1))",
    ends: "15::smallint AS end_state, l.started_at AS began_at, $3::bigint AS end_at, l.exit_status AS status, $4::text AS reason,
        NULL::text AS result",
    within: "AND run.id BETWEEN $5 AND $6",
    then: ", events AS (INSERT INTO run_event (run_id, at, attempt, event, detail)
            SELECT id, $3, attempt, 'cancel', $4 FROM gone)
        SELECT job_id FROM done"
);

pub(crate) const RECLAIM: &str = "
    UPDATE run_live l SET state = 1, claimed_by = $3, maybe_published = true
    FROM unnest($1::bigint[], $2::integer[]) e (id, attempt)
    WHERE l.id = e.id AND l.attempt = e.attempt AND l.state = 2
    RETURNING l.id";

/// A run that is republished over and over gets at most a thousand events.
const INSERT_RECLAIM_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT l.id, $2, l.attempt, 'republished', $3
    FROM unnest($1::bigint[]) e (id) JOIN run_live l ON l.id = e.id
    WHERE (SELECT count(*) FROM (SELECT FROM run_event v WHERE v.run_id = l.id LIMIT 1000) known) < 1000";

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
        if groups.is_empty() {
            let accepted = self.begin_without_lanes(node, requests).await?;
            return Ok(BegunDispatch {
                accepted,
                ..BegunDispatch::default()
            });
        }
        let before = {
            let facts = self
                .lane_facts(Look::BeforeMarks, node, requests, &groups)
                .await?;
            before_mark(requests, &groups, &facts)
        };
        let mut waits = before.waits;
        let taken_back = pick(requests, before.take_back.iter().copied());
        self.take_back_of(node, &taken_back, &mut waits).await?;
        if before.proceed.len() == requests.len() {
            return self.mark_in_lanes(node, requests, &groups).await;
        }
        let proceed: Vec<DispatchRequest> = pick(requests, before.proceed.iter().copied())
            .into_iter()
            .cloned()
            .collect();
        if proceed.is_empty() {
            return Ok(BegunDispatch {
                waits,
                ..BegunDispatch::default()
            });
        }
        let groups = lane_groups(&proceed);
        let mut begun = self.mark_in_lanes(node, &proceed, &groups).await?;
        begun.waits.extend(waits);
        Ok(begun)
    }

    /// Marks the requests, and takes back the marks that the second look refuses.
    async fn mark_in_lanes(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
        groups: &[LaneGroup<'_>],
    ) -> Result<BegunDispatch> {
        // An attempt that may be published is `dispatching` already.
        let new = requests.iter().filter(|r| !may_be_marked(r));
        let columns = DispatchColumns::of(new);
        let (marked, changed) = self.mark_dispatching(node, &columns).await?;
        let lost = if groups.is_empty() || marked.is_empty() {
            Vec::new()
        } else {
            let facts = self
                .lane_facts(Look::AfterMarks, node, requests, groups)
                .await?;
            after_mark(requests, groups, &facts, |run: RunId| {
                marked.contains(&run.0)
            })
        };
        if !changed.is_empty() {
            self.release_changed(node, &changed).await?;
        }
        let all_marked = marked.len() == requests.len() && changed.is_empty();
        if lost.is_empty() {
            let accepted = self.accepted(node, requests, all_marked).await?;
            return Ok(BegunDispatch {
                accepted,
                ..BegunDispatch::default()
            });
        }
        let mut waits = lost;
        let runs: HashSet<RunId> = waits.iter().map(|wait| wait.attempt.run).collect();
        let lost: Vec<&DispatchRequest> = requests
            .iter()
            .filter(|r| runs.contains(&r.attempt.run))
            .collect();
        self.take_back_of(node, &lost, &mut waits).await?;
        let accepted = self.accepted(node, requests, false).await?;
        Ok(BegunDispatch {
            accepted,
            waits,
            ..BegunDispatch::default()
        })
    }

    async fn begin_without_lanes(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<Vec<AttemptId>> {
        let begun = self.mark_in_lanes(node, requests, &[]).await?;
        Ok(begun.accepted)
    }

    /// The requests that the node may publish, in their order.
    async fn accepted(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
        all: bool,
    ) -> Result<Vec<AttemptId>> {
        let accepted: Vec<i64> = if all {
            (1..).take(requests.len()).collect()
        } else {
            sqlx::query_scalar(ACCEPTED)
                .bind(column(requests, |r| r.attempt.run.0))
                .bind(column(requests, |r| to_i32(r.attempt.attempt)))
                .bind(column(requests, |r| r.executor.as_str()))
                .bind(node.0)
                .fetch_all(&mut *self.db.autocommit().await?)
                .await?
        };
        let mut seen = HashSet::with_capacity(accepted.len());
        Ok(accepted
            .into_iter()
            .filter_map(|position| requests.get(usize::try_from(position - 1).ok()?))
            .map(|request| request.attempt)
            .filter(|id| seen.insert(*id))
            .collect())
    }

    /// Moves runs to `dispatching`. Returns them, and those whose job has changed since the requests were made.
    ///
    /// Each statement is its own transaction, which saves round trips that due runs would wait for.
    async fn mark_dispatching(
        &self,
        node: NodeId,
        columns: &DispatchColumns<'_>,
    ) -> Result<(HashSet<i64>, Vec<AttemptId>)> {
        if columns.ids.is_empty() {
            return Ok((HashSet::new(), Vec::new()));
        }
        let mut conn = self.db.generic_plan().await?;
        self.mark_on(&mut conn, node, columns).await
    }

    /// The same on a connection, which may be in a transaction.
    async fn mark_on(
        &self,
        conn: &mut PgConnection,
        node: NodeId,
        columns: &DispatchColumns<'_>,
    ) -> Result<(HashSet<i64>, Vec<AttemptId>)> {
        if columns.ids.is_empty() {
            return Ok((HashSet::new(), Vec::new()));
        }
        let marked: Vec<i64> = sqlx::query_scalar(BEGIN)
            .bind(&columns.ids)
            .bind(&columns.attempts)
            .bind(&columns.versions)
            .bind(&columns.executors)
            .bind(&columns.names)
            .bind(node.0)
            .bind(self.db.test_clock().map(Timestamp::as_millis))
            .fetch_all(&mut *conn)
            .await?;
        let changed: Vec<(i64, i32)> = sqlx::query_as(CHANGED)
            .bind(&columns.ids)
            .bind(&columns.versions)
            .bind(node.0)
            .fetch_all(&mut *conn)
            .await?;
        // A run that was dispatching before stays, because its trigger may be in a queue.
        let marked: HashSet<i64> = marked.into_iter().collect();
        let changed = changed
            .into_iter()
            .filter(|(id, _)| marked.contains(id))
            .map(attempt_id)
            .collect();
        Ok((marked, changed))
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

    pub(crate) async fn confirm_dispatch(&self, attempts: &[AttemptId]) -> Result<()> {
        if attempts.is_empty() {
            return Ok(());
        }
        let mut conn = self.db.generic_plan().await?;
        let now = self.db.test_clock().map(Timestamp::as_millis);
        for (attempt, ids) in ids_by_attempt(attempts) {
            sqlx::query(CONFIRM)
                .bind(ids)
                .bind(attempt)
                .bind(now)
                .execute(&mut *conn)
                .await?;
        }
        Ok(())
    }

    pub(crate) async fn release_claims(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        due_at: Option<Timestamp>,
    ) -> Result<()> {
        if attempts.is_empty() {
            return Ok(());
        }
        let (ids, numbers) = attempt_columns(attempts);
        let mut tx = self.db.write().await?;
        let jobs: Vec<i64> = sqlx::query_scalar(JOBS_OF_RELEASED)
            .bind(&ids)
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await?;
        follow_ups::lock_jobs(&mut tx, jobs).await?;
        self.end_released(&mut tx, node, &ids, &numbers).await?;
        for (attempt, ids) in ids_by_attempt(attempts) {
            sqlx::query(RELEASE)
                .bind(ids)
                .bind(attempt)
                .bind(node.0)
                .bind(due_at.map(Timestamp::as_millis))
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await
    }

    /// Ends the attempts that cannot go back to `scheduled`. The caller has locked their jobs.
    pub(crate) async fn end_released(
        &self,
        tx: &mut WriteTx,
        node: NodeId,
        ids: &[i64],
        numbers: &[i32],
    ) -> Result<()> {
        let now = tx.now;
        let (low, high) = id_range(ids.iter().copied());
        let ended: Vec<i64> = sqlx::query_scalar(END_RELEASED)
            .bind(ids)
            .bind(numbers)
            .bind(node.0)
            .bind(now.as_millis())
            .bind(STOPPED_MEANWHILE)
            .bind(low)
            .bind(high)
            .fetch_all(&mut **tx)
            .await?;
        let ended: Vec<(i64, Timestamp)> = ended.into_iter().map(|job| (job, now)).collect();
        self.schedule_fixed_delays(tx, &ended).await.map(drop)
    }

    pub(crate) async fn reclaim_attempts(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        reason: &str,
    ) -> Result<Vec<ClaimedRun>> {
        if attempts.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, numbers) = attempt_columns(attempts);
        let (low, high) = id_range(ids.iter().copied());
        let mut tx = self.db.write().await?;
        let now = tx.now;
        nodes::require(&mut tx, node).await?;
        let jobs: Vec<i64> = sqlx::query_scalar(JOBS_OF_QUEUED)
            .bind(&ids)
            .fetch_all(&mut *tx)
            .await?;
        follow_ups::lock_jobs(&mut tx, jobs).await?;
        let ended: Vec<i64> = sqlx::query_scalar(END_STOPPED)
            .bind(&ids)
            .bind(&numbers)
            .bind(now.as_millis())
            .bind(STOPPED_MEANWHILE)
            .bind(low)
            .bind(high)
            .fetch_all(&mut *tx)
            .await?;
        let ended: Vec<(i64, Timestamp)> = ended.into_iter().map(|job| (job, now)).collect();
        self.schedule_fixed_delays(&mut tx, &ended).await?;
        let reclaimed: Vec<i64> = sqlx::query_scalar(RECLAIM)
            .bind(ids)
            .bind(numbers)
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await?;
        let reclaimed: HashSet<i64> = reclaimed.into_iter().collect();
        let reclaimed: Vec<i64> = attempts
            .iter()
            .map(|id| id.run.0)
            .filter(|id| reclaimed.contains(id))
            .collect();
        insert_reclaim_events(&mut tx, &reclaimed, now, reason).await?;
        let runs = self.read_claimed(&mut tx, &reclaimed, now).await?;
        tx.commit().await?;
        Ok(runs)
    }
}

async fn insert_reclaim_events(
    conn: &mut PgConnection,
    ids: &[i64],
    now: Timestamp,
    reason: &str,
) -> Result<()> {
    if !ids.is_empty() {
        sqlx::query(INSERT_RECLAIM_EVENTS)
            .bind(ids)
            .bind(now.as_millis())
            .bind(without_nul(reason))
            .execute(conn)
            .await?;
    }
    Ok(())
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
}

impl<'a> DispatchColumns<'a> {
    fn of(requests: impl Iterator<Item = &'a DispatchRequest>) -> Self {
        let by_run: BTreeMap<RunId, &DispatchRequest> =
            requests.map(|r| (r.attempt.run, r)).collect();
        let mut positions = HashMap::<&str, i32>::new();
        let mut columns = Self::default();
        for request in by_run.into_values() {
            let name = request.executor.as_str();
            let position = *positions.entry(name).or_insert_with(|| {
                columns.names.push(name);
                i32::try_from(columns.names.len()).unwrap_or(i32::MAX)
            });
            columns.ids.push(request.attempt.run.0);
            columns.attempts.push(to_i32(request.attempt.attempt));
            columns.versions.push(request.job_version);
            columns.executors.push(position);
        }
        columns
    }
}

/// An attempt from its row.
pub(crate) fn attempt_id((run, attempt): (i64, i32)) -> AttemptId {
    AttemptId {
        run: RunId(run),
        attempt: to_u32(attempt),
    }
}

/// The run ids of each attempt number, sorted.
fn ids_by_attempt(attempts: &[AttemptId]) -> BTreeMap<i32, Vec<i64>> {
    let mut sorted = attempts.to_vec();
    sorted.sort_unstable();
    let mut ids: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for id in sorted {
        ids.entry(to_i32(id.attempt)).or_default().push(id.run.0);
    }
    ids
}

fn pick(
    requests: &[DispatchRequest],
    indexes: impl Iterator<Item = usize>,
) -> Vec<&DispatchRequest> {
    indexes.filter_map(|index| requests.get(index)).collect()
}
