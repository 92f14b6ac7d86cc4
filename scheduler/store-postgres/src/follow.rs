//! What follows from the end of a run, in the transaction that ends it: the next fixed-delay fire time, and child runs.
//!
//! Two runs of one fire may end in two transactions at once. Whoever ends one holds its job's lock, so that the second sees what the first has
//! done, and one of them finds that nothing is left to wait for.

use std::collections::{BTreeMap, HashMap};

use cueline_model::{RunId, RunKind, Timestamp};
use cueline_store::StoreError;
use cueline_store::adapter::report::soonest;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::Write;
use crate::days::Day;
use crate::definitions::Definitions;
use crate::error::failed;
use crate::live::Live;
use crate::new_run::{Fire, NewRun};
use crate::rows::{bounds, int};

pub(crate) const HOLD: &str = "
    SELECT 1 FROM unnest($1::bigint[]) e (id) JOIN job_due d ON d.job_id = e.id
    ORDER BY d.job_id FOR NO KEY UPDATE OF d";

/// Of the given jobs, those that wait for nothing but their delay now.
pub(crate) const RESTING: &str = "
    SELECT d.job_id, d.version FROM unnest($1::bigint[]) e (id) JOIN job_due d ON d.job_id = e.id
    WHERE d.fixed_delay AND d.enabled AND NOT EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.awaited)";

pub(crate) const SET_NEXT: &str = "
    UPDATE job_due SET next_fire_at = e.next_fire_at FROM unnest($1::bigint[], $2::bigint[]) e (job_id, next_fire_at)
    WHERE job_due.job_id = e.job_id";

/// For each of the given runs whose fire has succeeded whole: the first run of the fire, its fire time, and the job.
pub(crate) const COMPLETE: &str = "
    SELECT e.id, min(r.id), min(r.fire_at)
    FROM unnest($1::bigint[]) e (id) JOIN run o ON o.id = e.id AND o.id BETWEEN $2 AND $3
        JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind AND r.id BETWEEN $2 AND $3
    GROUP BY e.id HAVING bool_and(r.state IS NOT DISTINCT FROM 10)";

pub(crate) const CHILDREN: &str = "
    SELECT j.parent_id, d.job_id, d.version, d.turn
    FROM unnest($1::bigint[]) e (id) JOIN job j ON j.parent_id = e.id AND j.deleted_at IS NULL JOIN job_due d ON d.job_id = j.id
    WHERE d.enabled ORDER BY d.job_id FOR NO KEY UPDATE OF d";

/// A run of a job with children that has just succeeded.
pub(crate) struct Success<'a> {
    pub(crate) run: i64,
    pub(crate) job: i64,
    pub(crate) output: Option<&'a str>,
}

/// Locks jobs until the end of the transaction.
pub(crate) async fn hold(conn: &mut PgConnection, mut jobs: Vec<i64>) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    jobs.sort_unstable();
    jobs.dedup();
    sqlx::query(HOLD)
        .bind(jobs)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("lock jobs"))
}

/// Sets the next fire time of the `fixed_delay` jobs among `ended` (job, end of the run) of which no run is live any more; the
/// earliest of them. The caller holds these jobs.
pub(crate) async fn next_after_end(
    conn: &mut PgConnection,
    definitions: &Definitions,
    ended: &[(i64, Timestamp)],
) -> Result<Option<Timestamp>, StoreError> {
    if ended.is_empty() {
        return Ok(None);
    }
    let mut ends: BTreeMap<i64, Timestamp> = BTreeMap::new();
    for &(job, at) in ended {
        let last = ends.entry(job).or_insert(at);
        *last = at.max(*last);
    }
    let resting: Vec<(i64, i64)> = sqlx::query_as(RESTING)
        .bind(ends.keys().copied().collect::<Vec<i64>>())
        .fetch_all(&mut *conn)
        .await
        .map_err(failed("find the next fixed-delay fire time"))?;
    if resting.is_empty() {
        return Ok(None);
    }
    let jobs = definitions.of(conn, resting.iter().copied()).await?;
    let mut next = Vec::with_capacity(resting.len());
    let mut first = None;
    for (id, _) in resting {
        // One that cannot be read does nothing, and keeps no other from it.
        let (Some(end), Some(job)) = (ends.get(&id), jobs.get(&id)) else {
            continue;
        };
        let fire_at = job.spec.next_fire(*end);
        if let Some(fire_at) = fire_at {
            soonest(&mut first, fire_at);
        }
        next.push((id, fire_at.map(Timestamp::as_millis)));
    }
    set_next(conn, next).await?;
    Ok(first)
}

