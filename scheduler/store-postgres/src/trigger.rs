//! Running a job now.

use std::collections::BTreeSet;

use cueline_model::{ExecutorName, Route, RunId, RunKind, Timestamp};
use cueline_store::adapter::definitions::pick;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::{ClaimedRun, NodeId, StoreError, TriggerOutcome, TriggerRequest};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::{Write, commit, roll_back};
use crate::days::Day;
use crate::error::failed;
use crate::live::Live;
use crate::new_run::{self, Fire, NewRun};
use crate::nodes;
use crate::rows::{clean, int4};

/// The lock makes requests for one job wait for each other: each sees the key that the one before used, by a statement of its own. With the clock, and
/// whether nothing is left claimed by the node ([`nodes::known`]).
pub(crate) const JOB: &str = "
    SELECT d.job_id, d.version, d.turn, coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
        (SELECT n.cleared FROM node n WHERE n.id = $2 FOR KEY SHARE)
    FROM job_due d WHERE d.job_id = (SELECT j.id FROM job j WHERE j.name = $1 AND j.deleted_at IS NULL) FOR NO KEY UPDATE OF d";

pub(crate) const KEY_USED: &str =
    "SELECT first_run FROM trigger_key WHERE job_id = $1 AND key = $2";
pub(crate) const RUNS: &str = "
    SELECT id FROM run WHERE fire_key = $1 AND job_id = $2 AND kind = 1 AND id >= $3 AND id < $4 ORDER BY shard_index";

/// All that a request writes, in one round trip: somebody waits for it. It is numbered in the order of the shards.
pub(crate) const WRITE: &str = "
    WITH new AS MATERIALIZED (
        SELECT $1::bigint + nextval('run_number') AS id, e.shard, e.item, e.executor, e.place
        FROM unnest($2::integer[], $3::text[], $4::text[]) WITH ORDINALITY e (shard, item, executor, place)
    ), written AS (
        INSERT INTO run (id, job_id, fire_key, fire_at, due_at, turn, kind, shard_index, shard_total, shard_item, params, created_at)
        SELECT n.id, $5, (SELECT min(id) FROM new), $6, $6, $7::bigint + n.place - 1, 1, n.shard, $8, n.item, $9::text, $10 FROM new n
    ), live AS (
        INSERT INTO run_live (id, job_id, kind, state, due_at, claimed_by, awaited, executor, pinned)
        SELECT n.id, $5, 1, 0, $6, $11::bigint, $12, n.executor, n.executor IS NOT NULL FROM new n
    ), counted AS (
        UPDATE job_due SET turn = turn + (SELECT count(*) FROM new) WHERE job_id = $5
    ), keyed AS (
        INSERT INTO trigger_key (job_id, key, first_run)
        SELECT $5, $13::text, min(id) FROM new WHERE $13 IS NOT NULL HAVING min(id) IS NOT NULL
    ), noted AS (
        INSERT INTO run_event (run_id, at, attempt, event, detail) SELECT n.id, $10, 1, 'triggered', $14 FROM new n
    )
    SELECT id FROM new ORDER BY place";

