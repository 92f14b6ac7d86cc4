//! Creates and migrates the schema under a lock. Refuses the database of another program.
//!
//! A migration adds tables, columns with defaults, and indexes. Programs that do not know it continue to work, so a
//! cluster can be upgraded node by node. A migration that does more raises `compatible_from` to its own version.
//! Programs that know fewer migrations then refuse the database.
//!
//! The hash of each applied migration is stored. A database whose migrations were edited since is refused.

use cueline_store::adapter::migrations::{AppliedMigration, check_applied, migration_hash};
use cueline_store::{ErrorKind, StoreError};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::error::Result;

/// One step from the version before to its own.
struct Migration {
    sql: &'static str,
    /// The lowest version that a program must know to work with the schema after this step.
    compatible_from: i32,
}

/// Each migrates the schema from version `index` to `index + 1`. Never edited after a release.
const MIGRATIONS: [Migration; 3] = [
    Migration {
        sql: include_str!("../migrations/0001_store.sql"),
        compatible_from: 1,
    },
    Migration {
        sql: include_str!("../migrations/0002_alarms.sql"),
        compatible_from: 1,
    },
    Migration {
        sql: include_str!("../migrations/0003_broker_reach.sql"),
        compatible_from: 1,
    },
];

/// Migrations run one at a time. The first number marks locks of Cueline.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1131767116, 2)";

const COUNT_TABLES: &str = "
    SELECT count(*), count(*) FILTER (WHERE tablename = 'cueline_schema'),
        count(*) FILTER (WHERE tablename = 'cueline_migration')
    FROM pg_tables WHERE schemaname = current_schema()";

/// Cueline sends UTF-8. `SQL_ASCII` keeps any bytes, and other encodings lack characters.
const ENCODING_WITHOUT_SOME_TEXT: &str = "
    SELECT getdatabaseencoding()::text WHERE getdatabaseencoding() NOT IN ('UTF8', 'SQL_ASCII')";

const READ: &str = "SELECT version, compatible_from FROM cueline_schema";

const READ_APPLIED: &str = "SELECT version::bigint, sha256 FROM cueline_migration";

const CREATE: &str = "
    CREATE TABLE cueline_schema (
        only_row        boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        version         integer NOT NULL,
        compatible_from integer NOT NULL);
    -- The SHA-256 of the SQL of each applied migration.
    CREATE TABLE cueline_migration (
        version integer PRIMARY KEY,
        sha256  text    NOT NULL)";

const WRITE: &str = "
    INSERT INTO cueline_schema (version, compatible_from) VALUES ($1, $2)
    ON CONFLICT (only_row) DO UPDATE SET version = excluded.version, compatible_from = excluded.compatible_from";

const WRITE_APPLIED: &str = "INSERT INTO cueline_migration (version, sha256) VALUES ($1, $2)";

/// The version of a database's schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaVersion {
    /// The number of migrations that were applied.
    pub version: i32,
    /// The number of migrations that a program must know to work with it.
    pub compatible_from: i32,
}

fn known() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

fn refused(reason: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Broken,
        format!("failed to open the store: {reason}"),
    )
}

/// Migrates an empty or older database. Fails if that is not allowed.
pub(crate) async fn prepare(connect: &PgConnectOptions, may_migrate: bool) -> Result<()> {
    let mut conn = PgConnection::connect_with(connect).await?;
    let found = read(&mut conn).await?;
    close(conn).await;
    match found {
        Some(found) if found.version >= known() => Ok(()),
        _ if may_migrate => migrate(connect).await.map(drop),
        None => Err(refused(
            "the database is empty; create its tables with `cueline migrate`",
        )
        .into()),
        Some(found) => Err(refused(&format!(
            "its schema has version {}, this program needs version {}; migrate it with `cueline migrate`",
            found.version,
            known()
        ))
        .into()),
    }
}

