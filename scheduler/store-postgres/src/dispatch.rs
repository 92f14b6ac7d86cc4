//! The guarded transitions after a mark: from dispatching to queued, and back.
//!
//! Lists are sorted by id first, so that transactions on the same runs lock them in the same order.

use std::collections::{BTreeMap, HashSet};

use cueline_model::{AttemptId, RunId, Timestamp};
use cueline_store::adapter::convert::{to_u32, without_nul};
use cueline_store::adapter::timeline::STOPPED_MEANWHILE;
use cueline_store::{ClaimedRun, NodeId};
use sqlx::postgres::PgConnection;

use crate::columns::{attempt_columns, id_range, to_i32};
use crate::database::WriteTx;
use crate::end_runs::end_runs;
use crate::error::Result;
use crate::{PgStore, follow_ups, nodes};

/// For attempts with the same number. Nearly always all are first attempts. The claim stays, but means nothing:
/// removing it would cost an entry in each index. The time is read once, as in [`BEGIN`](crate::marks::BEGIN).
pub(crate) const CONFIRM: &str = "
    UPDATE run_live l SET state = 2, queued_at = (SELECT coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
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

impl PgStore {
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
        conn.keep();
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
