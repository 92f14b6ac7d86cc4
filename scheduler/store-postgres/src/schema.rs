//! The schema: created and brought up to date under a lock, refused when it is not ours to touch.
//!
//! A migration adds (tables, columns with defaults, indexes), so that programs that do not know of it go on beside it. One that cannot be so
//! raises `compatible_from` to its own version: programs that know fewer migrations refuse the database from then on.

use cueline_store::{ErrorKind, StoreError};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::error::failed;

/// One step from the version before to its own.
struct Migration {
    sql: &'static str,
    /// Programs that know this version, or a later one, work with the database after this step.
    compatible_from: i32,
}

/// Each brings the schema from version `index` to `index + 1`. Never edited once released.
const MIGRATIONS: [Migration; 1] = [Migration {
    sql: include_str!("../migrations/0001_store.sql"),
    compatible_from: 1,
}];

/// Whoever changes the schema holds this lock; the first number marks locks of Cueline.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1131767116, 2)";

const TABLES: &str = "
    SELECT count(*), count(*) FILTER (WHERE tablename = 'cueline_schema') FROM pg_tables WHERE schemaname = current_schema()";

const READ: &str = "SELECT version, compatible_from FROM cueline_schema";

const CREATE: &str = "
    CREATE TABLE cueline_schema (
        only_row        boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        version         integer NOT NULL,
        compatible_from integer NOT NULL)";

const WRITE: &str = "
    INSERT INTO cueline_schema (version, compatible_from) VALUES ($1, $2)
    ON CONFLICT (only_row) DO UPDATE SET version = excluded.version, compatible_from = excluded.compatible_from";

/// What a database's schema is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaVersion {
    /// How many migrations it has seen.
    pub version: i32,
    /// A program works with it that knows at least so many migrations.
    pub compatible_from: i32,
}

fn known() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

fn refused(why: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Broken,
        format!("failed to open the store: {why}"),
    )
}

/// Refuses a database that this program cannot work with; with `may_migrate`, makes it one that it can.
pub(crate) async fn check(connect: &PgConnectOptions, may_migrate: bool) -> Result<(), StoreError> {
    let mut conn = open(connect).await?;
    let found = read(&mut conn).await?;
    close(conn).await;
    match found {
        Some(found) if found.version >= known() => Ok(()),
        _ if may_migrate => migrate(connect).await.map(drop),
        None => Err(refused(
            "the database is empty; create its tables with `cueline migrate`",
        )),
        Some(found) => Err(refused(&format!(
            "its schema has version {}, this program needs version {}; bring it up to date with `cueline migrate`",
            found.version,
            known()
        ))),
    }
}

