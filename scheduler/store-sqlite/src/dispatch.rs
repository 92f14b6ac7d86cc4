//! The guarded transitions around a publication: scheduled, dispatching, queued, and back.

pub(crate) mod limits;

use std::collections::HashSet;

use cueline_model::{AttemptId, ExecutorName, RunId, Timestamp};
use cueline_store::adapter::convert::without_nul;
use cueline_store::adapter::lanes::{before_mark, lane_groups, may_be_marked};
use cueline_store::adapter::timeline::STOPPED_MEANWHILE;
use cueline_store::{BegunDispatch, ClaimedRun, DispatchRequest, NodeId};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, lanes, nodes};

/// ?4 is the executor if all rows have the same.
pub(crate) const BEGIN: &str = "
    UPDATE run SET state = 1, executor = coalesce(?4, e.value ->> 3), dispatched_at = ?3, maybe_published = 0, published_group = NULL
    FROM jsonb_each(?1) e CROSS JOIN job_due d
    WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.state = 0 AND run.claimed_by = ?2
        AND d.job_id = run.job_id AND d.version = e.value ->> 2";

/// Indexes of the requests that the node may publish. This call or an earlier one of this node moved them to
/// `dispatching`.
pub(crate) const ACCEPTED: &str = "
    SELECT json_group_array(e.key)
    FROM jsonb_each(?1) e CROSS JOIN run r ON r.id = e.value ->> 0
    WHERE r.attempt = e.value ->> 1 AND r.state = 1 AND r.claimed_by = ?2 AND r.executor = coalesce(?3, e.value ->> 3)";

/// For attempts with the same number. Nearly always all are first attempts.
pub(crate) const CONFIRM_SAME_ATTEMPT: &str = "
    UPDATE run SET state = 2, queued_at = ?3, claimed_by = NULL
    WHERE id IN (SELECT value FROM json_each(?1)) AND attempt = ?2 AND state = 1";

pub(crate) const CONFIRM: &str = "
    UPDATE run SET state = 2, queued_at = ?2, claimed_by = NULL
    FROM json_each(?1) e
    WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.state = 1";

/// The unpublished attempts that were cancelled, or whose job was stopped, while they were dispatched. A pause does not
/// end manual runs.
macro_rules! stopped_before_publication {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.claimed_by = ?2
                AND run.state = 1 AND run.maybe_published = 0 AND (run.cancel_requested = 1
                    OR NOT EXISTS (SELECT 1 FROM job_due d WHERE d.job_id = run.job_id
                        AND (d.enabled = 1 AND coalesce(d.paused_until <= ?3, 1) OR run.kind = 1))) ",
            $after
        )
    };
}

const INSERT_RELEASE_EVENTS: &str = stopped_before_publication!(
    "INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT run.id, ?3, run.attempt, CASE WHEN run.attempt = 1 THEN 'skipped' ELSE 'cancel' END, ?4
    FROM json_each(?1) e CROSS JOIN run",
    "AND run.cancel_requested = 0"
);

const END_RELEASED: &str = stopped_before_publication!(
    "UPDATE run SET state = CASE WHEN cancel_requested = 1 OR attempt > 1 THEN 15 ELSE 18 END, ended_at = ?3, claimed_by = NULL,
        message = CASE WHEN cancel_requested = 1 THEN coalesce(message, 'cancelled before it was published') ELSE ?4 END
    FROM json_each(?1) e",
    "RETURNING job_id"
);

const RELEASE: &str = "
    UPDATE run SET claimed_by = NULL, due_at = max(due_at, coalesce(?3, due_at)),
        state = CASE WHEN maybe_published = 1 THEN state ELSE 0 END
    FROM json_each(?1) e
    WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.claimed_by = ?2 AND run.state IN (0, 1)";

/// The queued attempts whose job was stopped. A pause does not end manual runs.
macro_rules! stopped_after_publication {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.state = 2
                AND NOT EXISTS (SELECT 1 FROM job_due d WHERE d.job_id = run.job_id
                    AND (d.enabled = 1 AND coalesce(d.paused_until <= ?2, 1) OR run.kind = 1)) ",
            $after
        )
    };
}

