//! Deletes expired runs, and repairs fixed-delay jobs.
//!
//! With a retention of at least two days, the partitions of a day are dropped once its last run has expired (see
//! [`drop_day`](crate::drop_day)). With a shorter retention, or if a long run keeps the day, runs are deleted one by
//! one.

use cueline_model::Timestamp;
use cueline_store::adapter::convert::to_i64;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::id_range;
use crate::drop_day::MAX_WINDOWS;
use crate::error::Result;
use crate::follow_ups::{lock_jobs, set_next_fires};
use crate::partitions::{DAY_MS, Day, existing_partitions};

/// A window of runs by id: the highest id, the earliest time of writing, and the ids of the expired runs. A shard is
/// kept as long as another shard of its fire is live, because the follow-ups of the last end depend on all shards. The
/// same holds for the runs of a flow run with a live child run.
pub(crate) const EXPIRED: &str = "
    SELECT max(id), min(created_at), coalesce(array_agg(id) FILTER (WHERE ended_at < $4
        AND (shard_total = 1 OR NOT EXISTS
            (SELECT FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
                AND s.id >= $5 AND s.id < $2 AND s.ended_at IS NULL))
        AND NOT EXISTS (SELECT FROM run c WHERE c.fire_key = CASE WHEN part.kind IN (1, 2) THEN part.fire_key ELSE part.id END
            AND c.kind = 2 AND c.id >= $5 AND c.id < $2 AND c.ended_at IS NULL)), '{}')
    FROM (SELECT id, created_at, ended_at, shard_total, fire_key, job_id, kind FROM run
        WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3) part";

const DELETES: [&str; 4] = [
    "DELETE FROM run_log l USING unnest($1::bigint[]) e (id) WHERE l.run_id = e.id AND l.run_id BETWEEN $2 AND $3",
    "DELETE FROM run_event v USING unnest($1::bigint[]) e (id) WHERE v.run_id = e.id AND v.run_id BETWEEN $2 AND $3",
    "DELETE FROM trigger_key k USING unnest($1::bigint[]) e (id) WHERE k.first_run = e.id AND k.first_run BETWEEN $2 AND $3",
    "DELETE FROM run r USING unnest($1::bigint[]) e (id) WHERE r.id = e.id AND r.id BETWEEN $2 AND $3",
];

/// Executors whose last heartbeat has expired too, and that hold no run. The live runs are read once, not once for each
/// executor.
const DELETE_EXECUTORS: &str = "
    DELETE FROM executor WHERE last_heartbeat_at < $1
        AND name NOT IN (SELECT l.executor FROM run_live l WHERE l.state IN (1, 2, 3) AND l.executor IS NOT NULL)";

/// Executed without locks, and again with the found jobs locked. Locking all fixed-delay jobs would delay the ends of
/// their runs.
const MAYBE_IDLE: &str = "
    SELECT d.job_id FROM job_due d WHERE d.fixed_delay AND d.enabled AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.delays_next_fire)";

const IDLE_WITHOUT_NEXT_FIRE: &str = "
    SELECT d.job_id, d.version FROM unnest($1::bigint[]) e (id) JOIN job_due d ON d.job_id = e.id
    WHERE d.fixed_delay AND d.enabled AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.delays_next_fire)";

/// With at least this retention, runs are kept until their whole day is dropped.
const WHOLE_DAYS_FROM_MS: u64 = 2 * DAY_MS;

/// A day that still has not been dropped after this time is kept by a long run. Its other runs are deleted one by one.
const KEEP_WHOLE_MS: u64 = DAY_MS;

/// The number of runs that one statement examines.
const WINDOW: usize = 5_000;