/// Writes next fire times.
pub(crate) async fn set_next(
    conn: &mut PgConnection,
    next: Vec<(i64, Option<i64>)>,
) -> Result<(), StoreError> {
    let (jobs, times): (Vec<i64>, Vec<Option<i64>>) = next.into_iter().unzip();
    sqlx::query(SET_NEXT)
        .bind(jobs)
        .bind(times)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write the next fixed-delay fire time"))
}

impl PgStore {
    /// Writes the child runs of the fires that are complete now; how many. The caller holds the parents.
    pub(crate) async fn fire_children(
        &self,
        write: &mut Write,
        successes: &[Success<'_>],
    ) -> Result<usize, StoreError> {
        let now = write.now;
        let complete = complete(write, successes).await?;
        if complete.is_empty() {
            return Ok(0);
        }
        let mut parents: Vec<i64> = complete.iter().map(|c| c.success.job).collect();
        parents.sort_unstable();
        parents.dedup();
        let children: Vec<(i64, i64, i64, i64)> = sqlx::query_as(CHILDREN)
            .bind(parents)
            .fetch_all(&mut **write)
            .await
            .map_err(failed("write child runs"))?;
        let versions = children.iter().map(|(_, id, version, _)| (*id, *version));
        let jobs = self.definitions.of(write, versions).await?;
        let mut live = Live::load(write, now, self.db.executor_dead_after_ms()).await?;
        let mut turns: HashMap<i64, i64> = children.iter().map(|c| (c.1, c.3)).collect();
        let mut runs = Vec::new();
        for Complete {
            success,
            first_run,
            fire_at,
        } in complete
        {
            for (_, child, ..) in children.iter().filter(|c| c.0 == success.job) {
                let Some(job) = jobs.get(child) else { continue };
                let passes = job.spec.after.as_ref().is_some_and(|a| a.pass_output);
                let fire = Fire {
                    kind: RunKind::Child,
                    key: first_run,
                    day: Day::of_run(first_run),
                    at: fire_at,
                    due_at: now,
                    claimed_by: None,
                    parent: Some(RunId(success.run)),
                    params: success.output.filter(|_| passes).map(str::to_owned),
                };
                let turn = turns.entry(*child).or_default();
                let more = NewRun::of_fire(job, *turn, &mut live, &fire);
                *turn += int(more.len());
                runs.extend(more);
            }
        }
        self.write_with_turns(write, &mut runs).await
    }
}

/// A fire of which all runs have succeeded.
struct Complete<'a> {
    /// The run that was reported last stands for its fire.
    success: &'a Success<'a>,
    first_run: i64,
    fire_at: Timestamp,
}

async fn complete<'a>(
    conn: &mut PgConnection,
    successes: &'a [Success<'a>],
) -> Result<Vec<Complete<'a>>, StoreError> {
    let ids: Vec<i64> = successes.iter().map(|s| s.run).collect();
    let (low, high) = bounds(ids.iter().copied());
    let found: Vec<(i64, i64, i64)> = sqlx::query_as(COMPLETE)
        .bind(ids)
        .bind(Day::of_run(low).ids().0)
        .bind(Day::of_run(high).ids().1 - 1)
        .fetch_all(conn)
        .await
        .map_err(failed("write child runs"))?;
    let found: HashMap<i64, (i64, i64)> =
        found.into_iter().map(|(id, f, at)| (id, (f, at))).collect();
    let mut fires: BTreeMap<i64, Complete<'a>> = BTreeMap::new();
    for success in successes {
        let Some(&(first_run, fire_at)) = found.get(&success.run) else {
            continue;
        };
        let fire_at = Timestamp::from_millis(fire_at);
        fires.insert(
            first_run,
            Complete {
                success,
                first_run,
                fire_at,
            },
        );
    }
    Ok(fires.into_values().collect())
}