impl PgStore {
    pub(crate) async fn run_now(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>), StoreError> {
        let mut tx = self.db.begin_planned_once().await?;
        let found: Option<(i64, i64, i64, i64, Option<bool>)> = sqlx::query_as(JOB)
            .bind(request.job.as_str())
            .bind(node.map(|node| node.0))
            .bind(self.db.set_clock().map(Timestamp::as_millis))
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed("trigger a job"))?;
        let (job_id, version, turn, now, cleared) =
            found.ok_or_else(|| StoreError::no_job(request.job.as_str()))?;
        let now = Timestamp::from_millis(now);
        let mut tx = Write::at(tx, now);
        let key = request.idempotency_key.as_deref().map(clean);
        if let Some(key) = &key
            && let Some(first) = first_of(&mut tx, job_id, key).await?
        {
            // They are there, and stay as they are: no lock is needed to read them.
            roll_back(tx).await;
            let known = TriggerOutcome {
                runs: self.triggered_with(job_id, first).await?,
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
        // One that is not registered may not claim.
        let node = node.filter(|_| cleared.is_some() && at <= now);
        if let (Some(node), Some(true)) = (node, cleared) {
            nodes::claims_again(&mut tx, node).await?;
        }
        let fire = Fire {
            kind: RunKind::Manual,
            // The id of the first of them, once they are numbered.
            key: 0,
            day: Day::of(now),
            at,
            due_at: at,
            claimed_by: node,
            parent: None,
            params: request.params.clone(),
        };
        let mut runs = NewRun::of_fire(&job, turn, &mut live, &fire);
        self.write_triggered(&mut tx, &mut runs, key.as_deref(), &request.by)
            .await?;
        commit(tx).await?;
        let triggered = TriggerOutcome {
            runs: runs.iter().map(|run| RunId(run.id)).collect(),
            duplicate: false,
        };
        runs.retain(|run| run.claimed_by.is_some());
        Ok((triggered, runs.into_iter().map(ClaimedRun::from).collect()))
    }

    /// The runs of the request that made `first`.
    async fn triggered_with(&self, job: i64, first: i64) -> Result<Vec<RunId>, StoreError> {
        let (low, end) = Day::of_run(first).ids();
        let runs: Vec<i64> = sqlx::query_scalar(RUNS)
            .bind(first)
            .bind(job)
            .bind(low)
            .bind(end)
            .fetch_all(&mut *self.db.glance().await?)
            .await
            .map_err(failed("look up an idempotency key"))?;
        Ok(runs.into_iter().map(RunId).collect())
    }

    /// Numbers the runs of one request and writes them.
    async fn write_triggered(
        &self,
        write: &mut Write,
        runs: &mut [NewRun],
        key: Option<&str>,
        by: &str,
    ) -> Result<(), StoreError> {
        let Some(first) = runs.first() else {
            return Ok(());
        };
        let (now, day) = (write.now, first.day);
        self.db.ensure_days(BTreeSet::from([day]), now).await?;
        let shards = || runs.iter().map(|run| &run.shard);
        let ids: Vec<i64> = sqlx::query_scalar(WRITE)
            .bind(day.id(0))
            .bind(shards().map(|s| int4(s.index)).collect::<Vec<_>>())
            .bind(shards().map(|s| s.item.as_deref()).collect::<Vec<_>>())
            .bind(runs.iter().map(executor_of).collect::<Vec<_>>())
            .bind(first.job.id.0)
            .bind(first.fire_at.as_millis())
            .bind(first.turn)
            .bind(int4(first.shard.total))
            .bind(first.params.as_deref().map(clean))
            .bind(now.as_millis())
            .bind(first.claimed_by.map(|node| node.0))
            .bind(is_fixed_delay(&first.job.spec))
            .bind(key)
            .bind(format!("triggered by {}", clean(by)))
            .fetch_all(&mut **write)
            .await
            .map_err(|error| match error.as_database_error() {
                Some(told) if told.is_unique_violation() => new_run::ids_come_round(),
                _ => failed("trigger a job")(error),
            })?;
        for (run, id) in runs.iter_mut().zip(ids) {
            run.id = id;
        }
        Ok(())
    }
}

fn executor_of(run: &NewRun) -> Option<&str> {
    run.executor.as_ref().map(ExecutorName::as_str)
}

/// The first run that an earlier request with the same key made.
async fn first_of(conn: &mut PgConnection, job: i64, key: &str) -> Result<Option<i64>, StoreError> {
    sqlx::query_scalar(KEY_USED)
        .bind(job)
        .bind(key)
        .fetch_optional(conn)
        .await
        .map_err(failed("look up an idempotency key"))
}
