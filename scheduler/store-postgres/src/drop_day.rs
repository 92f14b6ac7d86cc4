//! Drops the partitions of a day whose runs have all expired.
//!
//! A drop needs an exclusive lock on the tables of all runs, and everything waits for it. So the slow work comes before
//! the lock, in short statements that are transactions of their own. They examine the runs and delete their idempotency
//! keys. Under the lock there are two look-ups and the drop. The drop only changes the catalog: PostgreSQL deletes the
//! files after it has released the locks. If the lock is not free within [`LOCK_WITHIN`], the next turn tries again.
//!
//! `DETACH PARTITION … CONCURRENTLY` would wait without delaying others. But it is three commits for three tables, each
//! in two steps. After a crash in between, the day exists in part. Every node would have to recognise that and finish
//! it. Until then no run could be written to the day. A drop under a lock is done or not done.
//!
//! No run is written between the examination and the drop without being noticed. Transactions that write to an old day
//! hold a lock on that day from before they allocate ids (see [`share_old_days`](crate::partitions::share_old_days)).
//! The examination begins when none of them is in progress, so each later one writes a higher id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cueline_model::Timestamp;
use cueline_store::adapter::convert::{to_i64, to_u64};
use cueline_store::adapter::retention::Horizon;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::error::{Error, Result};
use crate::partitions::{
    Day, drop_partitions, existing_partitions, lock_for_drop, try_lock_day, try_lock_partitions,
};

/// A window of runs below an id: their number, the lowest id, and whether all have expired. It goes downwards, because
/// late runs expire last.
pub(crate) const CHECK_WINDOW: &str = "
    SELECT count(*), min(id), coalesce(bool_and(coalesce(ended_at < $3, false)), true)
    FROM (SELECT id, ended_at FROM run WHERE id >= $1 AND id < $2 ORDER BY id DESC LIMIT $4) part";

/// The highest id of a day, and whether a run of the day is live.
pub(crate) const NEWEST: &str = "
    SELECT (SELECT max(id) FROM run WHERE id >= $1 AND id < $2), EXISTS (SELECT FROM run_live WHERE id >= $1 AND id < $2)";

/// The same where rules keep runs longer. $3 is when runs without a rule have expired, $5 the present time. Also the runs
/// that are kept, and when the first of them expires.
pub(crate) const CHECK_WINDOW_BY_RULES: &str = "
    SELECT count(*), min(id), coalesce(bool_and(coalesce(ended_at < $3, false)), true),
        coalesce(array_agg(id) FILTER (WHERE expires_at >= $5), '{}'), min(expires_at) FILTER (WHERE expires_at >= $5)
    FROM (SELECT r.id, r.ended_at, r.ended_at + coalesce(j.keep_age_ms, g.age_ms) AS expires_at
        FROM (SELECT id, ended_at, job_id FROM run WHERE id >= $1 AND id < $2 ORDER BY id DESC LIMIT $4) r
            LEFT JOIN job j ON j.id = r.job_id LEFT JOIN group_retention g ON g.group_name = j.group_name) part";

/// Runs of all jobs were deleted up to the end of the day.
const NOTE_PRUNED: &str = "
    INSERT INTO pruned_until (job_id, fire_at) VALUES (0, $1)
    ON CONFLICT (job_id) DO UPDATE SET fire_at = greatest(pruned_until.fire_at, excluded.fire_at)";

pub(crate) const DELETE_KEYS: &str = "
    DELETE FROM trigger_key k
    USING (SELECT job_id, key FROM trigger_key WHERE first_run >= $1 AND first_run < $2 ORDER BY first_run LIMIT $3) e
    WHERE k.job_id = e.job_id AND k.key = e.key";

/// The longest wait for all locks of a drop together. Transactions that use the tables wait behind it.
const LOCK_WITHIN: &str = "SET LOCAL statement_timeout = 200";
const USUAL_TIMEOUT: &str = "SET LOCAL statement_timeout TO DEFAULT";

