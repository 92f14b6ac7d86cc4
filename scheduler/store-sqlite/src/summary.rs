//! Jobs with what a list shows of them.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{Job, JobId, JobName, RunState, Timestamp};
use cueline_store::adapter::definitions::parse;
use cueline_store::{JobSummary, StoreError};
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::error::failed;
use crate::reads::{OfJobs, STRETCH_BITS, bounds, newest_of_jobs, read_runs};
use crate::rows::{decode, encode, int, state, unsigned};

const BY_NAME: &str = "
    SELECT j.id, j.version, j.definition, d.next_fire_at FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.name = ?1 AND j.deleted_at IS NULL";

pub(crate) const LIST: &str = "
    SELECT j.id, j.version, j.definition, d.next_fire_at FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.name > ?1 AND j.deleted_at IS NULL ORDER BY j.name LIMIT ?2";

const FIRST_FROM: &str = "SELECT id, created_at FROM run WHERE id >= ?1 ORDER BY id LIMIT 1";

pub(crate) const DAY: &str = "
    SELECT json_group_array(json_array(job_id, state, n)) FROM (
        SELECT r.job_id, r.state, count(*) AS n
        FROM json_each(?1) b CROSS JOIN json_each(?2) j CROSS JOIN run r ON r.id >> 14 = b.value AND r.job_id = j.value
        WHERE r.id >= ?3 GROUP BY r.job_id, r.state ORDER BY r.job_id, r.state)";

const DAY_MS: u64 = 24 * 3_600_000;

/// The counts of the last day reach back over the newest 16 million runs of all jobs at the most.
const MOST_STRETCHES: i64 = 1_024;

type Row = (i64, i64, String, Option<i64>);

impl SqliteStore {
    pub(crate) async fn one_job(&self, name: &JobName) -> Result<JobSummary, StoreError> {
        let mut tx = self.db.snapshot().await?;
        let rows: Vec<Row> = sqlx::query_as(BY_NAME)
            .bind(name.as_str())
            .fetch_all(&mut *tx)
            .await
            .map_err(failed("read a job"))?;
        self.summaries(&mut tx, rows)
            .await?
            .pop()
            .ok_or_else(|| StoreError::no_job(name.as_str()))
    }

    pub(crate) async fn list_jobs(
        &self,
        after: Option<&JobName>,
        limit: usize,
    ) -> Result<Vec<JobSummary>, StoreError> {
        let mut tx = self.db.snapshot().await?;
        let rows: Vec<Row> = sqlx::query_as(LIST)
            .bind(after.map_or("", JobName::as_str))
            .bind(int(limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed("list jobs"))?;
        self.summaries(&mut tx, rows).await
    }

    pub(crate) async fn read_definitions(
        &self,
        ids: &[JobId],
    ) -> Result<Vec<Arc<Job>>, StoreError> {
        let mut conn = self.db.read().await?;
        let list: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let mut found = self.definitions.load(&mut conn, &list).await?;
        Ok(list.iter().filter_map(|id| found.remove(id)).collect())
    }

    async fn summaries(
        &self,
        conn: &mut SqliteConnection,
        rows: Vec<Row>,
    ) -> Result<Vec<JobSummary>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<i64> = rows.iter().map(|r| r.0).collect();
        let mut days = self.last_day(conn, &ids).await?;
        let mut summaries = Vec::with_capacity(rows.len());
        for (id, version, definition, next_fire) in rows {
            let wanted = OfJobs {
                jobs: &encode(&[id])?,
                states: &[],
                before: i64::MAX,
                begun: true,
                limit: 1,
            };
            let newest = newest_of_jobs(conn, &wanted).await?;
            summaries.push(JobSummary {
                job: parse(id, version, &definition)?,
                next_fire: next_fire.map(Timestamp::from_millis),
                last: read_runs(conn, &newest).await?.pop(),
                day: days.remove(&id).unwrap_or_default(),
            });
        }
        Ok(summaries)
    }

    /// How many runs of each job since this time yesterday are in which state.
    async fn last_day(
        &self,
        conn: &mut SqliteConnection,
        jobs: &[i64],
    ) -> Result<HashMap<i64, Vec<(RunState, u64)>>, StoreError> {
        let (lowest, highest) = bounds(conn).await?;
        let since = self.db.now().minus_ms(DAY_MS).as_millis();
        let first = first_since(conn, lowest, highest, since).await?;
        let top = highest >> STRETCH_BITS;
        let bottom = (first >> STRETCH_BITS).max(top - MOST_STRETCHES + 1);
        let stretches: Vec<i64> = (bottom..=top).collect();
        let text: String = sqlx::query_scalar(DAY)
            .bind(encode(&stretches)?)
            .bind(encode(jobs)?)
            .bind(first)
            .fetch_one(conn)
            .await
            .map_err(failed("count the runs of the last day"))?;
        let mut days: HashMap<i64, Vec<(RunState, u64)>> = HashMap::new();
        for (job, code, count) in decode::<(i64, i64, i64)>(&text)? {
            days.entry(job)
                .or_default()
                .push((state(code)?, unsigned(count)));
        }
        Ok(days)
    }
}

/// The lowest id of a run written at `since` or later, by halving: ids ascend with the time of writing.
async fn first_since(
    conn: &mut SqliteConnection,
    lowest: i64,
    highest: i64,
    since: i64,
) -> Result<i64, StoreError> {
    let (mut low, mut high) = (lowest, highest.saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        let row: Option<(i64, i64)> = sqlx::query_as(FIRST_FROM)
            .bind(middle)
            .fetch_optional(&mut *conn)
            .await
            .map_err(failed("find the first run of the last day"))?;
        match row {
            Some((id, created_at)) if created_at < since => low = id + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}
