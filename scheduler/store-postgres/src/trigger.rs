//! Running a job now.

use cueline_model::{Route, RunId, RunKind};
use cueline_store::adapter::definitions::pick;
use cueline_store::{NodeId, StoreError, TriggerRequest, Triggered, WaitingRun};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::commit;
use crate::days::Day;
use crate::error::failed;
use crate::live::Live;
use crate::new_run::{Fire, NewRun};
use crate::nodes;
use crate::rows::clean;

/// The lock makes requests for one job wait for each other: each sees the key that the one before used.
const JOB: &str = "
    SELECT d.job_id, d.version, d.turn FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.name = $1 AND j.deleted_at IS NULL FOR NO KEY UPDATE OF d";

const KEY_USED: &str = "SELECT first_run FROM trigger_key WHERE job_id = $1 AND key = $2";
const USE_KEY: &str = "INSERT INTO trigger_key (job_id, key, first_run) VALUES ($1, $2, $3)";

pub(crate) const RUNS: &str = "
    SELECT id FROM run WHERE fire_key = $1 AND job_id = $2 AND kind = 1 AND id >= $3 AND id < $4 ORDER BY shard_index";

const NOTE: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT e.id, $2, 1, 'triggered', $3 FROM unnest($1::bigint[]) e (id)";

impl PgStore {
    pub(crate) async fn run_now(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(Triggered, Vec<WaitingRun>), StoreError> {
        let fail = failed("trigger a job");
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let found: Option<(i64, i64, i64)> = sqlx::query_as(JOB)
            .bind(request.job.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(&fail)?;
        let (job_id, version, turn) =
            found.ok_or_else(|| StoreError::no_job(request.job.as_str()))?;
        let key = request.idempotency_key.as_deref().map(clean);
        if let Some(key) = &key
            && let Some(runs) = earlier(&mut tx, job_id, key).await?
        {
            let known = Triggered {
                runs,
                duplicate: true,
            };
            return Ok((known, Vec::new()));
        }
        let jobs = self
            .definitions
            .of(&mut tx, std::iter::once((job_id, version)))
            .await?;
        let job = pick(&jobs, job_id)?;
        let mut live = if job.spec.route == Route::Broadcast {
            Live::load(&mut tx, now, self.db.executor_dead_after_ms()).await?
        } else {
            Live::nobody()
        };
        let at = request.run_at.unwrap_or(now);
        let node = match node {
            Some(node) if at <= now => nodes::may_claim(&mut tx, node).await?,
            _ => None,
        };
        let fire = Fire {
            kind: RunKind::Manual,
            key: None,
            day: Day::of(now),
            at,
            due_at: at,
            claimed_by: node,
            parent: None,
            params: request.params.clone(),
        };
        let mut runs = NewRun::of_fire(&job, turn, &mut live, &fire);
        self.write_with_turns(&mut tx, &mut runs).await?;
        let ids: Vec<i64> = runs.iter().map(|r| r.id).collect();
        if let (Some(key), Some(first)) = (&key, ids.first()) {
            sqlx::query(USE_KEY)
                .bind(job_id)
                .bind(key.as_ref())
                .bind(first)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
        }
        sqlx::query(NOTE)
            .bind(&ids)
            .bind(now.as_millis())
            .bind(format!("triggered by {}", clean(&request.by)))
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        let triggered = Triggered {
            runs: ids.into_iter().map(RunId).collect(),
            duplicate: false,
        };
        runs.retain(|run| run.claimed_by.is_some());
        Ok((triggered, runs.into_iter().map(WaitingRun::from).collect()))
    }
}

/// The runs that an earlier request with the same key made.
async fn earlier(
    conn: &mut PgConnection,
    job: i64,
    key: &str,
) -> Result<Option<Vec<RunId>>, StoreError> {
    let fail = failed("look up an idempotency key");
    let first: Option<i64> = sqlx::query_scalar(KEY_USED)
        .bind(job)
        .bind(key)
        .fetch_optional(&mut *conn)
        .await
        .map_err(&fail)?;
    let Some(first) = first else { return Ok(None) };
    let (low, end) = Day::of_run(first).ids();
    let runs: Vec<i64> = sqlx::query_scalar(RUNS)
        .bind(first)
        .bind(job)
        .bind(low)
        .bind(end)
        .fetch_all(conn)
        .await
        .map_err(&fail)?;
    Ok(Some(runs.into_iter().map(RunId).collect()))
}
