//! From due jobs to runs.

use cueline_model::Timestamp;
use cueline_store::{ClaimedRun, FireDueRequest, FiredRuns, Planner, StoreError};
use serde::Serialize;

use crate::SqliteStore;
use crate::database::commit;
use crate::error::failed;
use crate::live::Live;
use crate::new_run::{self, NewRun};
use crate::nodes;
use crate::rows::{decode, encode, int};

pub(crate) const DUE: &str = "
    SELECT json_group_array(json_array(job_id, version, next_fire_at, turn))
    FROM (SELECT job_id, version, next_fire_at, turn FROM job_due
          WHERE next_fire_at <= ?1 ORDER BY next_fire_at, job_id LIMIT ?2)";

pub(crate) const ADVANCE: &str = "
    UPDATE job_due SET next_fire_at = e.value ->> 1, turn = e.value ->> 2
    FROM json_each(?1) e WHERE job_id = e.value ->> 0";

#[derive(Serialize)]
struct Advance(i64, Option<Timestamp>, i64);

impl SqliteStore {
    pub(crate) async fn fire(
        &self,
        request: FireDueRequest,
        planner: &dyn Planner,
    ) -> Result<FiredRuns, StoreError> {
        let fail = failed("fire due jobs");
        let mut tx = self.db.write().await?;
        nodes::known(&mut tx, request.node).await?;
        let now = self.db.now();
        let text: String = sqlx::query_scalar(DUE)
            .bind(now.plus_ms(request.horizon_ms).as_millis())
            .bind(int(request.limit))
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        let due: Vec<(i64, i64, i64, i64)> = decode(&text)?;
        if due.is_empty() {
            return Ok(FiredRuns::default());
        }
        let versions = due.iter().map(|(id, version, ..)| (*id, *version));
        let jobs = self.definitions.of(&mut tx, versions).await?;
        let mut live = Live::load(&mut tx, now, self.db.executor_dead_after_ms()).await?;
        let last_id = new_run::last_id(&mut tx).await?;
        let mut runs = Vec::with_capacity(due.len());
        let mut advances = Vec::with_capacity(due.len());
        for &(job_id, _, fire_at, first_turn) in &due {
            // Its fire times wait for a readable definition; the other jobs do not.
            let Some(job) = jobs.get(&job_id) else {
                continue;
            };
            let candidates = live.candidates(&job.spec);
            let plan = planner.plan(job, Timestamp::from_millis(fire_at), now, &candidates);
            let mut turn = first_turn;
            for planned in plan.runs {
                let counts = planned.skipped.is_none();
                runs.push(NewRun::planned(job, turn, request.node, planned));
                turn += i64::from(counts);
            }
            advances.push(Advance(job_id, plan.next_fire, turn));
        }
        // Runs that are due together get neighbouring ids, and so lie on the same pages: together is how they are marked, confirmed and ended.
        runs.sort_by_key(|run| run.due_at);
        for (id, run) in (last_id + 1..).zip(&mut runs) {
            run.id = id;
        }
        let left_out = new_run::insert(&mut tx, &runs, now).await?;
        sqlx::query(ADVANCE)
            .bind(encode(&advances)?)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        Ok(FiredRuns {
            runs: waiting(runs, &left_out),
            due_jobs: due.len(),
            limit_reached: due.len() >= request.limit,
        })
    }
}

/// The runs that now wait for the calling node, in the order to bring them out.
fn waiting(runs: Vec<NewRun>, left_out: &[i64]) -> Vec<ClaimedRun> {
    let left_out: std::collections::HashSet<i64> = left_out.iter().copied().collect();
    let mut waiting: Vec<ClaimedRun> = runs
        .into_iter()
        .filter(|run| run.skipped.is_none() && !left_out.contains(&run.id))
        .map(ClaimedRun::from)
        .collect();
    waiting.sort_by_key(|run| (run.due_at, std::cmp::Reverse(run.job.spec.priority), run.id));
    waiting
}