/// Brings an empty or older database up to date.
pub(crate) async fn migrate(connect: &PgConnectOptions) -> Result<SchemaVersion, StoreError> {
    let fail = failed("bring the store's schema up to date");
    let mut conn = open(connect).await?;
    let mut tx = conn.begin().await.map_err(&fail)?;
    // Long steps are no reason to give up, and those who come second wait for the first.
    sqlx::raw_sql("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        .execute(&mut *tx)
        .await
        .map_err(&fail)?;
    sqlx::query(LOCK).execute(&mut *tx).await.map_err(&fail)?;
    let found = read(&mut tx).await?;
    let from = found.map_or(0, |found| found.version);
    let done = usize::try_from(from).unwrap_or_default();
    let mut now = found.unwrap_or(SchemaVersion {
        version: 0,
        compatible_from: 0,
    });
    if found.is_none() {
        sqlx::query(CREATE).execute(&mut *tx).await.map_err(&fail)?;
    }
    for (migration, version) in MIGRATIONS.iter().zip(1..).skip(done) {
        sqlx::raw_sql(AssertSqlSafe(migration.sql))
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        now = SchemaVersion {
            version,
            compatible_from: migration.compatible_from,
        };
        sqlx::query(WRITE)
            .bind(now.version)
            .bind(now.compatible_from)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
    }
    tx.commit().await.map_err(&fail)?;
    close(conn).await;
    Ok(now)
}

async fn open(connect: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    PgConnection::connect_with(connect)
        .await
        .map_err(failed("open the store"))
}

async fn close(conn: PgConnection) {
    // It has done its work; how its end goes changes nothing.
    conn.close().await.ok();
}

/// The schema's version, if there is one; an error if the database is not ours or too new.
async fn read(conn: &mut PgConnection) -> Result<Option<SchemaVersion>, StoreError> {
    let fail = failed("open the store");
    let (tables, ours): (i64, i64) = sqlx::query_as(TABLES)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    if tables == 0 {
        return Ok(None);
    }
    if ours == 0 {
        return Err(refused(
            "the database holds tables of another program; give Cueline a database, or a schema, of its own",
        ));
    }
    let (version, compatible_from): (i32, i32) =
        sqlx::query_as(READ).fetch_one(conn).await.map_err(&fail)?;
    let found = SchemaVersion {
        version,
        compatible_from,
    };
    if found.compatible_from > known() {
        return Err(refused(&format!(
            "its schema has version {version}, which programs that know version {compatible_from} can use; this program knows versions 1 to {}; use a newer program",
            known()
        )));
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statements of a migration, on one line each and without remarks.
    fn statements(sql: &str) -> Vec<String> {
        let lines = sql
            .lines()
            .map(|line| line.split("--").next().unwrap_or_default());
        let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        let text = words.join(" ");
        let parts = text.split(';').map(|part| part.trim().to_owned());
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// Why programs that do not know of the statement could not go on beside it.
    fn breaks(statement: &str, made: &mut Vec<String>) -> Option<String> {
        let words: Vec<&str> = statement.split([' ', '(']).collect();
        let adds = match words.as_slice() {
            ["CREATE", "TABLE", name, ..] => {
                made.push((*name).to_owned());
                true
            }
            ["CREATE", "INDEX" | "SEQUENCE", ..] => true,
            // Of what was there already a unique one may refuse what they write.
            ["CREATE", "UNIQUE", "INDEX", _, "ON", table, ..]
            | ["INSERT", "INTO", table, ..]
            | ["ALTER", "TABLE", table, "ADD", ..]
                if made.iter().any(|m| m == table) =>
            {
                true
            }
            ["ALTER", "TABLE", _, "ADD", "COLUMN", ..] => {
                !statement.contains("NOT NULL") || statement.contains("DEFAULT")
            }
            _ => false,
        };
        (!adds).then(|| statement.to_owned())
    }

    /// What an upgrade one node after the other hangs on: either a migration only adds, or it says that older programs cannot go on.
    #[test]
    fn each_migration_only_adds_or_says_who_cannot_go_on() {
        let mut made = Vec::new();
        for (migration, version) in MIGRATIONS.iter().zip(1_i32..).skip(1) {
            let breaking: Vec<String> = statements(migration.sql)
                .iter()
                .filter_map(|s| breaks(s, &mut made))
                .collect();
            assert!(
                breaking.is_empty() || migration.compatible_from == version,
                "migration {version} works with programs of version {} and on, it says, but they do not know: {breaking:#?}",
                migration.compatible_from
            );
            made.clear();
        }
    }

    #[test]
    fn what_does_not_only_add_is_found() {
        let mut made = vec!["own".to_owned()];
        for good in [
            "CREATE TABLE other (id int)",
            "CREATE INDEX i ON run (id)",
            "CREATE UNIQUE INDEX i ON own (id)",
            "INSERT INTO own (id) VALUES (1)",
            "ALTER TABLE run ADD COLUMN more text",
            "ALTER TABLE run ADD COLUMN more text NOT NULL DEFAULT ''",
        ] {
            assert_eq!(breaks(good, &mut made), None);
        }
        for bad in [
            "ALTER TABLE run DROP COLUMN output",
            "ALTER TABLE run ADD COLUMN more text NOT NULL",
            "ALTER TABLE run RENAME TO runs",
            "ALTER TABLE run ADD CONSTRAINT c CHECK (id > 0)",
            "CREATE UNIQUE INDEX i ON run (fire_at)",
            "UPDATE run SET kind = 0",
            "DROP INDEX run_mishap",
        ] {
            assert!(breaks(bad, &mut made).is_some(), "{bad}");
        }
    }
}
