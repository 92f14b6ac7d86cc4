//! Writes new runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cueline_model::{ExecutorName, RunKind, RunState, Timestamp};
use cueline_store::adapter::convert::without_nul;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::new_run::NewRun;
use cueline_store::adapter::timeline::skip_message;
use cueline_store::{ErrorKind, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::{column, id_range, state_code, to_i32};
use crate::database::WriteTx;
use crate::error::{Error, Result};
use crate::history::in_known_history;
use crate::partitions::{Day, share_old_days};

/// Returns no number unless the history of the database is known. One row with a list costs less than a row for each.
const ALLOCATE_NUMBERS: &str = concat!(
    "SELECT array_agg(nextval('run_number')) FROM generate_series(1, $1) WHERE ",
    in_known_history!("$2")
);

macro_rules! insert_plain {
    ($on_conflict:literal) => {
        concat!(
            "INSERT INTO run (id, job_id, kind, fire_key, fire_at, due_at, sequence, created_at)
            SELECT e.id, e.job_id, 0, e.fire_at, e.fire_at, e.due_at, e.sequence, $6
            FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
                e (id, job_id, fire_at, due_at, sequence)",
            $on_conflict
        )
    };
}

/// For [plain](NewRun::is_plain) runs whose fire times are [new](FireTimes::New).
pub(crate) const INSERT_PLAIN: &str = insert_plain!("");

/// For plain runs whose fire times [may be taken](FireTimes::MayBeTaken).
const INSERT_PLAIN_UNLESS_TAKEN: &str = insert_plain!(" ON CONFLICT DO NOTHING");

pub(crate) const INSERT: &str = "
    INSERT INTO run (id, job_id, fire_key, fire_at, due_at, sequence, kind, shard_index, shard_total, shard_item, parent, params,
        message, skipped_since, state, unsuccessful_state, ended_at, created_at)
    SELECT e.id, e.job_id, e.fire_key, e.fire_at, e.due_at, e.sequence, e.kind, e.shard_index, e.shard_total, e.shard_item, e.parent,
        e.params, e.message, e.skipped_since,
        CASE WHEN e.skipped_since IS NOT NULL THEN 18 END, CASE WHEN e.skipped_since IS NOT NULL THEN 18 END,
        CASE WHEN e.skipped_since IS NOT NULL THEN $15 END, $15
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[], $8::integer[],
            $9::integer[], $10::text[], $11::bigint[], $12::text[], $13::text[], $14::bigint[])
        e (id, job_id, fire_key, fire_at, due_at, sequence, kind, shard_index, shard_total, shard_item, parent, params, message,
            skipped_since)
    ON CONFLICT DO NOTHING";

pub(crate) const INSERT_LIVE: &str = "
    INSERT INTO run_live (id, job_id, kind, state, due_at, claimed_by, delays_next_fire, executor, pinned, shard_index, fire_at)
    SELECT e.id, e.job_id, e.kind, 0, e.due_at, e.claimed_by, e.delays_next_fire, e.executor, e.executor IS NOT NULL, e.shard_index,
        e.fire_at
    FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[], $8::integer[],
            $9::bigint[])
        e (id, job_id, kind, due_at, claimed_by, delays_next_fire, executor, shard_index, fire_at)";

/// The runs with these ids. It joins nothing, because the statistics may be older than the thousands of rows of its
/// transaction. A join planned for a nearly empty partition compares each new row with each other one.
pub(crate) const WITH_IDS: &str = "
    SELECT id, fire_key, job_id, kind, shard_index FROM run WHERE id = ANY ($1) AND id BETWEEN $2 AND $3";

const INSERT_SKIP_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT e.id, $3, 1, 'skipped', e.message FROM unnest($1::bigint[], $2::text[]) e (id, message)";

const INSERT_NOTES: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT e.id, $3, 1, 'left_out', e.note FROM unnest($1::bigint[], $2::text[]) e (id, note)";

const ADD_RUN_COUNTS: &str = "
    UPDATE job_due SET run_count = run_count + e.runs FROM unnest($1::bigint[], $2::bigint[]) e (job_id, runs)
    WHERE job_due.job_id = e.job_id";

/// Whether the fire times of new runs may have runs already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FireTimes {
    /// None has one. Otherwise the call fails, see [`Error::is_unique_violation`], and nothing is written. PostgreSQL writes a row twice as
    /// fast if it does not have to leave it out on a conflict.
    New,
    /// Runs of those that have one are left out.
    MayBeTaken,
}

