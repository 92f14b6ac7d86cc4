//! Writing new runs.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use cueline_model::{ExecutorName, Job, RunId, RunKind, RunState, Shard, Timestamp, expand};
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::skipped::why;
use cueline_store::{ClaimedRun, ErrorKind, NodeId, PlannedRun, SkippedFires, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::Write;
use crate::days::Day;
use crate::error::failed;
use crate::live::Live;
use crate::rows::{bounds, clean, code, int4, unsigned};

const NUMBERS: &str = "SELECT nextval('run_number') FROM generate_series(1, $1)";

/// Runs of a schedule without shards, pins or reasons: nearly all of them.
pub(crate) const INSERT_PLAIN: &str = "
    INSERT INTO run (id, job_id, kind, fire_key, fire_at, due_at, turn, created_at)
    SELECT e.id, e.job_id, 0, e.fire_at, e.fire_at, e.due_at, e.turn, $6
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) e (id, job_id, fire_at, due_at, turn)
    ON CONFLICT DO NOTHING";

pub(crate) const INSERT: &str = "
    INSERT INTO run (id, job_id, fire_key, fire_at, due_at, turn, kind, shard_index, shard_total, shard_item, parent, params,
        message, skipped_since, state, mishap, ended_at, created_at)
    SELECT e.id, e.job_id, e.fire_key, e.fire_at, e.due_at, e.turn, e.kind, e.shard_index, e.shard_total, e.shard_item, e.parent,
        e.params, e.message, e.skipped_since,
        CASE WHEN e.skipped_since IS NOT NULL THEN 18 END, CASE WHEN e.skipped_since IS NOT NULL THEN 18 END,
        CASE WHEN e.skipped_since IS NOT NULL THEN $15 END, $15
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[], $8::integer[],
            $9::integer[], $10::text[], $11::bigint[], $12::text[], $13::text[], $14::bigint[])
        e (id, job_id, fire_key, fire_at, due_at, turn, kind, shard_index, shard_total, shard_item, parent, params, message,
            skipped_since)
    ON CONFLICT DO NOTHING";

pub(crate) const INSERT_LIVE: &str = "
    INSERT INTO run_live (id, job_id, kind, state, due_at, claimed_by, awaited, executor, pinned)
    SELECT e.id, e.job_id, e.kind, 0, e.due_at, e.claimed_by, e.awaited, e.executor, e.executor IS NOT NULL
    FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[])
        e (id, job_id, kind, due_at, claimed_by, awaited, executor)";

/// For each fire time and shard, the run that stands there: the new one, or one that was there before.
pub(crate) const STANDING: &str = "
    SELECT e.id, r.id = e.id
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::integer[]) e (id, fire_key, job_id, kind, shard_index)
        JOIN run r ON r.fire_key = e.fire_key AND r.job_id = e.job_id AND r.kind = e.kind AND r.shard_index = e.shard_index
            AND r.id BETWEEN $6 AND $7 AND r.id / 10000000000 = e.id / 10000000000";

const EVENTS_OF_SKIPPED: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT e.id, $3, 1, 'skipped', e.why FROM unnest($1::bigint[], $2::text[]) e (id, why)";

/// A run to write.
#[derive(Debug, Clone)]
pub(crate) struct NewRun {
    /// 0 until it is numbered.
    pub(crate) id: i64,
    pub(crate) day: Day,
    pub(crate) job: Arc<Job>,
    pub(crate) kind: RunKind,
    fire_key: i64,
    pub(crate) fire_at: Timestamp,
    pub(crate) due_at: Timestamp,
    pub(crate) shard: Shard,
    pub(crate) executor: Option<ExecutorName>,
    pub(crate) turn: i64,
    pub(crate) claimed_by: Option<NodeId>,
    pub(crate) parent: Option<RunId>,
    pub(crate) params: Option<String>,
    pub(crate) skipped: Option<SkippedFires>,
}

/// What the runs of one fire have in common.
#[derive(Debug, Clone)]
pub(crate) struct Fire {
    pub(crate) kind: RunKind,
    pub(crate) key: i64,
    pub(crate) day: Day,
    pub(crate) at: Timestamp,
    pub(crate) due_at: Timestamp,
    /// `None`: they wait for a node.
    pub(crate) claimed_by: Option<NodeId>,
    pub(crate) parent: Option<RunId>,
    pub(crate) params: Option<String>,
}

