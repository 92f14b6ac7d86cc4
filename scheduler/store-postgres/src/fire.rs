//! From due jobs to runs.

use std::collections::HashSet;

use cueline_model::Timestamp;
use cueline_store::{ClaimedRun, FireDueRequest, FiredRuns, Planner, StoreError};

use crate::PgStore;
use crate::database::{commit, roll_back};
use crate::error::failed;
use crate::live::Live;
use crate::new_run::NewRun;
use crate::nodes;
use crate::rows::int;

/// Locks what is due; what another node is firing, or a person is changing, is passed over.
pub(crate) const DUE: &str = "
    SELECT job_id, version, next_fire_at, turn FROM job_due
    WHERE next_fire_at <= $1 ORDER BY next_fire_at, job_id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED";

pub(crate) const ADVANCE: &str = "
    UPDATE job_due SET next_fire_at = e.next_fire_at, turn = e.turn
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) e (job_id, next_fire_at, turn) WHERE job_due.job_id = e.job_id";

/// What firing does to jobs, as columns.
#[derive(Default)]
struct Advances {
    jobs: Vec<i64>,
    next: Vec<Option<i64>>,
    turns: Vec<i64>,
}

impl PgStore {
    pub(crate) async fn fire(
        &self,
        request: FireDueRequest,
        planner: &dyn Planner,
    ) -> Result<FiredRuns, StoreError> {
        let fail = failed("fire due jobs");
        let mut tx = self.db.write().await?;
        let now = tx.now;
        nodes::known(&mut tx, request.node).await?;
        let due: Vec<(i64, i64, i64, i64)> = sqlx::query_as(DUE)
            .bind(now.plus_ms(request.horizon_ms).as_millis())
            .bind(int(request.limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        if due.is_empty() {
            return Ok(FiredRuns::default());
        }
        let versions = due.iter().map(|(id, version, ..)| (*id, *version));
        let jobs = self.definitions.of(&mut tx, versions).await?;
        let mut live = Live::load(&mut tx, now, self.db.executor_dead_after_ms()).await?;
        let mut runs = Vec::with_capacity(due.len());
        let mut advances = Advances::default();
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
                runs.push(NewRun::planned(job, turn, request.node, planned, now));
                turn += i64::from(counts);
            }
            advances.jobs.push(job_id);
            advances.next.push(plan.next_fire.map(Timestamp::as_millis));
            advances.turns.push(turn);
        }
        let left_out = match self.insert(&mut tx, &mut runs).await {
            Ok(left_out) => left_out,
            Err(error) => {
                roll_back(tx).await;
                return Err(error);
            }
        };
        sqlx::query(ADVANCE)
            .bind(advances.jobs)
            .bind(advances.next)
            .bind(advances.turns)
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
fn waiting(runs: Vec<NewRun>, left_out: &HashSet<i64>) -> Vec<ClaimedRun> {
    let mut waiting: Vec<ClaimedRun> = runs
        .into_iter()
        .filter(|run| run.skipped.is_none() && !left_out.contains(&run.id))
        .map(ClaimedRun::from)
        .collect();
    waiting.sort_by_key(|run| (run.due_at, std::cmp::Reverse(run.job.spec.priority), run.id));
    waiting
}
