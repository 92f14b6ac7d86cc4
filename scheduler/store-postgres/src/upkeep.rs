//! Forgetting what is old, and repairing what should not happen.
//!
//! With a retention of days, a day's runs are dropped with their partition, in an instant, as soon as the last of them ended long enough ago.
//! Runs are deleted one by one where that cannot be: with a shorter retention, and on days that some long run keeps.

use cueline_model::Timestamp;
use cueline_store::StoreError;
use sqlx::AssertSqlSafe;

use crate::PgStore;
use crate::database::commit;
use crate::days::{DAY_MS, Day, drop_day, existing, hold_days};
use crate::error::{failed, is_lock_timeout};
use crate::follow::{hold, set_next};
use crate::rows::{bounds, int, unsigned};

/// Of a day: a run that has not ended long enough ago. Those are the last ones rather than the first.
pub(crate) const REMAINING: &str = "
    SELECT id FROM run WHERE id >= $1 AND id < $2 AND (ended_at >= $3 OR ended_at IS NULL) ORDER BY id DESC LIMIT 1";

/// Of a day: its runs, and the newest of them.
const WHOLE: &str = "SELECT count(*), max(id) FROM run WHERE id >= $1 AND id < $2";

const NEWEST: &str = "SELECT max(id) FROM run WHERE id >= $1 AND id < $2";

/// A window of runs by id: the highest id, the earliest time of writing, and those that are old enough. One of many shards stays as long as
/// another of them lives: what follows from that one's end depends on all.
pub(crate) const OLD: &str = "
    SELECT max(id), min(created_at), coalesce(array_agg(id) FILTER (WHERE ended_at < $4 AND (shard_total = 1 OR NOT EXISTS
        (SELECT FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
            AND s.id >= $5 AND s.id < $2 AND s.ended_at IS NULL))), '{}')
    FROM (SELECT id, created_at, ended_at, shard_total, fire_key, job_id, kind FROM run
        WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3) part";

const DELETES: [&str; 4] = [
    "DELETE FROM run_log l USING unnest($1::bigint[]) e (id) WHERE l.run_id = e.id AND l.run_id BETWEEN $2 AND $3",
    "DELETE FROM run_event v USING unnest($1::bigint[]) e (id) WHERE v.run_id = e.id AND v.run_id BETWEEN $2 AND $3",
    "DELETE FROM trigger_key k USING unnest($1::bigint[]) e (id) WHERE k.first_run = e.id AND k.first_run BETWEEN $2 AND $3",
    "DELETE FROM run r USING unnest($1::bigint[]) e (id) WHERE r.id = e.id AND r.id BETWEEN $2 AND $3",
];

const FORGET_KEYS: &str = "DELETE FROM trigger_key WHERE first_run >= $1 AND first_run < $2";

/// Waiting for the lock that dropping takes makes everybody else wait as well: rather another time.
const HURRY: &str = "SET LOCAL lock_timeout = 200";
const LOCK_RUNS: &str = "LOCK TABLE run, run_event, run_log IN ACCESS EXCLUSIVE MODE";

/// Executors that were silent for as long have nothing that is known of them any more.
const FORGET_EXECUTORS: &str = "
    DELETE FROM executor WHERE last_heartbeat_at < $1
        AND NOT EXISTS (SELECT FROM run_live l WHERE l.state IN (1, 2, 3) AND l.executor = executor.name)";

/// Looked at again when they are held: whoever holds them all would keep the ends of their runs waiting.
const MAY_REST: &str = "
    SELECT d.job_id FROM job_due d WHERE d.fixed_delay AND d.enabled AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.awaited)";

/// Of jobs that the transaction holds, those that neither run nor are due.
const RESTING: &str = "
    SELECT d.job_id, d.version FROM unnest($1::bigint[]) e (id) JOIN job_due d ON d.job_id = e.id
    WHERE d.fixed_delay AND d.enabled AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.awaited)";

/// From this retention on, days are kept whole until they can be dropped.
const WHOLE_DAYS_FROM_MS: u64 = 2 * DAY_MS;

/// So long after its last run could have been forgotten, a day is no longer waited for.
const PATIENCE_MS: u64 = DAY_MS;

/// Runs looked at by one statement.
const WINDOW: usize = 5_000;

impl PgStore {
    pub(crate) async fn forget(&self, older_than_ms: u64, limit: usize) -> Result<u64, StoreError> {
        let mut conn = self.db.glance().await?;
        let before = self.db.now(&mut conn).await?.minus_ms(older_than_ms);
        let days = existing(&mut conn).await?;
        drop(conn);
        let whole = older_than_ms >= WHOLE_DAYS_FROM_MS;
        let mut forgotten = 0;
        let mut one_by_one = Vec::new();
        for day in days {
            let over = |at: Timestamp| day.end().is_some_and(|end| end <= at);
            let waited = over(before.minus_ms(PATIENCE_MS));
            if (whole || waited)
                && over(before)
                && let Some(runs) = self.drop_if_ended(day, before).await?
            {
                forgotten += runs;
                continue;
            }
            if !whole || waited {
                one_by_one.push(day);
            }
        }
        Ok(forgotten + self.delete_old(&one_by_one, before, limit).await?)
    }

