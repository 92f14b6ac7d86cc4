//! Replaces the partitions of a day by small ones that have only the runs that are kept longer.
//!
//! Without this, one run of a job with a longer retention would keep its day, and all others of the day would be deleted
//! one by one. The kept runs are few. They are copied to new tables, which then take the place of the partitions. One
//! commit drops the old ones and attaches the new ones, so readers find each run in the partition of its day.
//!
//! The copy locks no table. It holds the lock of the day (see [`try_lock_day`]), which each transaction shares that writes
//! to an old day: new runs, late reports about ended ones, and deletions. So nothing is written to the old tables after it
//! was copied. These writers wait for the copy, which is short: [`MAX_COPIED`](crate::drop_day::MAX_COPIED) bounds it.
//! Nobody else waits for it. The exchange needs the locks of a drop, with the same limit.

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::drop_day::{DayCheck, lock_tables, note_pruned};
use crate::error::Result;
use crate::partitions::{
    Day, create_kept, drop_partitions, existing_partitions, replace_by_kept, try_lock_day,
    try_lock_partitions,
};

/// The most lines of their logs and timelines that are copied. If there are more, the other runs of the day are deleted one
/// by one.
const MAX_COPIED_LINES: i64 = 200_000;

/// The number of lines of these runs in one table; at most $4.
const LOG_LINES: &str = "
    SELECT count(*) FROM (SELECT FROM unnest($1::bigint[]) e (id) JOIN run_log l ON l.run_id = e.id AND l.run_id BETWEEN $2 AND $3
        LIMIT $4) part";
const EVENTS: &str = "
    SELECT count(*) FROM (SELECT FROM unnest($1::bigint[]) e (id) JOIN run_event v ON v.run_id = e.id AND v.run_id BETWEEN $2 AND $3
        LIMIT $4) part";

impl PgStore {
    /// Replaces the partitions, unless they are in use, have got a new run, or have too many lines to copy. The caller
    /// ends the transaction.
    pub(crate) async fn try_rewrite(
        &self,
        conn: &mut PgConnection,
        day: Day,
        check: &DayCheck,
    ) -> Result<bool> {
        let exists = existing_partitions(conn).await?.contains(&day);
        let is_free = exists && try_lock_day(conn, day).await?;
        if !is_free || !self.is_unchanged(conn, day, check).await? {
            return Ok(false);
        }
        let (first, end) = day.ids();
        for count in [LOG_LINES, EVENTS] {
            let lines: i64 = sqlx::query_scalar(count)
                .bind(&check.kept)
                .bind(first)
                .bind(end - 1)
                .bind(MAX_COPIED_LINES)
                .fetch_one(&mut *conn)
                .await?;
            if lines >= MAX_COPIED_LINES {
                return Ok(false);
            }
        }
        sqlx::raw_sql(AssertSqlSafe(create_kept(day)))
            .execute(&mut *conn)
            .await?;
        for (table, key) in [
            ("run", "id"),
            ("run_event", "run_id"),
            ("run_log", "run_id"),
        ] {
            let copy = format!(
                "INSERT INTO {table}_{day}_kept SELECT old.* FROM unnest($1::bigint[]) e (id) JOIN {table}_{day} old ON old.{key} = e.id"
            );
            sqlx::query(AssertSqlSafe(copy))
                .bind(&check.kept)
                .execute(&mut *conn)
                .await?;
        }
        // Not before the copy: a transaction that needs a new day waits for this lock.
        let may_exchange = try_lock_partitions(conn).await?
            && existing_partitions(conn).await?.contains(&day)
            && lock_tables(conn, day).await?;
        if !may_exchange {
            return Ok(false);
        }
        let exchange = format!("{}; {}", drop_partitions(day), replace_by_kept(day));
        sqlx::raw_sql(AssertSqlSafe(exchange))
            .execute(&mut *conn)
            .await?;
        note_pruned(conn, day).await?;
        Ok(true)
    }
}