impl PgStore {
    /// Allocates ids and writes the runs. A run is left out if its fire time and shard already have one. Returns the
    /// ids of those left out.
    pub(crate) async fn insert_runs(
        &self,
        tx: &mut WriteTx,
        runs: &mut [NewRun],
        fire_times: FireTimes,
    ) -> Result<BTreeSet<i64>> {
        if runs.is_empty() {
            return Ok(BTreeSet::new());
        }
        let now = tx.now;
        let days: BTreeSet<Day> = runs.iter().map(|run| day_of(run, now)).collect();
        share_old_days(tx, &days, now).await?;
        self.db.ensure_partitions(days, now).await?;
        allocate_ids(tx, runs, self.history.get(), now).await?;
        let all: Vec<&NewRun> = runs.iter().collect();
        let (plain, special): (Vec<&NewRun>, Vec<&NewRun>) = all.iter().partition(|r| r.is_plain());
        let written = insert_plain(tx, &plain, fire_times, now).await?
            + insert_special(tx, &special, now).await?;
        let left_out = if written == runs.len() as u64 {
            BTreeSet::new()
        } else {
            find_left_out(tx, &all).await?
        };
        let (skipped, live): (Vec<&NewRun>, Vec<&NewRun>) = all
            .into_iter()
            .filter(|run| !left_out.contains(&run.id))
            .partition(|run| run.skipped.is_some());
        insert_live(tx, &live).await?;
        insert_notes(tx, &live, now).await?;
        insert_skip_events(tx, &skipped, now).await?;
        Ok(left_out)
    }

    /// Like [`insert_runs`](Self::insert_runs), for runs outside of the schedule. Adds them to the run counts of their
    /// jobs. Returns how many were written.
    pub(crate) async fn insert_and_count(
        &self,
        tx: &mut WriteTx,
        runs: &mut [NewRun],
    ) -> Result<usize> {
        let left_out = self.insert_runs(tx, runs, FireTimes::MayBeTaken).await?;
        let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
        for run in runs.iter().filter(|run| !left_out.contains(&run.id)) {
            *counts.entry(run.job.id.0).or_default() += 1;
        }
        let (jobs, counts): (Vec<i64>, Vec<i64>) = counts.into_iter().unzip();
        sqlx::query(ADD_RUN_COUNTS)
            .bind(jobs)
            .bind(counts)
            .execute(&mut **tx)
            .await?;
        Ok(runs.len() - left_out.len())
    }
}

/// The day in the id of a new run. Runs with the same fire key have the same day.
fn day_of(run: &NewRun, now: Timestamp) -> Day {
    match (run.kind, run.fire_key) {
        (RunKind::Schedule, _) => Day::of_fire(run.fire_at, now),
        (RunKind::Child, Some(first_run_of_parent)) => Day::of_run(first_run_of_parent),
        _ => Day::of(now),
    }
}

fn kind_code(run: &NewRun) -> i16 {
    i16::from(run.kind.code())
}

/// Ids ascend within a day in the order of the list.
async fn allocate_ids(
    conn: &mut PgConnection,
    runs: &mut [NewRun],
    history: Option<String>,
    now: Timestamp,
) -> Result<()> {
    let count = i32::try_from(runs.len()).unwrap_or(i32::MAX);
    let numbers: Option<Vec<i64>> = sqlx::query_scalar(ALLOCATE_NUMBERS)
        .bind(count)
        .bind(history)
        .fetch_one(conn)
        .await?;
    let numbers = numbers.unwrap_or_default();
    if numbers.len() < runs.len() {
        return Err(Error::UnknownHistory);
    }
    for (run, number) in runs.iter_mut().zip(numbers) {
        run.id = day_of(run, now).id(number);
    }
    Ok(())
}

async fn insert_plain(
    conn: &mut PgConnection,
    runs: &[&NewRun],
    fire_times: FireTimes,
    now: Timestamp,
) -> Result<u64> {
    if runs.is_empty() {
        return Ok(0);
    }
    let statement = match fire_times {
        FireTimes::New => INSERT_PLAIN,
        FireTimes::MayBeTaken => INSERT_PLAIN_UNLESS_TAKEN,
    };
    let inserted = sqlx::query(statement)
        .bind(column(runs, |r| r.id))
        .bind(column(runs, |r| r.job.id.0))
        .bind(column(runs, |r| r.fire_at.as_millis()))
        .bind(column(runs, |r| r.due_at.as_millis()))
        .bind(column(runs, |r| r.sequence))
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(inserted.rows_affected())
}