    /// Drops a day with all its runs, if all have ended before `before` and nobody is reading or writing runs just now; how many they were.
    async fn drop_if_ended(&self, day: Day, before: Timestamp) -> Result<Option<u64>, StoreError> {
        let fail = failed("drop an old day");
        let (first, end) = day.ids();
        let mut tx = self.db.write().await?;
        hold_days(&mut tx).await?;
        if !existing(&mut tx).await?.contains(&day) {
            return Ok(None);
        }
        let remaining: Option<i64> = sqlx::query_scalar(REMAINING)
            .bind(first)
            .bind(end)
            .bind(before.as_millis())
            .fetch_optional(&mut *tx)
            .await
            .map_err(&fail)?;
        if remaining.is_some() {
            return Ok(None);
        }
        let (runs, newest): (i64, Option<i64>) = sqlx::query_as(WHOLE)
            .bind(first)
            .bind(end)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        sqlx::query(HURRY).execute(&mut *tx).await.map_err(&fail)?;
        if !locked(sqlx::query(LOCK_RUNS).execute(&mut *tx).await)? {
            return Ok(None);
        }
        // What was written meanwhile, a child of an old run perhaps, has a higher number.
        let newest_now: Option<i64> = sqlx::query_scalar(NEWEST)
            .bind(first)
            .bind(end)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        if newest_now != newest {
            return Ok(None);
        }
        let dropped = sqlx::raw_sql(AssertSqlSafe(drop_day(day)))
            .execute(&mut *tx)
            .await;
        if !locked(dropped)? {
            return Ok(None);
        }
        sqlx::query(FORGET_KEYS)
            .bind(first)
            .bind(end)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        self.db.forget_days();
        Ok(Some(unsigned(runs)))
    }

    /// Deletes runs of these days that ended before `before`, at most `limit`, and executors that were not heard since; how many runs.
    async fn delete_old(
        &self,
        days: &[Day],
        before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let fail = failed("delete old runs");
        let mut tx = self.db.write().await?;
        let mut old: Vec<i64> = Vec::new();
        for day in days {
            let (first, end) = day.ids();
            let mut from = first;
            while old.len() < limit {
                let (last, earliest, ids): (Option<i64>, Option<i64>, Vec<i64>) =
                    sqlx::query_as(OLD)
                        .bind(from)
                        .bind(end)
                        .bind(int(WINDOW))
                        .bind(before.as_millis())
                        .bind(first)
                        .fetch_one(&mut *tx)
                        .await
                        .map_err(&fail)?;
                old.extend(ids);
                // What was written later cannot have ended earlier.
                match (last, earliest) {
                    (Some(last), Some(earliest)) if earliest < before.as_millis() => {
                        from = last + 1;
                    }
                    _ => break,
                }
            }
        }
        old.sort_unstable();
        old.truncate(limit);
        if !old.is_empty() {
            let (low, high) = bounds(old.iter().copied());
            for delete in DELETES {
                sqlx::query(delete)
                    .bind(&old)
                    .bind(low)
                    .bind(high)
                    .execute(&mut *tx)
                    .await
                    .map_err(&fail)?;
            }
        }
        sqlx::query(FORGET_EXECUTORS)
            .bind(before.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        Ok(old.len() as u64)
    }

    pub(crate) async fn mend(&self) -> Result<u64, StoreError> {
        let fail = failed("repair fixed-delay jobs");
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let may_rest: Vec<i64> = sqlx::query_scalar(MAY_REST)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        if may_rest.is_empty() {
            return Ok(0);
        }
        hold(&mut tx, may_rest.clone()).await?;
        let resting: Vec<(i64, i64)> = sqlx::query_as(RESTING)
            .bind(may_rest)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        let jobs = self
            .definitions
            .of(&mut tx, resting.iter().copied())
            .await?;
        let mut next = Vec::new();
        for (id, _) in resting {
            // None: its end has passed, it rests for good.
            let at = jobs.get(&id).and_then(|job| job.spec.next_fire(now));
            next.extend(at.map(|at| (id, Some(at.as_millis()))));
        }
        let mended = next.len() as u64;
        if mended > 0 {
            set_next(&mut tx, next).await?;
        }
        commit(tx).await?;
        Ok(mended)
    }
}

/// Whether a statement got the locks that it needs; another error stays one.
fn locked<T>(result: Result<T, sqlx::Error>) -> Result<bool, StoreError> {
    match result.map_err(failed("drop an old day")) {
        Ok(_) => Ok(true),
        Err(error) if is_lock_timeout(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
