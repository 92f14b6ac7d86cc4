//! Days: the partitions of `run`, `run_event` and `run_log`, and the upper part of a run's id.
//!
//! A run's id is its day, written YYMMDD, times 10^10, plus a number from a sequence: `2611210000000042` is a run of
//! 21 November 2026. It ascends, people can read it, and it stays below 2^53, so it survives JSON numbers. The day of a run is that of
//! its fire time (schedule, startup), of its writing (manual), or of its parent's (child): whatever has the same fire key has the same
//! day, so that a unique index within each partition makes fire times unique.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use cueline_model::Timestamp;
use cueline_store::StoreError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::error::failed;

/// Ids of one day.
const IDS_PER_DAY: i64 = 10_000_000_000;

pub(crate) const DAY_MS: u64 = 24 * 3_600_000;

/// Fire times further away than this from the time of writing count as this far away: a job that catches up years makes
/// partitions for a month, not for each day of them.
const FURTHEST_MS: u64 = 31 * DAY_MS;

/// What a day's id can express: 2000-01-01 to 2089-12-31.
const FIRST_MS: i64 = 946_684_800_000;
const LAST_MS: i64 = 3_786_911_999_999;

/// Whoever changes partitions holds this lock; the first number marks locks of Cueline.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1131767116, 1)";

const EXISTING: &str = "
    SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'run'::regclass ORDER BY c.relname";

/// A day as it is written in ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Day(i64);

impl Day {
    /// The UTC day of an instant.
    pub(crate) fn of(at: Timestamp) -> Self {
        let millis = at.as_millis().clamp(FIRST_MS, LAST_MS);
        let date = jiff::Timestamp::from_millisecond(millis)
            .map(|at| jiff::tz::Offset::UTC.to_datetime(at).date())
            .unwrap_or_default();
        let (year, month, day) = (date.year(), date.month(), date.day());
        Self(i64::from(year - 2000) * 10_000 + i64::from(month) * 100 + i64::from(day))
    }

    /// The day under which a run with that fire time is kept.
    pub(crate) fn of_fire(fire_at: Timestamp, now: Timestamp) -> Self {
        Self::of(fire_at.clamp(now.minus_ms(FURTHEST_MS), now.plus_ms(FURTHEST_MS)))
    }

    /// The day in a run's id.
    pub(crate) const fn of_run(id: i64) -> Self {
        Self(id / IDS_PER_DAY)
    }

    /// The id with that number.
    pub(crate) const fn id(self, number: i64) -> i64 {
        self.0 * IDS_PER_DAY + number
    }

    /// Its lowest id and the first one behind it.
    pub(crate) const fn ids(self) -> (i64, i64) {
        (self.0 * IDS_PER_DAY, (self.0 + 1) * IDS_PER_DAY)
    }

    /// When it is over.
    pub(crate) fn end(self) -> Option<Timestamp> {
        let part = |n: i64| i8::try_from(n % 100).ok();
        let year = i16::try_from(2000 + self.0 / 10_000).ok()?;
        let date = jiff::civil::Date::new(year, part(self.0 / 100)?, part(self.0)?).ok()?;
        let start = jiff::tz::Offset::UTC
            .to_timestamp(date.at(0, 0, 0, 0))
            .ok()?;
        Some(Timestamp::from_millis(start.as_millisecond()).plus_ms(DAY_MS))
    }

    fn from_partition(name: &str) -> Option<Self> {
        name.strip_prefix("run_")?.parse().ok().map(Self)
    }
}

impl std::fmt::Display for Day {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:06}", self.0)
    }
}

/// The days that are known to have partitions. A day that somebody else has dropped meanwhile makes an insert fail; then it is forgotten
/// here and made again.
#[derive(Debug, Default)]
pub(crate) struct Days(Mutex<BTreeSet<Day>>);

