//! Partitions: `run`, `run_event` and `run_log` have one partition per day. A run's id begins with its day.
//!
//! A run's id is its day, written YYMMDD, times 10^10, plus a number from a sequence: `2611210000000042` is a run of 21
//! November 2026. Ids ascend, and stay below 2^53, so that JSON numbers keep them. The day of a run is that of its fire
//! time (schedule, startup), of its creation (manual), or of its parent's fire (child). So runs with the same fire key
//! have the same day, and a unique index per partition makes fire times unique. The sequence skips numbers when the
//! database was promoted or restored (see [`history`](crate::history)).

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use cueline_model::Timestamp;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::error::Result;
use crate::schema;

/// Ids of one day.
const IDS_PER_DAY: i64 = 10_000_000_000;

pub(crate) const DAY_MS: u64 = 24 * 3_600_000;

/// A fire time further from the present counts as this far away. So a job that catches up on years creates partitions
/// for one month only.
const MAX_DISTANCE_MS: u64 = 31 * DAY_MS;

/// The days that an id can express: 2000-01-01 to 2089-12-31.
const FIRST_MS: i64 = 946_684_800_000;
const LAST_MS: i64 = 3_786_911_999_999;

/// Only one transaction at a time changes partitions. The first number marks locks of Cueline.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1131767116, 1)";
const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock(1131767116, 1)";

/// Locks of days. The second number is the day, which is above the numbers of all other locks of Cueline.
const SHARE_DAYS: &str =
    "SELECT pg_advisory_xact_lock_shared(1131767116, d.day) FROM unnest($1::integer[]) d (day)";
const TRY_LOCK_DAY: &str = "SELECT pg_try_advisory_xact_lock(1131767116, $1::integer)";

/// A day is old this long after its end. Retention drops no day before it has been over for twice that time. The
/// difference is much longer than any transaction.
const OLD_AFTER_MS: u64 = DAY_MS / 2;

const EXISTING: &str = "
    SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'run'::regclass ORDER BY c.relname";

/// A UTC day, as it is written in ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Day(i64);

impl Day {
    /// The day of an instant.
    pub(crate) fn of(at: Timestamp) -> Self {
        let millis = at.as_millis().clamp(FIRST_MS, LAST_MS);
        let date = jiff::Timestamp::from_millisecond(millis)
            .map(|at| jiff::tz::Offset::UTC.to_datetime(at).date())
            .unwrap_or_default();
        let (year, month, day) = (date.year(), date.month(), date.day());
        Self(i64::from(year - 2000) * 10_000 + i64::from(month) * 100 + i64::from(day))
    }

    /// The day of a run with this fire time.
    pub(crate) fn of_fire(fire_at: Timestamp, now: Timestamp) -> Self {
        Self::of(fire_at.clamp(now.minus_ms(MAX_DISTANCE_MS), now.plus_ms(MAX_DISTANCE_MS)))
    }

    /// The day in a run's id.
    pub(crate) const fn of_run(id: i64) -> Self {
        Self(id / IDS_PER_DAY)
    }

    /// The id with this number.
    pub(crate) const fn id(self, number: i64) -> i64 {
        self.0 * IDS_PER_DAY + number
    }

    /// Its lowest id, and the first id of later days.
    pub(crate) const fn ids(self) -> (i64, i64) {
        (self.0 * IDS_PER_DAY, (self.0 + 1) * IDS_PER_DAY)
    }

    /// Its end.
    pub(crate) fn end(self) -> Option<Timestamp> {
        let part = |n: i64| i8::try_from(n % 100).ok();
        let year = i16::try_from(2000 + self.0 / 10_000).ok()?;
        let date = jiff::civil::Date::new(year, part(self.0 / 100)?, part(self.0)?).ok()?;
        let start = jiff::tz::Offset::UTC
            .to_timestamp(date.at(0, 0, 0, 0))
            .ok()?;
        Some(Timestamp::from_millis(start.as_millisecond()).plus_ms(DAY_MS))
    }