const INSERT_STOP_EVENTS: &str = stopped_after_publication!(
    "INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT run.id, ?2, run.attempt, 'cancel', ?3 FROM json_each(?1) e CROSS JOIN run",
    ""
);

const END_STOPPED: &str = stopped_after_publication!(
    "UPDATE run SET state = 15, ended_at = ?2, claimed_by = NULL, message = ?3 FROM json_each(?1) e",
    "RETURNING job_id"
);

const STILL_QUEUED: &str = "
    SELECT json_group_array(DISTINCT r.id)
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value ->> 0
    WHERE r.attempt = e.value ->> 1 AND r.state = 2";

const RECLAIM: &str = "
    UPDATE run SET state = 1, claimed_by = ?2, maybe_published = 1 WHERE id IN (SELECT value FROM json_each(?1))";

/// A run that is republished over and over gets at most a thousand events.
const INSERT_RECLAIM_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT r.id, ?2, r.attempt, 'republished', ?3
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value
    WHERE (SELECT count(*) FROM run_event v WHERE v.run_id = r.id) < 1000";

impl SqliteStore {
    pub(crate) async fn begin_dispatch_in_lanes(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<BegunDispatch> {
        if requests.is_empty() {
            return Ok(BegunDispatch::default());
        }
        let groups = lane_groups(requests);
        let mut tx = self.db.write().await?;
        let facts = lanes::read_facts(&mut tx, node, &groups, requests, self.db.now()).await?;
        let before = before_mark(requests, &groups, &facts);
        let pick = |indexes: &[usize]| -> Vec<&DispatchRequest> {
            let indexes = indexes.iter();
            indexes.filter_map(|index| requests.get(*index)).collect()
        };
        let mut waits = before.waits;
        let taken_back = pick(&before.take_back);
        if !taken_back.is_empty() {
            let claimed = self.take_back(&mut tx, node, &taken_back).await?;
            let taken: HashSet<RunId> = taken_back.iter().map(|r| r.attempt.run).collect();
            waits.retain(|w| !taken.contains(&w.attempt.run) || claimed.contains(&w.attempt.run));
        }
        let proceed = pick(&before.proceed);
        let (accepted, limit_waits) = if requests.iter().any(limits::is_limited) {
            let proceed: Vec<DispatchRequest> = proceed.into_iter().cloned().collect();
            self.mark_within_limits(&mut tx, node, &proceed).await?
        } else {
            (self.mark(&mut tx, node, &proceed).await?, Vec::new())
        };
        tx.commit().await?;
        Ok(BegunDispatch {
            accepted,
            waits,
            limit_waits,
        })
    }

    /// Moves runs to `dispatching`. Returns those that the node may publish.
    async fn mark(
        &self,
        tx: &mut SqliteConnection,
        node: NodeId,
        requests: &[&DispatchRequest],
    ) -> Result<Vec<AttemptId>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        // An attempt that may be published is `dispatching` already. No job has the other version.
        let version = |r: &DispatchRequest| if may_be_marked(r) { -1 } else { r.job_version };
        let same = lanes::same_executor(requests.iter().map(|r| &r.executor));
        let rows: Vec<_> = requests
            .iter()
            .map(|r| {
                let executor = same.is_none().then_some(&r.executor);
                (r.attempt.run, r.attempt.attempt, version(r), executor)
            })
            .collect();
        let same = same.map(ExecutorName::as_str);
        let list = serde_json::to_string(&rows)?;
        let moved = sqlx::query(BEGIN)
            .bind(&list)
            .bind(node.0)
            .bind(self.db.now().as_millis())
            .bind(same)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        let accepted: Vec<usize> = if moved == requests.len() as u64 {
            (0..requests.len()).collect()
        } else {
            let Json(accepted) = sqlx::query_scalar(ACCEPTED)
                .bind(&list)
                .bind(node.0)
                .bind(same)
                .fetch_one(&mut *tx)
                .await?;
            accepted
        };
        let mut seen = HashSet::with_capacity(accepted.len());
        Ok(accepted
            .into_iter()
            .filter_map(|index| requests.get(index))
            .map(|request| request.attempt)
            .filter(|id| seen.insert(*id))
            .collect())
    }