impl PgStore {
    pub(crate) async fn delete_expired_runs(
        &self,
        older_than_ms: u64,
        limit: usize,
    ) -> Result<u64> {
        let mut conn = self.db.autocommit().await?;
        let before = self.db.now(&mut conn).await?.minus_ms(older_than_ms);
        let days = existing_partitions(&mut conn).await?;
        drop(conn);
        self.day_checks.retain(&days);
        let mut windows = MAX_WINDOWS;
        let whole_days = older_than_ms >= WHOLE_DAYS_FROM_MS;
        let mut deleted = 0;
        let mut one_by_one = Vec::new();
        for day in days {
            let is_over = |at: Timestamp| day.end().is_some_and(|end| end <= at);
            let overdue = is_over(before.minus_ms(KEEP_WHOLE_MS));
            if (whole_days || overdue)
                && is_over(before)
                && let Some(runs) = self.drop_expired_day(day, before, &mut windows).await?
            {
                deleted += runs;
            } else if !whole_days || overdue {
                one_by_one.push(day);
            }
        }
        Ok(deleted + self.delete_expired(&one_by_one, before, limit).await?)
    }

    /// Deletes at most `limit` expired runs of these days, and expired executors. Returns the number of runs.
    async fn delete_expired(&self, days: &[Day], before: Timestamp, limit: usize) -> Result<u64> {
        // They are found before the transaction that deletes them. An expired run stays expired.
        let mut conn = self.db.autocommit().await?;
        let mut expired: Vec<i64> = Vec::new();
        for day in days {
            let wanted = limit.saturating_sub(expired.len());
            expired.extend(expired_of_day(&mut conn, *day, before, wanted).await?);
        }
        drop(conn);
        expired.sort_unstable();
        expired.truncate(limit);
        let mut tx = self.db.write().await?;
        if !expired.is_empty() {
            let (low, high) = id_range(expired.iter().copied());
            for delete in DELETES {
                sqlx::query(delete)
                    .bind(&expired)
                    .bind(low)
                    .bind(high)
                    .execute(&mut *tx)
                    .await?;
            }
        }
        sqlx::query(DELETE_EXECUTORS)
            .bind(before.as_millis())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(expired.len() as u64)
    }

    /// The server reuses the space of deleted rows by its autovacuum, and dropped days give theirs back at once.
    #[expect(clippy::unused_async, reason = "other stores ask their file")]
    pub(crate) async fn release_space(&self) -> Result<bool> {
        Ok(false)
    }

    pub(crate) async fn repair_fixed_delay_jobs(&self) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let maybe_idle: Vec<i64> = sqlx::query_scalar(MAYBE_IDLE).fetch_all(&mut *tx).await?;
        if maybe_idle.is_empty() {
            return Ok(0);
        }
        lock_jobs(&mut tx, maybe_idle.clone()).await?;
        let idle: Vec<(i64, i64)> = sqlx::query_as(IDLE_WITHOUT_NEXT_FIRE)
            .bind(maybe_idle)
            .fetch_all(&mut *tx)
            .await?;
        let jobs = self.definitions.get(&mut tx, idle).await?;
        // A job with an exhausted schedule has no next fire time and needs no repair.
        let next: Vec<(i64, Option<Timestamp>)> = jobs
            .iter()
            .map(|(id, job)| (*id, job.spec.next_fire(now)))
            .filter(|(_, at)| at.is_some())
            .collect();
        if !next.is_empty() {
            set_next_fires(&mut tx, &next).await?;
        }
        tx.commit().await?;
        Ok(next.len() as u64)
    }
}

/// The ids of expired runs of a day; `wanted` of them or a few more.
async fn expired_of_day(
    conn: &mut PgConnection,
    day: Day,
    before: Timestamp,
    wanted: usize,
) -> Result<Vec<i64>> {
    let (first, end) = day.ids();
    let mut from = first;
    let mut expired = Vec::new();
    while expired.len() < wanted {
        let (last, earliest, ids): (Option<i64>, Option<i64>, Vec<i64>) = sqlx::query_as(EXPIRED)
            .bind(from)
            .bind(end)
            .bind(to_i64(WINDOW))
            .bind(before.as_millis())
            .bind(first)
            .fetch_one(&mut *conn)
            .await?;
        expired.extend(ids);
        // A run ends after it was written, so runs that were written later have not expired either.
        match (last, earliest) {
            (Some(last), Some(earliest)) if earliest < before.as_millis() => from = last + 1,
            _ => break,
        }
    }
    Ok(expired)
}