impl Days {
    /// Makes the partitions that are not there yet, in a transaction of their own: the lock that attaching takes lets others read and
    /// write, but it would last as long as the caller's transaction.
    pub(crate) async fn ensure(
        &self,
        options: &PgConnectOptions,
        wanted: BTreeSet<Day>,
    ) -> Result<(), StoreError> {
        let missing: BTreeSet<Day> = {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            wanted
                .into_iter()
                .filter(|day| !known.contains(day))
                .collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let fail = failed("make room for the runs of another day");
        let mut conn = PgConnection::connect_with(options).await.map_err(&fail)?;
        let mut tx = conn.begin().await.map_err(&fail)?;
        hold_days(&mut tx).await?;
        let mut there = existing(&mut tx).await?;
        for day in missing {
            if there.insert(day) {
                sqlx::raw_sql(AssertSqlSafe(create(day)))
                    .execute(&mut *tx)
                    .await
                    .map_err(&fail)?;
            }
        }
        tx.commit().await.map_err(&fail)?;
        // The connection has done its work; how its end goes changes nothing.
        conn.close().await.ok();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = there;
        Ok(())
    }

    pub(crate) fn forget(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// Lets nobody else change partitions until the end of the transaction.
pub(crate) async fn hold_days(conn: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query(LOCK)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("lock the days that have runs"))
}

/// The days that have partitions.
pub(crate) async fn existing(conn: &mut PgConnection) -> Result<BTreeSet<Day>, StoreError> {
    let names: Vec<String> = sqlx::query_scalar(EXISTING)
        .fetch_all(conn)
        .await
        .map_err(failed("list the days that have runs"))?;
    Ok(names
        .iter()
        .filter_map(|name| Day::from_partition(name))
        .collect())
}

/// Made aside and attached: that needs no lock that readers or writers of other days would wait for.
fn create(day: Day) -> String {
    let (first, end) = day.ids();
    let tables = [
        // Room for the one update that a run gets at its end.
        ("run", "fillfactor = 55, autovacuum_vacuum_cost_delay = 0"),
        ("run_event", "fillfactor = 100"),
        ("run_log", "fillfactor = 100"),
    ];
    let tables = tables.map(|(parent, with)| {
        format!(
            "CREATE TABLE {parent}_{day} (LIKE {parent} INCLUDING ALL) WITH ({with});
             ALTER TABLE {parent} ATTACH PARTITION {parent}_{day} FOR VALUES FROM ({first}) TO ({end});"
        )
    });
    let unique = format!(
        "CREATE UNIQUE INDEX run_{day}_fire ON run_{day} (fire_key, job_id, kind, shard_index);"
    );
    tables.concat() + &unique
}

/// Drops a day with all that is in it.
pub(crate) fn drop_day(day: Day) -> String {
    format!("DROP TABLE run_log_{day}, run_event_{day}, run_{day}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("an instant")
    }

    #[test]
    fn an_id_tells_its_day() {
        let day = Day::of(at("2026-11-21T23:59:59.999Z"));
        assert_eq!(day.id(42), 2_611_210_000_000_042);
        assert_eq!(Day::of_run(day.id(9_999_999_999)), day);
        assert_eq!(day.end(), Some(at("2026-11-22T00:00:00Z")));
        assert_eq!(Day::of(at("2026-11-22T00:00:00Z")).to_string(), "261122");
        assert_eq!(Day::of(at("2003-01-02T00:00:00Z")).to_string(), "030102");
        assert_eq!(
            Day::from_partition("run_030102"),
            Some(Day::of(at("2003-01-02T00:00:00Z")))
        );
    }

    #[test]
    fn ids_ascend_and_survive_json() {
        let days = [
            "2026-12-31T00:00:00Z",
            "2027-01-01T00:00:00Z",
            "2089-12-31T00:00:00Z",
        ];
        let ids: Vec<i64> = days.iter().map(|d| Day::of(at(d)).id(0)).collect();
        assert!(ids.is_sorted());
        assert!(ids[2] + IDS_PER_DAY < 1 << 53);
    }

    #[test]
    fn what_an_id_cannot_express_goes_to_the_nearest_day() {
        assert_eq!(
            Day::of(Timestamp::from_millis(0)),
            Day::of(at("2000-01-01T00:00:00Z"))
        );
        assert_eq!(
            Day::of(Timestamp::from_millis(i64::MAX)),
            Day::of(at("2089-12-31T00:00:00Z"))
        );
        let now = at("2026-11-21T12:00:00Z");
        assert_eq!(
            Day::of_fire(at("2020-01-01T00:00:00Z"), now),
            Day::of(at("2026-10-21T12:00:00Z"))
        );
        assert_eq!(
            Day::of_fire(at("2026-11-20T00:00:00Z"), now).to_string(),
            "261120"
        );
    }
}
