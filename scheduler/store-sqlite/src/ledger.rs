//! Expected fire times of a past window and what became of each.

use cueline_model::{JobName, RunId, Timestamp};
use cueline_store::adapter::definitions::parse;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::ledger::{RunAt, StandIn, entries, expected};
use cueline_store::{LedgerEntry, StoreError};
use serde::Deserialize;
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::error::failed;
use crate::reads::{OfJobs, newest_of_jobs};
use crate::rows::{decode, encode, int};

const JOB: &str = "
    SELECT id, version, definition, created_at FROM job WHERE name = ?1 AND deleted_at IS NULL";

pub(crate) const AT: &str = "
    SELECT json_group_array(json_array(r.fire_at, r.id, r.shard_index, r.state))
    FROM json_each(?1) e CROSS JOIN run r ON r.fire_key = e.value AND r.job_id = ?2 AND r.kind = 0";

/// Skipped runs that stand for fire times between ?2 and ?3.
pub(crate) const STANDING: &str = "
    SELECT json_group_array(json_array(skipped_since, fire_at, id))
    FROM (SELECT skipped_since, fire_at, id FROM run
          WHERE job_id = ?1 AND skipped_since IS NOT NULL AND fire_at >= ?2 AND skipped_since <= ?3
          ORDER BY fire_at LIMIT ?4)";

const BY_ID: &str = "
    SELECT json_group_array(json_array(r.fire_at, r.id, r.shard_index, r.state))
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value WHERE r.kind = 0 AND r.fire_at >= ?2 AND r.fire_at < ?3";

/// So many runs of a `fixed_delay` job are looked through at the most, newest first.
const MOST_LOOKED_THROUGH: usize = 100_000;

#[derive(Deserialize)]
struct Row(Timestamp, RunId, i64, i64);

impl Row {
    fn run(&self) -> RunAt {
        RunAt {
            at: self.0,
            run: self.1,
            shard: self.2,
            state: self.3,
        }
    }
}

/// By fire time and shard.
fn sorted(text: &str) -> Result<Vec<RunAt>, StoreError> {
    let rows: Vec<Row> = decode(text)?;
    let mut runs: Vec<RunAt> = rows.iter().map(Row::run).collect();
    runs.sort_by_key(|run| (run.at, run.shard));
    Ok(runs)
}

impl SqliteStore {
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
        // Until it existed nothing was expected, and what is still to come has not become anything.
        let from = from.max(Timestamp::from_millis(created_at).plus_ms(1));
        let to = to.min(self.db.now().plus_ms(1));
        if is_fixed_delay(&job.spec) {
            return what_happened(&mut tx, id, from, to, limit).await;
        }
        let times = expected(&job.spec, from, to, limit);
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            return Ok(Vec::new());
        };
        let runs = runs_at(&mut tx, id, &times).await?;
        let standing = standing(&mut tx, id, *first, *last, limit).await?;
        entries(&times, &runs, &standing, limit)
    }
}

async fn runs_at(
    conn: &mut SqliteConnection,
    job: i64,
    times: &[Timestamp],
) -> Result<Vec<RunAt>, StoreError> {
    let text: String = sqlx::query_scalar(AT)
        .bind(encode(times)?)
        .bind(job)
        .fetch_one(conn)
        .await
        .map_err(failed("read the runs of fire times"))?;
    sorted(&text)
}

async fn standing(
    conn: &mut SqliteConnection,
    job: i64,
    first: Timestamp,
    last: Timestamp,
    limit: usize,
) -> Result<Vec<StandIn>, StoreError> {
    let text: String = sqlx::query_scalar(STANDING)
        .bind(job)
        .bind(first.as_millis())
        .bind(last.as_millis())
        .bind(int(limit))
        .fetch_one(conn)
        .await
        .map_err(failed("read skipped runs"))?;
    let rows: Vec<(Timestamp, Timestamp, RunId)> = decode(&text)?;
    Ok(rows
        .into_iter()
        .map(|(since, until, run)| StandIn { since, until, run })
        .collect())
}

/// The fire times of a `fixed_delay` job follow from its runs: these are all there is to expect.
async fn what_happened(
    conn: &mut SqliteConnection,
    job: i64,
    from: Timestamp,
    to: Timestamp,
    limit: usize,
) -> Result<Vec<LedgerEntry>, StoreError> {
    let wanted = OfJobs {
        jobs: &encode(&[job])?,
        states: &[],
        before: i64::MAX,
        begun: false,
        limit: MOST_LOOKED_THROUGH,
    };
    let ids = newest_of_jobs(conn, &wanted).await?;
    let text: String = sqlx::query_scalar(BY_ID)
        .bind(encode(&ids)?)
        .bind(from.as_millis())
        .bind(to.as_millis())
        .fetch_one(conn)
        .await
        .map_err(failed("read the runs of fire times"))?;
    let runs = sorted(&text)?;
    runs.iter().take(limit).map(RunAt::entry).collect()
}
