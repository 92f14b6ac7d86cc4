//! From claimed to queued: the guarded steps around a publication.

use std::collections::HashSet;

use cueline_model::{AttemptId, ExecutorName, RunId, Timestamp};
use cueline_store::adapter::skipped::STOPPED_MEANWHILE;
use cueline_store::{ClaimedRun, DispatchRequest, NodeId, StoreError};
use sqlx::SqliteConnection;

use crate::database::commit;
use crate::error::failed;
use crate::rows::{clean, decode, encode};
use crate::{SqliteStore, follow, nodes};

pub(crate) const BEGIN: &str = "
    UPDATE run SET state = 1, executor = e.value ->> 3, maybe_published = 0, sent_to_group = NULL
    FROM json_each(?1) e CROSS JOIN job_due d
    WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.state = 0 AND run.claimed_by = ?2
        AND d.job_id = run.job_id AND d.version = e.value ->> 2";

/// Of the marks, those that the node may publish now: just taken, or `dispatching` by it already.
pub(crate) const TAKEN: &str = "
    SELECT json_group_array(e.key)
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value ->> 0
    WHERE r.attempt = e.value ->> 1 AND r.state = 1 AND r.claimed_by = ?2 AND r.executor = e.value ->> 3";

pub(crate) const CONFIRM_SAME_ATTEMPT: &str = "
    UPDATE run SET state = 2, queued_at = ?3, claimed_by = NULL
    WHERE id IN (SELECT value FROM json_each(?1)) AND attempt = ?2 AND state = 1";

pub(crate) const CONFIRM: &str = "
    UPDATE run SET state = 2, queued_at = ?2, claimed_by = NULL
    FROM json_each(?1) e
    WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.state = 1";

/// Nothing is left to be done for what was not published, and was cancelled or had its job stopped while it was being published. Like a report
/// that would give a run another attempt, it leaves alone what was triggered by hand and whose job is only paused.
macro_rules! nothing_left {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.claimed_by = ?2
                AND run.state = 1 AND run.maybe_published = 0 AND (run.cancel_requested = 1
                    OR NOT EXISTS (SELECT 1 FROM job_due d WHERE d.job_id = run.job_id AND (d.enabled = 1 OR run.kind = 1))) ",
            $after
        )
    };
}

const NOTE_RELEASED: &str = nothing_left!(
    "INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT run.id, ?3, run.attempt, CASE WHEN run.attempt = 1 THEN 'skipped' ELSE 'cancel' END, ?4
    FROM json_each(?1) e CROSS JOIN run",
    "AND run.cancel_requested = 0"
);