/// The number of runs that one statement examines, and of keys that one statement deletes.
const WINDOW: usize = 5_000;

/// The most of these statements in one call. The next call continues.
pub(crate) const MAX_WINDOWS: usize = 100;

/// The most runs of a day that are [copied](crate::rewrite_day). If more are kept, the others of the day are deleted one by
/// one.
pub(crate) const MAX_COPIED: usize = 20_000;

/// A day with fewer runs to delete is not worth the locks of a copy.
const MIN_DELETED: u64 = 1_000;

/// Whether the kept runs of a day are few enough for a copy, and the others many enough.
fn is_worth_it(runs: u64, kept: usize) -> bool {
    let deleted = runs.saturating_sub(kept as u64);
    kept <= MAX_COPIED && deleted >= MIN_DELETED.max(kept as u64)
}

/// How far days were examined. An expired run stays expired, so no run is examined twice, until a kept one expires. There
/// is at most one entry per partition, with at most [`MAX_COPIED`] ids and those of one window.
#[derive(Debug, Default)]
pub(crate) struct DayChecks(Mutex<BTreeMap<Day, DayCheck>>);

#[derive(Debug, Clone)]
pub(crate) struct DayCheck {
    /// Runs that ended before have expired.
    before: Timestamp,
    /// The rules of the examination, if some of them keep runs longer.
    rules: Option<i64>,
    /// The highest id when the examination began.
    newest: Option<i64>,
    /// The runs from this id to the newest have expired, or are kept.
    expired_from: i64,
    /// Their number.
    runs: u64,
    /// Those that are kept longer. The examination ends if they are too many.
    pub(crate) kept: Vec<i64>,
    /// When the first of them expires.
    kept_until: Option<i64>,
}

impl DayChecks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Day, DayCheck>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, request: DropRequest<'_>) -> Option<DayCheck> {
        let check = self.lock().get(&request.day).cloned();
        let now = request.horizon.now.as_millis();
        // With a longer retention, or by other rules, the runs may not have expired.
        check.filter(|check| {
            check.before <= request.horizon.before
                && check.rules == request.rules
                && check.kept_until.is_none_or(|until| until >= now)
        })
    }

    fn put(&self, day: Day, check: DayCheck) {
        self.lock().insert(day, check);
    }

    fn forget(&self, day: Day) {
        self.lock().remove(&day);
    }

    /// Forgets the days without partitions.
    pub(crate) fn retain(&self, days: &BTreeSet<Day>) {
        self.lock().retain(|day, _| days.contains(day));
    }
}

/// A day to drop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DropRequest<'a> {
    pub(crate) day: Day,
    pub(crate) horizon: &'a Horizon,
    /// A digest of the rules, if some of them keep runs longer.
    pub(crate) rules: Option<i64>,
}

impl PgStore {
    /// Drops the partitions of a day if all its runs have expired, or [replaces](crate::rewrite_day) them if a few are kept
    /// longer. Returns the number of deleted runs. `None` if a run has not expired, too many are kept, the tables are in
    /// use, or the examination is not finished. `windows` is what is left of [`MAX_WINDOWS`].
    pub(crate) async fn drop_expired_day(
        &self,
        request: DropRequest<'_>,
        windows: &mut usize,
    ) -> Result<Option<u64>> {
        let day = request.day;
        let Some(check) = self.check_day(request, windows).await? else {
            return Ok(None);
        };
        let is_emptied = check.kept.is_empty();
        if !is_emptied && !is_worth_it(check.runs, check.kept.len()) {
            return Ok(None);
        }
        if !self.delete_keys(day, windows).await? {
            return Ok(None);
        }
        let mut tx = self.db.write().await?;
        let dropped = if is_emptied {
            self.try_drop(&mut tx, day, &check).await
        } else {
            self.try_rewrite(&mut tx, day, &check).await
        };
        if !matches!(dropped, Ok(true)) {
            // At once, because others wait for the locks.
            tx.roll_back().await;
            return dropped.map(|_| None);
        }
        tx.commit().await?;
        self.day_checks.forget(day);
        if is_emptied {
            self.db.forget_partitions();
        }
        Ok(Some(check.runs.saturating_sub(check.kept.len() as u64)))
    }