impl From<NewRun> for ClaimedRun {
    /// At its first attempt, of which nothing has been published.
    fn from(run: NewRun) -> Self {
        Self {
            id: RunId(run.id),
            attempt: 1,
            job: run.job,
            kind: run.kind,
            fire_at: run.fire_at,
            due_at: run.due_at,
            shard: run.shard,
            params: run.params,
            executor: run.executor,
            sequence: unsigned(run.turn),
            maybe_published: false,
        }
    }
}

impl NewRun {
    /// A run that the planner wants.
    pub(crate) fn planned(
        job: &Arc<Job>,
        turn: i64,
        node: NodeId,
        plan: PlannedRun,
        now: Timestamp,
    ) -> Self {
        Self {
            id: 0,
            day: Day::of_fire(plan.fire_at, now),
            job: Arc::clone(job),
            kind: RunKind::Schedule,
            fire_key: plan.fire_at.as_millis(),
            fire_at: plan.fire_at,
            due_at: plan.due_at,
            shard: plan.shard,
            executor: plan.executor,
            turn,
            claimed_by: plan.skipped.is_none().then_some(node),
            parent: None,
            params: None,
            skipped: plan.skipped,
        }
    }

    /// The runs, one for each shard, that a fire outside of the planner makes.
    pub(crate) fn of_fire(
        job: &Arc<Job>,
        first_turn: i64,
        live: &mut Live,
        fire: &Fire,
    ) -> Vec<Self> {
        expand(&job.spec.route, &live.candidates(&job.spec))
            .into_iter()
            .zip(first_turn..)
            .map(|(shard, turn)| Self {
                id: 0,
                day: fire.day,
                job: Arc::clone(job),
                kind: fire.kind,
                fire_key: fire.key,
                fire_at: fire.at,
                due_at: fire.due_at,
                shard: shard.shard,
                executor: shard.executor,
                turn,
                claimed_by: fire.claimed_by,
                parent: fire.parent,
                params: fire.params.clone(),
                skipped: None,
            })
            .collect()
    }

    fn is_plain(&self) -> bool {
        self.kind == RunKind::Schedule
            && self.shard.total == 1
            && self.shard.item.is_none()
            && self.skipped.is_none()
            && self.params.is_none()
    }

    fn is_awaited(&self) -> bool {
        is_fixed_delay(&self.job.spec)
    }

    fn kind_code(&self) -> i16 {
        i16::from(self.kind.code())
    }
}

/// One column of a list of runs.
fn column<'a, T>(runs: &[&'a NewRun], of: impl Fn(&'a NewRun) -> T) -> Vec<T> {
    runs.iter().map(|run| of(run)).collect()
}

impl PgStore {
    /// Numbers runs and writes them, leaving out those whose fire time and shard have a run already; the ids of those left out.
    pub(crate) async fn insert(
        &self,
        write: &mut Write,
        runs: &mut [NewRun],
    ) -> Result<HashSet<i64>, StoreError> {
        if runs.is_empty() {
            return Ok(HashSet::new());
        }
        let now = write.now;
        let days: BTreeSet<Day> = runs.iter().map(|r| r.day).collect();
        self.db.ensure_days(days, now).await?;
        number(write, runs).await?;
        let all: Vec<&NewRun> = runs.iter().collect();
        let (plain, special): (Vec<&NewRun>, Vec<&NewRun>) = all.iter().partition(|r| r.is_plain());
        let written =
            insert_plain(write, &plain, now).await? + insert_special(write, &special, now).await?;
        let left_out = if written == runs.len() as u64 {
            HashSet::new()
        } else {
            left_out(write, &all).await?
        };
        let new: Vec<&NewRun> = all
            .into_iter()
            .filter(|r| !left_out.contains(&r.id))
            .collect();
        insert_live(write, &new).await?;
        note_skipped(write, &new, now).await?;
        Ok(left_out)
    }
}

/// Gives runs their ids, ascending within a day in the order given.
async fn number(conn: &mut PgConnection, runs: &mut [NewRun]) -> Result<(), StoreError> {
    let count = i32::try_from(runs.len()).unwrap_or(i32::MAX);
    let numbers: Vec<i64> = sqlx::query_scalar(NUMBERS)
        .bind(count)
        .fetch_all(conn)
        .await
        .map_err(failed("allocate run ids"))?;
    for (run, number) in runs.iter_mut().zip(numbers) {
        run.id = run.day.id(number);
    }
    Ok(())
}