const END_RELEASED: &str = nothing_left!(
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

/// Their jobs were stopped after they had gone out, and they are not where they were sent: they do not go out again.
macro_rules! stopped {
    ($before:literal) => {
        concat!(
            $before,
            " WHERE run.id = e.value ->> 0 AND run.attempt = e.value ->> 1 AND run.state IN (2, 3)
                AND NOT EXISTS (SELECT 1 FROM job_due d WHERE d.job_id = run.job_id AND (d.enabled = 1 OR run.kind = 1))"
        )
    };
}

const NOTE_STOPPED: &str = stopped!(
    "INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT run.id, ?2, run.attempt, 'cancel', ?3 FROM json_each(?1) e CROSS JOIN run"
);

const END_STOPPED: &str = stopped!(
    "UPDATE run SET state = 15, ended_at = ?2, claimed_by = NULL, message = ?3 FROM json_each(?1) e"
);

const STILL_OUT: &str = "
    SELECT json_group_array(DISTINCT r.id)
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value ->> 0
    WHERE r.attempt = e.value ->> 1 AND r.state IN (2, 3)";

const TAKE_BACK: &str = "
    UPDATE run SET state = 1, claimed_by = ?2, maybe_published = 1 WHERE id IN (SELECT value FROM json_each(?1))";

const NOTE_TAKEN_BACK: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT r.id, ?2, r.attempt, 'republished', ?3
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value
    WHERE (SELECT count(*) FROM run_event v WHERE v.run_id = r.id) < 1000";

impl SqliteStore {
    pub(crate) async fn begin(
        &self,
        node: NodeId,
        marks: &[DispatchRequest],
    ) -> Result<Vec<AttemptId>, StoreError> {
        if marks.is_empty() {
            return Ok(Vec::new());
        }
        let fail = failed("begin to dispatch runs");
        let rows: Vec<(RunId, u32, i64, &ExecutorName)> = marks
            .iter()
            .map(|m| (m.attempt.run, m.attempt.attempt, m.job_version, &m.executor))
            .collect();
        let list = encode(&rows)?;
        let mut tx = self.db.write().await?;
        let taken = sqlx::query(BEGIN)
            .bind(&list)
            .bind(node.0)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?
            .rows_affected();
        let all = taken == marks.len() as u64;
        let taken: Vec<usize> = if all {
            (0..marks.len()).collect()
        } else {
            let text: String = sqlx::query_scalar(TAKEN)
                .bind(&list)
                .bind(node.0)
                .fetch_one(&mut *tx)
                .await
                .map_err(&fail)?;
            decode(&text)?
        };
        commit(tx).await?;
        let mut seen = HashSet::with_capacity(taken.len());
        Ok(taken
            .into_iter()
            .filter_map(|at| marks.get(at))
            .map(|m| m.attempt)
            .filter(|id| seen.insert(*id))
            .collect())
    }

    pub(crate) async fn confirm(&self, attempts: &[AttemptId]) -> Result<(), StoreError> {
        let Some(first) = attempts.first() else {
            return Ok(());
        };
        let fail = failed("write down that triggers are queued");
        let mut tx = self.db.write().await?;
        let now = self.db.now().as_millis();
        if attempts.iter().all(|a| a.attempt == first.attempt) {
            let ids: Vec<RunId> = attempts.iter().map(|a| a.run).collect();
            sqlx::query(CONFIRM_SAME_ATTEMPT)
                .bind(encode(&ids)?)
                .bind(first.attempt)
                .bind(now)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
        } else {
            sqlx::query(CONFIRM)
                .bind(pairs(attempts)?)
                .bind(now)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
        }
        commit(tx).await
    }

    pub(crate) async fn give_up(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        due_at: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        if attempts.is_empty() {
            return Ok(());
        }
        let fail = failed("release runs");
        let list = pairs(attempts)?;
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let at = now.as_millis();
        sqlx::query(NOTE_RELEASED)
            .bind(&list)
            .bind(node.0)
            .bind(at)
            .bind(STOPPED_MEANWHILE)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let ended: Vec<i64> = sqlx::query_scalar(END_RELEASED)
            .bind(&list)
            .bind(node.0)
            .bind(at)
            .bind(STOPPED_MEANWHILE)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        sqlx::query(RELEASE)
            .bind(&list)
            .bind(node.0)
            .bind(due_at.map(Timestamp::as_millis))
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let ended: Vec<(i64, Timestamp)> = ended.into_iter().map(|job| (job, now)).collect();
        follow::next_after_end(&mut tx, &self.definitions, &ended).await?;
        commit(tx).await
    }

    pub(crate) async fn publish_again(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        reason: &str,
    ) -> Result<Vec<ClaimedRun>, StoreError> {
        if attempts.is_empty() {
            return Ok(Vec::new());
        }
        let fail = failed("take runs back");
        let mut tx = self.db.write().await?;
        nodes::known(&mut tx, node).await?;
        let now = self.db.now();
        let list = pairs(attempts)?;
        for statement in [NOTE_STOPPED, END_STOPPED] {
            sqlx::query(statement)
                .bind(&list)
                .bind(now.as_millis())
                .bind(STOPPED_MEANWHILE)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
        }
        let ids: String = sqlx::query_scalar(STILL_OUT)
            .bind(&list)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        sqlx::query(TAKE_BACK)
            .bind(&ids)
            .bind(node.0)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        note_taken_back(&mut tx, &ids, now, reason).await?;
        let runs = self.read_waiting(&mut tx, ids).await?;
        commit(tx).await?;
        Ok(runs)
    }
}

async fn note_taken_back(
    conn: &mut SqliteConnection,
    ids: &str,
    now: Timestamp,
    reason: &str,
) -> Result<(), StoreError> {
    sqlx::query(NOTE_TAKEN_BACK)
        .bind(ids)
        .bind(now.as_millis())
        .bind(clean(reason).as_ref())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write the timeline of runs taken back"))
}

/// Attempts as `json_each` takes them.
pub(crate) fn pairs(attempts: &[AttemptId]) -> Result<String, StoreError> {
    let rows: Vec<(RunId, u32)> = attempts.iter().map(|a| (a.run, a.attempt)).collect();
    encode(&rows)
}
