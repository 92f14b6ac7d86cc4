//! Expected fire times of a past window and what became of each.

use cueline_model::{JobName, RunId, Timestamp};
use cueline_store::adapter::definitions::parse;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::ledger::{RunAt, StandIn, entries, expected};
use cueline_store::{LedgerEntry, StoreError};
use sqlx::FromRow;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::days::Day;
use crate::error::failed;
use crate::reads::{OfJobs, newest_of_jobs};
use crate::rows::{bounds, int};

const JOB: &str = "
    SELECT id, version, definition, created_at FROM job WHERE name = $1 AND deleted_at IS NULL";

macro_rules! entry {
    () => {
        "SELECT r.fire_at, r.id, r.shard_index, coalesce(l.state, r.state) AS state
        FROM unnest($1::bigint[]) e (key) "
    };
}

/// The runs of fire times. Those planned later than a month after their fire time lie in days behind it: $4.
pub(crate) const AT: &str = concat!(
    entry!(),
    "JOIN run r ON r.fire_key = e.key AND r.job_id = $2 AND r.kind = 0 AND r.id >= $3 AND r.id < $4
        LEFT JOIN run_live l ON l.id = r.id
    ORDER BY r.fire_at, r.shard_index"
);

/// Skipped runs that stand for fire times between $2 and $3.
pub(crate) const STANDING: &str = "
    SELECT skipped_since, fire_at, id FROM run
    WHERE job_id = $1 AND skipped_since IS NOT NULL AND fire_at >= $2 AND skipped_since <= $3
    ORDER BY fire_at LIMIT $4";

const BY_ID: &str = concat!(
    entry!(),
    "JOIN run r ON r.id = e.key AND r.id BETWEEN $2 AND $3 LEFT JOIN run_live l ON l.id = r.id
    WHERE r.kind = 0 AND r.fire_at >= $4 AND r.fire_at < $5 ORDER BY r.fire_at, r.shard_index"
);

/// So many runs of a `fixed_delay` job are looked through at the most, newest first.
const MOST_LOOKED_THROUGH: usize = 100_000;

#[derive(FromRow)]
struct Row {
    fire_at: i64,
    id: i64,
    shard_index: i32,
    state: i16,
}

impl Row {
    fn run(&self) -> RunAt {
        RunAt {
            at: Timestamp::from_millis(self.fire_at),
            run: RunId(self.id),
            shard: i64::from(self.shard_index),
            state: i64::from(self.state),
        }
    }
}

impl PgStore {
    pub(crate) async fn fire_times(
        &self,
        name: &JobName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        let mut tx = self.db.snapshot().await?;
        let row: Option<(i64, i64, String, i64)> = sqlx::query_as(JOB)
            .bind(name.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed("read a job"))?;
        let (id, version, definition, created_at) =
            row.ok_or_else(|| StoreError::no_job(name.as_str()))?;
        let job = parse(id, version, &definition)?;
        let now = self.db.now(&mut tx).await?;
        // Until it existed nothing was expected, and what is still to come has not become anything.
        let from = from.max(Timestamp::from_millis(created_at).plus_ms(1));
        let to = to.min(now.plus_ms(1));
        if is_fixed_delay(&job.spec) {
            return what_happened(&mut tx, id, from, to, limit).await;
        }
        let times = expected(&job.spec, from, to, limit);
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            return Ok(Vec::new());
        };
        let runs = runs_at(&mut tx, id, &times, now).await?;
        let standing = standing(&mut tx, id, *first, *last, limit).await?;
        entries(&times, &runs, &standing, limit)
    }
}

async fn runs_at(
    conn: &mut PgConnection,
    job: i64,
    times: &[Timestamp],
    now: Timestamp,
) -> Result<Vec<RunAt>, StoreError> {
    let keys: Vec<i64> = times.iter().map(|at| at.as_millis()).collect();
    let (first, last) = bounds(keys.iter().copied());
    let (first, last) = (Timestamp::from_millis(first), Timestamp::from_millis(last));
    // A fire time from before the last month may have been planned at any time since.
    let end = if Day::of_fire(first, now) == Day::of(first) {
        Day::of(last)
    } else {
        Day::of(now)
    };
    let rows: Vec<Row> = sqlx::query_as(AT)
        .bind(keys)
        .bind(job)
        .bind(Day::of(first).ids().0)
        .bind(end.ids().1)
        .fetch_all(conn)
        .await
        .map_err(failed("read the runs of fire times"))?;
    Ok(rows.iter().map(Row::run).collect())
}

/// Skipped runs, by their own fire time: the first and the last fire time that each stands for, and its id.
async fn standing(
    conn: &mut PgConnection,
    job: i64,
    first: Timestamp,
    last: Timestamp,
    limit: usize,
) -> Result<Vec<StandIn>, StoreError> {
    let rows: Vec<(i64, i64, i64)> = sqlx::query_as(STANDING)
        .bind(job)
        .bind(first.as_millis())
        .bind(last.as_millis())
        .bind(int(limit))
        .fetch_all(conn)
        .await
        .map_err(failed("read skipped runs"))?;
    Ok(rows
        .into_iter()
        .map(|(since, until, run)| StandIn {
            since: Timestamp::from_millis(since),
            until: Timestamp::from_millis(until),
            run: RunId(run),
        })
        .collect())
}

/// The fire times of a `fixed_delay` job follow from its runs: these are all there is to expect.
async fn what_happened(
    conn: &mut PgConnection,
    job: i64,
    from: Timestamp,
    to: Timestamp,
    limit: usize,
) -> Result<Vec<LedgerEntry>, StoreError> {
    let wanted = OfJobs {
        jobs: &[job],
        states: &[],
        before: i64::MAX,
        begun: false,
        limit: MOST_LOOKED_THROUGH,
    };
    let ids = newest_of_jobs(conn, &wanted).await?;
    let (low, high) = bounds(ids.iter().copied());
    let rows: Vec<Row> = sqlx::query_as(BY_ID)
        .bind(ids)
        .bind(low)
        .bind(high)
        .bind(from.as_millis())
        .bind(to.as_millis())
        .fetch_all(conn)
        .await
        .map_err(failed("read the runs of fire times"))?;
    rows.iter()
        .take(limit)
        .map(|row| row.run().entry())
        .collect()
}