async fn insert_plain(
    conn: &mut PgConnection,
    runs: &[&NewRun],
    now: Timestamp,
) -> Result<u64, StoreError> {
    if runs.is_empty() {
        return Ok(0);
    }
    sqlx::query(INSERT_PLAIN)
        .bind(column(runs, |r| r.id))
        .bind(column(runs, |r| r.job.id.0))
        .bind(column(runs, |r| r.fire_at.as_millis()))
        .bind(column(runs, |r| r.due_at.as_millis()))
        .bind(column(runs, |r| r.turn))
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
        .map_err(failed("write runs"))
}

async fn insert_special(
    conn: &mut PgConnection,
    runs: &[&NewRun],
    now: Timestamp,
) -> Result<u64, StoreError> {
    if runs.is_empty() {
        return Ok(0);
    }
    sqlx::query(INSERT)
        .bind(column(runs, |r| r.id))
        .bind(column(runs, |r| r.job.id.0))
        .bind(column(runs, |r| r.fire_key))
        .bind(column(runs, |r| r.fire_at.as_millis()))
        .bind(column(runs, |r| r.due_at.as_millis()))
        .bind(column(runs, |r| r.turn))
        .bind(column(runs, NewRun::kind_code))
        .bind(column(runs, |r| int4(r.shard.index)))
        .bind(column(runs, |r| int4(r.shard.total)))
        .bind(column(runs, |r| r.shard.item.as_deref()))
        .bind(column(runs, |r| r.parent.map(|p| p.0)))
        .bind(column(runs, |r| r.params.as_deref().map(clean)))
        .bind(column(runs, |r| r.skipped.as_ref().map(why)))
        .bind(column(runs, |r| {
            r.skipped.as_ref().map(|s| s.since.as_millis())
        }))
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
        .map_err(failed("write runs"))
}

async fn insert_live(conn: &mut PgConnection, runs: &[&NewRun]) -> Result<(), StoreError> {
    let runs: Vec<&NewRun> = runs
        .iter()
        .copied()
        .filter(|r| r.skipped.is_none())
        .collect();
    if runs.is_empty() {
        return Ok(());
    }
    sqlx::query(INSERT_LIVE)
        .bind(column(&runs, |r| r.id))
        .bind(column(&runs, |r| r.job.id.0))
        .bind(column(&runs, NewRun::kind_code))
        .bind(column(&runs, |r| r.due_at.as_millis()))
        .bind(column(&runs, |r| r.claimed_by.map(|n| n.0)))
        .bind(column(&runs, NewRun::is_awaited))
        .bind(column(&runs, |r| {
            r.executor.as_ref().map(ExecutorName::as_str)
        }))
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write runs"))
}

/// The ids of runs that were not written because their fire times have runs.
async fn left_out(conn: &mut PgConnection, runs: &[&NewRun]) -> Result<HashSet<i64>, StoreError> {
    let (low, high) = bounds(runs.iter().map(|r| r.id));
    let found: Vec<(i64, bool)> = sqlx::query_as(STANDING)
        .bind(column(runs, |r| r.id))
        .bind(column(runs, |r| r.fire_key))
        .bind(column(runs, |r| r.job.id.0))
        .bind(column(runs, NewRun::kind_code))
        .bind(column(runs, |r| int4(r.shard.index)))
        .bind(Day::of_run(low).ids().0)
        .bind(Day::of_run(high).ids().1 - 1)
        .fetch_all(conn)
        .await
        .map_err(failed("write runs"))?;
    if found.len() < runs.len() {
        return Err(ids_come_round());
    }
    let others = found.into_iter().filter(|(_, new)| !new);
    Ok(others.map(|(id, _)| id).collect())
}

/// The sequence has come round within a day: the next call gets other numbers.
pub(crate) fn ids_come_round() -> StoreError {
    StoreError::new(
        ErrorKind::Transient,
        "failed to write runs: their ids are those of other runs",
    )
}

async fn note_skipped(
    conn: &mut PgConnection,
    runs: &[&NewRun],
    now: Timestamp,
) -> Result<(), StoreError> {
    debug_assert_eq!(code(RunState::Skipped), 18, "as the statements here say");
    let skipped: Vec<&NewRun> = runs
        .iter()
        .copied()
        .filter(|r| r.skipped.is_some())
        .collect();
    if skipped.is_empty() {
        return Ok(());
    }
    sqlx::query(EVENTS_OF_SKIPPED)
        .bind(column(&skipped, |r| r.id))
        .bind(column(&skipped, |r| r.skipped.as_ref().map(why)))
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write the timeline of skipped runs"))
}