    /// Its first and its last millisecond.
    pub(crate) fn times(self) -> Option<(Timestamp, Timestamp)> {
        let end = self.end()?;
        Some((end.minus_ms(DAY_MS), end.minus_ms(1)))
    }

    /// Whether retention may drop the day soon.
    fn is_old(self, now: Timestamp) -> bool {
        self.end()
            .is_some_and(|end| end <= now.minus_ms(OLD_AFTER_MS))
    }

    /// The second number of its lock.
    fn lock_number(self) -> i32 {
        i32::try_from(self.0).unwrap_or(i32::MAX)
    }

    fn of_partition(name: &str) -> Option<Self> {
        name.strip_prefix("run_")?.parse().ok().map(Self)
    }
}

impl std::fmt::Display for Day {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:06}", self.0)
    }
}

/// The partitions that this process has seen. If another node drops one, an insert fails. All are then forgotten and
/// looked up again.
#[derive(Debug, Default)]
pub(crate) struct KnownPartitions(Mutex<BTreeSet<Day>>);

impl KnownPartitions {
    /// Creates the missing partitions in a separate transaction. Otherwise the lock of an attached partition, which
    /// lets others read and write, would last as long as the caller's transaction.
    pub(crate) async fn ensure(
        &self,
        connect: &PgConnectOptions,
        days: BTreeSet<Day>,
    ) -> Result<()> {
        let missing: Vec<Day> = {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            days.difference(&known).copied().collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let mut conn = PgConnection::connect_with(connect).await?;
        let mut tx = conn.begin().await?;
        lock_partitions(&mut tx).await?;
        let mut existing = existing_partitions(&mut tx).await?;
        for day in missing {
            if existing.insert(day) {
                sqlx::raw_sql(AssertSqlSafe(create_partitions(day)))
                    .execute(&mut *tx)
                    .await?;
            }
        }
        tx.commit().await?;
        schema::close(conn).await;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = existing;
        Ok(())
    }

    pub(crate) fn forget(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// Keeps other transactions from changing partitions until the end of this one.
pub(crate) async fn lock_partitions(conn: &mut PgConnection) -> Result<()> {
    sqlx::query(LOCK).execute(conn).await?;
    Ok(())
}

/// Like [`lock_partitions`], without a wait. Returns whether it got the lock.
pub(crate) async fn try_lock_partitions(conn: &mut PgConnection) -> Result<bool> {
    let locked: bool = sqlx::query_scalar(TRY_LOCK).fetch_one(conn).await?;
    Ok(locked)
}

/// Notes until the end of the transaction that it writes to these days, if they are old: runs, or what belongs to ended
/// ones. Called before ids are allocated, and before tables of runs are used.
pub(crate) async fn share_old_days(
    conn: &mut PgConnection,
    days: &BTreeSet<Day>,
    now: Timestamp,
) -> Result<()> {
    let old = days.iter().filter(|day| day.is_old(now));
    let old: Vec<i32> = old.map(|day| day.lock_number()).collect();
    if !old.is_empty() {
        sqlx::query(SHARE_DAYS).bind(old).execute(conn).await?;
    }
    Ok(())
}

/// Keeps others from writing to an old day until the end of the transaction. `false` if one is doing that.
pub(crate) async fn try_lock_day(conn: &mut PgConnection, day: Day) -> Result<bool> {
    let locked: bool = sqlx::query_scalar(TRY_LOCK_DAY)
        .bind(day.lock_number())
        .fetch_one(conn)
        .await?;
    Ok(locked)
}

/// The days that have partitions.
pub(crate) async fn existing_partitions(conn: &mut PgConnection) -> Result<BTreeSet<Day>> {
    let names: Vec<String> = sqlx::query_scalar(EXISTING).fetch_all(conn).await?;
    Ok(names
        .iter()
        .filter_map(|name| Day::of_partition(name))
        .collect())
}

/// A partition is created as a table and then attached, so that readers and writers of other days wait for no lock.
fn create_partitions(day: Day) -> String {
    let (first, end) = day.ids();
    let tables = TABLES.map(|(parent, _, with)| {
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

/// Tables of a day, each with the column of its ids and its settings.
const TABLES: [(&str, &str, &str); 3] = [
    // Leaves space for the single update of a run, at its end.
    (
        "run",
        "id",
        "fillfactor = 55, autovacuum_vacuum_cost_delay = 0",
    ),
    ("run_event", "run_id", "fillfactor = 100"),
    ("run_log", "run_id", "fillfactor = 100"),
];

/// The statements that create tables for the runs of a day that are kept. The constraint spares a look at their rows when
/// they are attached.
pub(crate) fn create_kept(day: Day) -> String {
    let (first, end) = day.ids();
    let tables = TABLES.map(|(parent, key, _)| {
        format!(
            "CREATE TABLE {parent}_{day}_kept (LIKE {parent} INCLUDING ALL);
             ALTER TABLE {parent}_{day}_kept ADD CONSTRAINT of_day CHECK ({key} >= {first} AND {key} < {end});"
        )
    });
    let unique =
        format!("CREATE UNIQUE INDEX ON run_{day}_kept (fire_key, job_id, kind, shard_index);");
    tables.concat() + &unique
}

/// The statements that attach these tables in place of the dropped partitions.
pub(crate) fn replace_by_kept(day: Day) -> String {
    let (first, end) = day.ids();
    let tables = TABLES.map(|(parent, ..)| {
        format!(
            "ALTER TABLE {parent}_{day}_kept RENAME TO {parent}_{day};
             ALTER TABLE {parent} ATTACH PARTITION {parent}_{day} FOR VALUES FROM ({first}) TO ({end});
             ALTER TABLE {parent}_{day} DROP CONSTRAINT of_day;"
        )
    });
    tables.concat()
}

/// The statement that locks all that [`drop_partitions`] changes, and no other day. The tables of all days come last,
/// because every transaction waits for them.
pub(crate) fn lock_for_drop(day: Day) -> String {
    format!(
        "LOCK TABLE run_log_{day}, run_event_{day}, run_{day}, ONLY run_log, ONLY run_event, ONLY run
         IN ACCESS EXCLUSIVE MODE"
    )
}

/// The statement that drops the partitions of a day.
pub(crate) fn drop_partitions(day: Day) -> String {
    format!("DROP TABLE run_log_{day}, run_event_{day}, run_{day}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("an instant")
    }

    #[test]
    fn an_id_holds_its_day() {
        let day = Day::of(at("2026-11-21T23:59:59.999Z"));
        assert_eq!(day.id(42), 2_611_210_000_000_042);
        assert_eq!(Day::of_run(day.id(9_999_999_999)), day);
        assert_eq!(day.end(), Some(at("2026-11-22T00:00:00Z")));
        assert_eq!(Day::of(at("2026-11-22T00:00:00Z")).to_string(), "261122");
        assert_eq!(Day::of(at("2003-01-02T00:00:00Z")).to_string(), "030102");
        assert_eq!(
            Day::of_partition("run_030102"),
            Some(Day::of(at("2003-01-02T00:00:00Z")))
        );
    }

    #[test]
    fn a_day_is_old_half_a_day_after_its_end() {
        let day = Day::of(at("2026-11-21T10:00:00Z"));
        assert!(!day.is_old(at("2026-11-22T11:59:59.999Z")));
        assert!(day.is_old(at("2026-11-22T12:00:00Z")));
        assert_eq!(day.lock_number(), 261_121);
        assert!(Day::of(Timestamp::from_millis(FIRST_MS)).lock_number() > 2);
    }

    #[test]
    fn ids_ascend_and_fit_json_numbers() {
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
    fn a_day_out_of_range_becomes_the_nearest_one() {
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
