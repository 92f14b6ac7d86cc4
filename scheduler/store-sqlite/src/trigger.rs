//! Triggers jobs outside of their schedule.

use cueline_model::RunId;
use cueline_store::adapter::audit::{job_triggered, stored_actor, triggered_detail};
use cueline_store::adapter::convert::without_nul;
use cueline_store::adapter::definitions::job_of;
use cueline_store::adapter::new_run::{Fire, NewRun};
use cueline_store::adapter::repeated_trigger::{
    FirstRunRow, require_same_request, runs_of_repeated,
};
use cueline_store::{
    ClaimedRun, NewAuditEntry, NodeId, Revision, StoreError, TriggerOutcome, TriggerRequest,
};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, audit, new_runs, nodes};

const JOB: &str = "
    SELECT d.job_id, d.version, d.run_count FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.name = ?1 AND j.deleted_at IS NULL";

const FIND_KEY: &str = "SELECT first_run FROM trigger_key WHERE job_id = ?1 AND key = ?2";

/// The columns of [`FirstRunRow`].
const FIRST_RUN: &str = "SELECT params, fire_at, created_at FROM run WHERE id = ?1";
const INSERT_KEY: &str = "INSERT INTO trigger_key (job_id, key, first_run) VALUES (?1, ?2, ?3)";

pub(crate) const RUNS_OF_REQUEST: &str = "
    SELECT json_group_array(id)
    FROM (SELECT id FROM run WHERE fire_key = ?1 AND job_id = ?2 AND kind = 1 ORDER BY shard_index)";

const INSERT_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT value, ?2, 1, 'triggered', ?3 FROM json_each(?1)";

impl SqliteStore {
    pub(crate) async fn trigger_claimed(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let found: Option<(i64, i64, i64)> = sqlx::query_as(JOB)
            .bind(request.job.as_str())
            .fetch_optional(&mut *tx)
            .await?;
        let (job_id, version, run_count) =
            found.ok_or_else(|| StoreError::no_job(request.job.as_str()))?;
        let key = request.idempotency_key.as_deref().map(without_nul);
        if let Some(key) = &key
            && let Some(runs) = runs_of_key(&mut tx, job_id, key, request).await?
        {
            let duplicate = true;
            return Ok((TriggerOutcome { runs, duplicate }, Vec::new()));
        }
        let revision = Revision {
            id: job_id,
            version,
        };
        let name = request.job.as_str();
        let condition = &request.condition;
        condition.require("trigger the job", name, Some(revision))?;
        let jobs = self.definitions.get(&mut tx, [(job_id, version)]).await?;
        let mut live = self.live_executors(&mut tx, now).await?;
        let node = match node {
            Some(node) if nodes::exists(&mut tx, node).await? => Some(node),
            _ => None,
        };
        let fire = Fire::of_request(request, node, now);
        let job = job_of(&jobs, job_id)?;
        let mut runs = NewRun::of_fire(&job, run_count, &mut live, &fire);
        new_runs::insert_and_count(&mut tx, &mut runs, now).await?;
        let ids: Vec<RunId> = runs.iter().map(|run| RunId(run.id)).collect();
        if let (Some(key), Some(first)) = (&key, ids.first()) {
            sqlx::query(INSERT_KEY)
                .bind(job_id)
                .bind(key.as_ref())
                .bind(first.0)
                .execute(&mut *tx)
                .await?;
        }
        sqlx::query(INSERT_EVENTS)
            .bind(Json(&ids))
            .bind(now.as_millis())
            .bind(format!("triggered by {}", stored_actor(&request.by)))
            .execute(&mut *tx)
            .await?;
        if let Some(first) = ids.first() {
            let entry = NewAuditEntry {
                detail: triggered_detail(*first, ids.len()),
                ..job_triggered(request, &job.spec.group)
            };
            audit::write(&mut tx, &[entry], now).await?;
        }
        tx.commit().await?;
        let outcome = TriggerOutcome {
            runs: ids,
            duplicate: false,
        };
        runs.retain(|run| run.claimed_by.is_some());
        Ok((outcome, runs.into_iter().map(ClaimedRun::from).collect()))
    }
}

/// The runs of an earlier request with this key. Fails if that request asked for something else.
async fn runs_of_key(
    conn: &mut SqliteConnection,
    job: i64,
    key: &str,
    request: &TriggerRequest,
) -> Result<Option<Vec<RunId>>> {
    let first: Option<i64> = sqlx::query_scalar(FIND_KEY)
        .bind(job)
        .bind(key)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(first) = first else { return Ok(None) };
    let row: Option<FirstRunRow> = sqlx::query_as(FIRST_RUN)
        .bind(first)
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(row) = row {
        require_same_request(request, row)?;
    }
    let Json(runs) = sqlx::query_scalar(RUNS_OF_REQUEST)
        .bind(first)
        .bind(job)
        .fetch_one(conn)
        .await?;
    Ok(Some(runs_of_repeated(first, runs)))
}