async fn insert_special(conn: &mut PgConnection, runs: &[&NewRun], now: Timestamp) -> Result<u64> {
    debug_assert_eq!(state_code(RunState::Skipped), 18, "as in the statements");
    if runs.is_empty() {
        return Ok(0);
    }
    let skipped_since = |r: &NewRun| r.skipped.as_ref().map(|s| s.since.as_millis());
    let inserted = sqlx::query(INSERT)
        .bind(column(runs, |r| r.id))
        .bind(column(runs, |r| r.job.id.0))
        .bind(column(runs, |r| r.fire_key))
        .bind(column(runs, |r| r.fire_at.as_millis()))
        .bind(column(runs, |r| r.due_at.as_millis()))
        .bind(column(runs, |r| r.sequence))
        .bind(column(runs, |r| kind_code(r)))
        .bind(column(runs, |r| to_i32(r.shard.index)))
        .bind(column(runs, |r| to_i32(r.shard.total)))
        .bind(column(runs, |r| r.shard.item.as_deref()))
        .bind(column(runs, |r| r.parent.map(|p| p.0)))
        .bind(column(runs, |r| r.params.as_deref().map(without_nul)))
        .bind(column(runs, |r| r.skipped.as_ref().map(skip_message)))
        .bind(column(runs, |r| skipped_since(r)))
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(inserted.rows_affected())
}

async fn insert_live(conn: &mut PgConnection, runs: &[&NewRun]) -> Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    sqlx::query(INSERT_LIVE)
        .bind(column(runs, |r| r.id))
        .bind(column(runs, |r| r.job.id.0))
        .bind(column(runs, |r| kind_code(r)))
        .bind(column(runs, |r| r.due_at.as_millis()))
        .bind(column(runs, |r| r.claimed_by.map(|node| node.0)))
        .bind(column(runs, |r| is_fixed_delay(&r.job.spec)))
        .bind(column(runs, |r| {
            r.executor.as_ref().map(ExecutorName::as_str)
        }))
        .bind(column(runs, |r| to_i32(r.shard.index)))
        .bind(column(runs, |r| r.fire_at.as_millis()))
        .execute(conn)
        .await?;
    Ok(())
}

/// The ids of runs that were not written, because their fire times already have runs.
async fn find_left_out(conn: &mut PgConnection, runs: &[&NewRun]) -> Result<BTreeSet<i64>> {
    let (low, high) = id_range(runs.iter().map(|r| r.id));
    let found: Vec<(i64, i64, i64, i16, i32)> = sqlx::query_as(WITH_IDS)
        .bind(column(runs, |r| r.id))
        .bind(low)
        .bind(high)
        .fetch_all(conn)
        .await?;
    let found = found
        .into_iter()
        .map(|(id, fire_key, job, kind, shard)| (id, (Some(fire_key), job, kind, shard)));
    let found: HashMap<i64, _> = found.collect();
    let mut left_out = BTreeSet::new();
    for run in runs {
        let shard = to_i32(run.shard.index);
        match found.get(&run.id) {
            Some(key) if *key == (run.fire_key, run.job.id.0, kind_code(run), shard) => {}
            // It is another run, so this one was left out for its id, and its fire time may have no run.
            Some(_) => return Err(repeated_ids().into()),
            None => {
                left_out.insert(run.id);
            }
        }
    }
    Ok(left_out)
}

/// An error because the sequence has restarted within a day. The next call gets other numbers.
pub(crate) fn repeated_ids() -> StoreError {
    StoreError::new(
        ErrorKind::Transient,
        "failed to write runs: their ids belong to other runs",
    )
}

async fn insert_skip_events(
    conn: &mut PgConnection,
    skipped: &[&NewRun],
    now: Timestamp,
) -> Result<()> {
    if skipped.is_empty() {
        return Ok(());
    }
    sqlx::query(INSERT_SKIP_EVENTS)
        .bind(column(skipped, |r| r.id))
        .bind(column(skipped, |r| r.skipped.as_ref().map(skip_message)))
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

/// Names what the runs leave out: silent executors of a broadcast fire, outputs that are too long.
async fn insert_notes(conn: &mut PgConnection, runs: &[&NewRun], now: Timestamp) -> Result<()> {
    let (ids, notes): (Vec<i64>, Vec<&str>) = runs
        .iter()
        .filter_map(|run| Some((run.id, run.left_out.as_deref()?)))
        .unzip();
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query(INSERT_NOTES)
        .bind(ids)
        .bind(notes)
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(())
}
