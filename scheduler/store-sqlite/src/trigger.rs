//! Running a job now.

use cueline_model::{RunId, RunKind};
use cueline_store::adapter::definitions::pick;
use cueline_store::{ClaimedRun, NodeId, StoreError, TriggerOutcome, TriggerRequest};
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::database::commit;
use crate::error::failed;
use crate::live::Live;
use crate::new_run::{self, Fire, NewRun};
use crate::nodes::{self, write_with_turns};
use crate::rows::{clean, decode, encode};

const JOB: &str = "
    SELECT d.job_id, d.version, d.turn FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.name = ?1 AND j.deleted_at IS NULL";

const KEY_USED: &str = "SELECT first_run FROM trigger_key WHERE job_id = ?1 AND key = ?2";
const USE_KEY: &str = "INSERT INTO trigger_key (job_id, key, first_run) VALUES (?1, ?2, ?3)";

pub(crate) const RUNS: &str = "
    SELECT json_group_array(id)
    FROM (SELECT id FROM run WHERE fire_key = ?1 AND job_id = ?2 AND kind = 1 ORDER BY shard_index)";

const NOTE: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT value, ?2, 1, 'triggered', ?3 FROM json_each(?1)";

impl SqliteStore {
    pub(crate) async fn run_now(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>), StoreError> {
        let fail = failed("trigger a job");
        let mut tx = self.db.write().await?;
        let now = self.db.now();
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
            let known = TriggerOutcome {
                runs,
                duplicate: true,
            };
            return Ok((known, Vec::new()));
        }
        let jobs = self
            .definitions
            .of(&mut tx, std::iter::once((job_id, version)))
            .await?;
        let mut live = Live::load(&mut tx, now, self.db.executor_dead_after_ms()).await?;
        let first = new_run::last_id(&mut tx).await? + 1;
        let at = request.run_at.unwrap_or(now);
        let node = match node {
            Some(node) if at <= now => nodes::may_claim(&mut tx, node).await?,
            _ => None,
        };
        let fire = Fire {
            kind: RunKind::Manual,
            key: None,
            at,
            due_at: at,
            claimed_by: node,
            parent: None,
            params: request.params.clone(),
        };
        let runs = NewRun::of_fire(first, &pick(&jobs, job_id)?, turn, &mut live, &fire);
        write_with_turns(&mut tx, &runs, now).await?;
        if let Some(key) = &key {
            sqlx::query(USE_KEY)
                .bind(job_id)
                .bind(key.as_ref())
                .bind(first)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
        }
        let ids: Vec<RunId> = runs.iter().map(|r| RunId(r.id)).collect();
        sqlx::query(NOTE)
            .bind(encode(&ids)?)
            .bind(now.as_millis())
            .bind(format!("triggered by {}", clean(&request.by)))
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        let triggered = TriggerOutcome {
            runs: ids,
            duplicate: false,
        };
        let claimed = runs.into_iter().filter(|run| run.claimed_by.is_some());
        Ok((triggered, claimed.map(ClaimedRun::from).collect()))
    }
}

/// The runs that an earlier request with the same key made.
async fn earlier(
    conn: &mut SqliteConnection,
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
    let text: String = sqlx::query_scalar(RUNS)
        .bind(first)
        .bind(job)
        .fetch_one(conn)
        .await
        .map_err(&fail)?;
    Ok(Some(decode(&text)?))
}