/// Migrates an empty or older database to the newest version.
pub(crate) async fn migrate(connect: &PgConnectOptions) -> Result<SchemaVersion> {
    let mut conn = PgConnection::connect_with(connect).await?;
    let mut tx = conn.begin().await?;
    // A migration may take long, and other processes wait for it.
    sqlx::raw_sql("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        .execute(&mut *tx)
        .await?;
    sqlx::query(LOCK).execute(&mut *tx).await?;
    let found = read(&mut tx).await?;
    if found.is_none() {
        sqlx::raw_sql(CREATE).execute(&mut *tx).await?;
    }
    let mut now = found.unwrap_or(SchemaVersion {
        version: 0,
        compatible_from: 0,
    });
    let done = usize::try_from(now.version).unwrap_or_default();
    for (migration, version) in MIGRATIONS.iter().zip(1..).skip(done) {
        sqlx::raw_sql(AssertSqlSafe(migration.sql))
            .execute(&mut *tx)
            .await?;
        now = SchemaVersion {
            version,
            compatible_from: migration.compatible_from,
        };
        sqlx::query(WRITE)
            .bind(now.version)
            .bind(now.compatible_from)
            .execute(&mut *tx)
            .await?;
        sqlx::query(WRITE_APPLIED)
            .bind(version)
            .bind(migration_hash(migration.sql))
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    close(conn).await;
    Ok(now)
}

/// Closes a connection that is no longer needed. A failure has no consequences, so it is ignored.
pub(crate) async fn close(conn: PgConnection) {
    conn.close().await.ok();
}

/// The version of the schema; `None` for an empty database. Fails for a database that this program may not use.
async fn read(conn: &mut PgConnection) -> Result<Option<SchemaVersion>> {
    let encoding: Option<String> = sqlx::query_scalar(ENCODING_WITHOUT_SOME_TEXT)
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(encoding) = encoding {
        return Err(refused(&format!(
            "the database has the encoding {encoding}, which cannot keep every text; give Cueline a database with the encoding UTF8"
        ))
        .into());
    }
    let (tables, ours, hashes): (i64, i64, i64) =
        sqlx::query_as(COUNT_TABLES).fetch_one(&mut *conn).await?;
    if tables == 0 {
        return Ok(None);
    }
    if ours == 0 {
        return Err(refused(
            "the database holds tables of another program; give Cueline a database, or a schema, of its own",
        )
        .into());
    }
    let (version, compatible_from): (i32, i32) = sqlx::query_as(READ).fetch_one(&mut *conn).await?;
    if compatible_from > known() {
        return Err(refused(&format!(
            "its schema has version {version}, which programs that know version {compatible_from} can use; this program knows versions 1 to {}; use a newer program",
            known()
        ))
        .into());
    }
    let applied: Vec<AppliedMigration> = if hashes == 0 {
        Vec::new()
    } else {
        sqlx::query_as(READ_APPLIED).fetch_all(conn).await?
    };
    let migrations: Vec<&str> = MIGRATIONS.iter().map(|migration| migration.sql).collect();
    let count = usize::try_from(version).unwrap_or_default();
    check_applied(&migrations, count, &applied)?;
    Ok(Some(SchemaVersion {
        version,
        compatible_from,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statements of a migration, each on one line and without comments.
    fn statements(sql: &str) -> Vec<String> {
        let lines = sql
            .lines()
            .map(|line| line.split("--").next().unwrap_or_default());
        let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        let text = words.join(" ");
        let parts = text.split(';').map(|part| part.trim().to_owned());
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// The statement, if programs that do not know it could not continue to work.
    fn breaks(statement: &str, made: &mut Vec<String>) -> Option<String> {
        let words: Vec<&str> = statement.split([' ', '(']).collect();
        let adds = match words.as_slice() {
            ["CREATE", "TABLE", name, ..] => {
                made.push((*name).to_owned());
                true
            }
            ["CREATE", "INDEX" | "SEQUENCE", ..] => true,
            // On an older table, these may refuse rows of an older program.
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

    /// An upgrade node by node depends on this.
    #[test]
    fn each_migration_only_adds_or_raises_compatible_from() {
        let mut made = Vec::new();
        for (migration, version) in MIGRATIONS.iter().zip(1_i32..).skip(1) {
            let breaking: Vec<String> = statements(migration.sql)
                .iter()
                .filter_map(|s| breaks(s, &mut made))
                .collect();
            assert!(
                breaking.is_empty() || migration.compatible_from == version,
                "migration {version} claims to work with programs from version {}, but they do not know: {breaking:#?}",
                migration.compatible_from
            );
            made.clear();
        }
    }

    #[test]
    fn statements_that_do_more_than_add_are_found() {
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
            "DROP INDEX run_unsuccessful",
        ] {
            assert!(breaks(bad, &mut made).is_some(), "{bad}");
        }
    }
}