    /// Examines the runs of a day. Returns the result if all have expired or are kept, unless too many are kept.
    async fn check_day(
        &self,
        request: DropRequest<'_>,
        windows: &mut usize,
    ) -> Result<Option<DayCheck>> {
        let day = request.day;
        let known = self.day_checks.get(request);
        let begun = match known {
            Some(check) => Some(check),
            None => self.begin_check(request).await?,
        };
        let Some(mut check) = begun else {
            return Ok(None);
        };
        let (first, _) = day.ids();
        let mut conn = self.db.autocommit().await?;
        let mut is_finished = false;
        while *windows > 0 && !is_finished && check.kept.len() <= MAX_COPIED {
            *windows -= 1;
            let window = examine(&mut conn, request, check.expired_from).await?;
            if !window.has_expired {
                break;
            }
            check.runs += to_u64(window.runs);
            check.expired_from = window.lowest.unwrap_or(first);
            check.kept.extend(window.kept);
            check.kept_until = earlier(check.kept_until, window.kept_until);
            is_finished = window.lowest.is_none();
        }
        self.day_checks.put(day, check.clone());
        Ok(is_finished.then_some(check))
    }

    /// Begins to examine a day. `None` while a transaction writes runs to it.
    async fn begin_check(&self, request: DropRequest<'_>) -> Result<Option<DayCheck>> {
        let day = request.day;
        let mut tx = self.db.write().await?;
        let newest = if try_lock_day(&mut tx, day).await? {
            Some(newest_run(&mut tx, day).await?.0)
        } else {
            None
        };
        tx.roll_back().await;
        Ok(newest.map(|newest| DayCheck {
            before: request.horizon.before,
            rules: request.rules,
            newest,
            expired_from: newest.map_or(day.ids().0, |id| id + 1),
            runs: 0,
            kept: Vec::new(),
            kept_until: None,
        }))
    }