    pub(crate) async fn confirm_dispatch(&self, attempts: &[AttemptId]) -> Result<()> {
        let Some(first) = attempts.first() else {
            return Ok(());
        };
        let mut tx = self.db.write().await?;
        let now = self.db.now().as_millis();
        if attempts.iter().all(|id| id.attempt == first.attempt) {
            let ids: Vec<RunId> = attempts.iter().map(|id| id.run).collect();
            sqlx::query(CONFIRM_SAME_ATTEMPT)
                .bind(Json(ids))
                .bind(first.attempt)
                .bind(now)
                .execute(&mut *tx)
                .await?;
        } else {
            sqlx::query(CONFIRM)
                .bind(pairs(attempts)?)
                .bind(now)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await
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
        let list = pairs(attempts)?;
        let mut tx = self.db.write().await?;
        self.end_released(&mut tx, node, &list).await?;
        sqlx::query(RELEASE)
            .bind(&list)
            .bind(node.0)
            .bind(due_at.map(Timestamp::as_millis))
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }

    /// Ends the attempts that cannot go back to `scheduled`. `list` has runs and attempts.
    pub(crate) async fn end_released(
        &self,
        tx: &mut SqliteConnection,
        node: NodeId,
        list: &str,
    ) -> Result<()> {
        let now = self.db.now();
        sqlx::query(INSERT_RELEASE_EVENTS)
            .bind(list)
            .bind(node.0)
            .bind(now.as_millis())
            .bind(STOPPED_MEANWHILE)
            .execute(&mut *tx)
            .await?;
        let ended: Vec<i64> = sqlx::query_scalar(END_RELEASED)
            .bind(list)
            .bind(node.0)
            .bind(now.as_millis())
            .bind(STOPPED_MEANWHILE)
            .fetch_all(&mut *tx)
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
        let mut tx = self.db.write().await?;
        nodes::require(&mut tx, node).await?;
        let now = self.db.now();
        let list = pairs(attempts)?;
        sqlx::query(INSERT_STOP_EVENTS)
            .bind(&list)
            .bind(now.as_millis())
            .bind(STOPPED_MEANWHILE)
            .execute(&mut *tx)
            .await?;
        let ended: Vec<i64> = sqlx::query_scalar(END_STOPPED)
            .bind(&list)
            .bind(now.as_millis())
            .bind(STOPPED_MEANWHILE)
            .fetch_all(&mut *tx)
            .await?;
        let ended: Vec<(i64, Timestamp)> = ended.into_iter().map(|job| (job, now)).collect();
        self.schedule_fixed_delays(&mut tx, &ended).await?;
        let ids: String = sqlx::query_scalar(STILL_QUEUED)
            .bind(&list)
            .fetch_one(&mut *tx)
            .await?;
        reclaim(&mut tx, node, &ids, now, reason).await?;
        let runs = self.read_claimed(&mut tx, ids, now).await?;
        tx.commit().await?;
        Ok(runs)
    }
}

async fn reclaim(
    conn: &mut SqliteConnection,
    node: NodeId,
    ids: &str,
    now: Timestamp,
    reason: &str,
) -> Result<()> {
    sqlx::query(RECLAIM)
        .bind(ids)
        .bind(node.0)
        .execute(&mut *conn)
        .await?;
    sqlx::query(INSERT_RECLAIM_EVENTS)
        .bind(ids)
        .bind(now.as_millis())
        .bind(without_nul(reason))
        .execute(conn)
        .await?;
    Ok(())
}

/// Attempts as a JSON list of pairs.
fn pairs(attempts: &[AttemptId]) -> Result<String> {
    let rows: Vec<(RunId, u32)> = attempts.iter().map(|id| (id.run, id.attempt)).collect();
    Ok(serde_json::to_string(&rows)?)
}
