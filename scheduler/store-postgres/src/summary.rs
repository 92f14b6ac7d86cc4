//! Jobs with what a list shows of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{Job, JobId, JobName, RunState, Timestamp};
use cueline_store::adapter::definitions::parse;
use cueline_store::{JobSummary, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::days::{DAY_MS, Day, existing};
use crate::error::failed;
use crate::reads::{OfJobs, STRETCH_BITS, ids_of_days, newest_of_jobs, read_runs};
use crate::rows::{int, state, unsigned};

const BY_NAME: &str = "
    SELECT j.id, j.version, j.definition, d.next_fire_at FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.name = $1 AND j.deleted_at IS NULL";

pub(crate) const LIST: &str = "
    SELECT j.id, j.version, j.definition, d.next_fire_at FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.name > $1 AND j.deleted_at IS NULL ORDER BY j.name LIMIT $2";

pub(crate) const DAY: &str = "
    SELECT r.job_id, coalesce(l.state, r.state) AS state, count(*)
    FROM unnest($1::bigint[]) b (stretch), unnest($2::bigint[]) j (id), run r LEFT JOIN run_live l ON l.id = r.id
    WHERE r.id >> 14 = b.stretch AND r.job_id = j.id AND r.id BETWEEN $3 AND $4 AND r.created_at >= $5
    GROUP BY 1, 2 ORDER BY 1, 2";

/// The counts of the last day reach back over the newest 16 million runs of all jobs at the most.
const MOST_STRETCHES: usize = 1_024;

type Row = (i64, i64, String, Option<i64>);

impl PgStore {
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
        conn: &mut PgConnection,
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
                jobs: &[id],
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

    /// How many runs of each job, written since this time yesterday for fire times since yesterday, are in which state.
    async fn last_day(
        &self,
        conn: &mut PgConnection,
        jobs: &[i64],
    ) -> Result<HashMap<i64, Vec<(RunState, u64)>>, StoreError> {
        let since = self.db.now(conn).await?.minus_ms(DAY_MS);
        let days: BTreeSet<Day> = existing(conn).await?.split_off(&Day::of(since));
        let stretches: Vec<i64> = ids_of_days(conn, days)
            .await?
            .into_iter()
            .rev()
            .flat_map(|(low, high)| (low >> STRETCH_BITS..=high >> STRETCH_BITS).rev())
            .take(MOST_STRETCHES)
            .collect();
        let (Some(high), Some(low)) = (stretches.first(), stretches.last()) else {
            return Ok(HashMap::new());
        };
        let rows: Vec<(i64, i16, i64)> = sqlx::query_as(DAY)
            .bind(&stretches)
            .bind(jobs)
            .bind(low << STRETCH_BITS)
            .bind(((high + 1) << STRETCH_BITS) - 1)
            .bind(since.as_millis())
            .fetch_all(conn)
            .await
            .map_err(failed("count the runs of the last day"))?;
        let mut days: HashMap<i64, Vec<(RunState, u64)>> = HashMap::new();
        for (job, code, count) in rows {
            days.entry(job)
                .or_default()
                .push((state(code)?, unsigned(count)));
        }
        Ok(days)
    }
}