    /// Deletes the idempotency keys of a day. Returns whether none is left. No key is added to an old day.
    async fn delete_keys(&self, day: Day, windows: &mut usize) -> Result<bool> {
        let (first, end) = day.ids();
        let mut conn = self.db.autocommit().await?;
        while *windows > 0 {
            *windows -= 1;
            let deleted = sqlx::query(DELETE_KEYS)
                .bind(first)
                .bind(end)
                .bind(to_i64(WINDOW))
                .execute(&mut *conn)
                .await?;
            if deleted.rows_affected() < WINDOW as u64 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Drops the partitions, unless they are in use or have got a new run. The caller ends the transaction.
    async fn try_drop(&self, conn: &mut PgConnection, day: Day, check: &DayCheck) -> Result<bool> {
        if !try_lock_partitions(conn).await? || !existing_partitions(conn).await?.contains(&day) {
            return Ok(false);
        }
        if !lock_tables(conn, day).await? || !self.is_unchanged(conn, day, check).await? {
            return Ok(false);
        }
        sqlx::raw_sql(AssertSqlSafe(drop_partitions(day)))
            .execute(&mut *conn)
            .await?;
        note_pruned(conn, day).await?;
        Ok(true)
    }

    /// Whether the day has got no run since its examination, and none is live.
    pub(crate) async fn is_unchanged(
        &self,
        conn: &mut PgConnection,
        day: Day,
        check: &DayCheck,
    ) -> Result<bool> {
        let (newest, is_live) = newest_run(conn, day).await?;
        if newest > check.newest || is_live {
            self.day_checks.forget(day);
            return Ok(false);
        }
        Ok(true)
    }
}

/// The columns of [`CHECK_WINDOW_BY_RULES`].
type KeptRow = (i64, Option<i64>, bool, Vec<i64>, Option<i64>);

/// A window of the runs of a day.
struct ExaminedWindow {
    runs: i64,
    lowest: Option<i64>,
    has_expired: bool,
    kept: Vec<i64>,
    kept_until: Option<i64>,
}

/// Examines the runs below an id.
async fn examine(
    conn: &mut PgConnection,
    request: DropRequest<'_>,
    below: i64,
) -> Result<ExaminedWindow> {
    let (first, _) = request.day.ids();
    let before = request.horizon.before.as_millis();
    if request.rules.is_none() {
        let (runs, lowest, has_expired): (i64, Option<i64>, bool) = sqlx::query_as(CHECK_WINDOW)
            .bind(first)
            .bind(below)
            .bind(before)
            .bind(to_i64(WINDOW))
            .fetch_one(conn)
            .await?;
        return Ok(ExaminedWindow {
            runs,
            lowest,
            has_expired,
            kept: Vec::new(),
            kept_until: None,
        });
    }
    let (runs, lowest, has_expired, kept, kept_until): KeptRow =
        sqlx::query_as(CHECK_WINDOW_BY_RULES)
            .bind(first)
            .bind(below)
            .bind(before)
            .bind(to_i64(WINDOW))
            .bind(request.horizon.now.as_millis())
            .fetch_one(conn)
            .await?;
    Ok(ExaminedWindow {
        runs,
        lowest,
        has_expired,
        kept,
        kept_until,
    })
}

/// The earlier of two times that may be missing.
fn earlier(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a.into_iter().chain(b).min()
}

/// Locks the tables of a day and those of all days, if they are free within [`LOCK_WITHIN`]. Returns whether they are
/// locked. If not, the transaction has to be rolled back.
pub(crate) async fn lock_tables(conn: &mut PgConnection, day: Day) -> Result<bool> {
    sqlx::query(LOCK_WITHIN).execute(&mut *conn).await?;
    let locked = sqlx::raw_sql(AssertSqlSafe(lock_for_drop(day)))
        .execute(&mut *conn)
        .await;
    if !got_lock(locked)? {
        return Ok(false);
    }
    sqlx::query(USUAL_TIMEOUT).execute(conn).await?;
    Ok(true)
}

/// Notes that runs of all jobs were deleted up to the end of the day.
pub(crate) async fn note_pruned(conn: &mut PgConnection, day: Day) -> Result<()> {
    let end = day.end().map_or(i64::MAX, Timestamp::as_millis);
    sqlx::query(NOTE_PRUNED)
        .bind(end.saturating_sub(1))
        .execute(conn)
        .await?;
    Ok(())
}

/// The highest id of a day, and whether a run of the day is live.
async fn newest_run(conn: &mut PgConnection, day: Day) -> Result<(Option<i64>, bool)> {
    let (first, end) = day.ids();
    let newest: (Option<i64>, bool) = sqlx::query_as(NEWEST)
        .bind(first)
        .bind(end)
        .fetch_one(conn)
        .await?;
    Ok(newest)
}

/// Returns whether a statement got its locks in time. Passes other errors on.
fn got_lock<T>(result: std::result::Result<T, sqlx::Error>) -> Result<bool> {
    match result.map_err(Error::from) {
        Ok(_) => Ok(true),
        Err(error) if error.is_timeout() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_rewritten_for_few_kept_among_many() {
        assert!(is_worth_it(1_000_000, 5));
        assert!(is_worth_it(40_000, 20_000));
        assert!(!is_worth_it(1_000_000, MAX_COPIED + 1), "the copy is short");
        assert!(
            !is_worth_it(30_000, 20_000),
            "fewer are deleted than copied"
        );
        assert!(!is_worth_it(1_000, 1), "few are deleted soon enough");
        assert!(!is_worth_it(5, 5));
    }
}
