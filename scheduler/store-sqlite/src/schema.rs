//! Creates or migrates the schema when the store is opened. Refuses the file of another program.
//!
//! The hash of each applied migration is stored. A file whose migrations were edited since is refused.

use cueline_store::adapter::migrations::{AppliedMigration, check_applied, migration_hash};
use cueline_store::{ErrorKind, StoreError};
use sqlx::{AssertSqlSafe, SqliteConnection, SqlitePool};

use crate::error::Result;

/// Marks the file as a Cueline store, <https://www.sqlite.org/pragma.html#pragma_application_id>: `CueL`.
const APPLICATION_ID: i64 = 0x4375_654c;

/// Each migrates the schema from version `index` to `index + 1`. Never edited after a release.
const MIGRATIONS: [&str; 3] = [
    include_str!("../migrations/0001_store.sql"),
    include_str!("../migrations/0002_alarms.sql"),
    include_str!("../migrations/0003_broker_reach.sql"),
];

const READ_STATE: &str = "
    SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),
        (SELECT count(*) FROM sqlite_schema), (SELECT count(*) FROM sqlite_schema WHERE name = 'cueline_migration')";

/// The SHA-256 of the SQL of each applied migration.
const CREATE_APPLIED: &str = "
    CREATE TABLE IF NOT EXISTS cueline_migration (version INTEGER PRIMARY KEY, sha256 TEXT NOT NULL) STRICT";

const READ_APPLIED: &str = "SELECT version, sha256 FROM cueline_migration";

const WRITE_APPLIED: &str = "INSERT INTO cueline_migration (version, sha256) VALUES (?1, ?2)";

/// Migrates an empty or older file. Fails if that is not allowed. The file of another program is not changed.
pub(crate) async fn prepare(writer: &SqlitePool, may_migrate: bool) -> Result<()> {
    let mut connection = writer.acquire().await?;
    let version = read_version(&mut connection).await?;
    if !may_migrate {
        return Ok(require_current(version)?);
    }
    // The file keeps this setting, so other connections need not set it.
    sqlx::query("PRAGMA journal_mode = WAL")
        .execute(&mut *connection)
        .await?;
    drop(connection);
    migrate(writer).await
}

fn refused(reason: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Broken,
        format!("failed to open the store: {reason}"),
    )
}

fn require_current(version: usize) -> std::result::Result<(), StoreError> {
    let needed = MIGRATIONS.len();
    match version {
        0 => Err(refused(
            "the file is empty; create its tables with `cueline migrate`",
        )),
        version if version < needed => Err(refused(&format!(
            "its schema has version {version}, this program needs version {needed}; migrate it with `cueline migrate`"
        ))),
        _ => Ok(()),
    }
}

async fn migrate(writer: &SqlitePool) -> Result<()> {
    let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
    let from = read_version(&mut tx).await?;
    for (migration, version) in MIGRATIONS.iter().zip(1_i64..).skip(from) {
        sqlx::raw_sql(*migration).execute(&mut *tx).await?;
        sqlx::query(CREATE_APPLIED).execute(&mut *tx).await?;
        sqlx::query(WRITE_APPLIED)
            .bind(version)
            .bind(migration_hash(migration))
            .execute(&mut *tx)
            .await?;
        let mark =
            format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};");
        sqlx::raw_sql(AssertSqlSafe(mark)).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}

/// The number of migrations that were applied to the file. Fails if it is not a store that this program knows.
async fn read_version(conn: &mut SqliteConnection) -> Result<usize> {
    let (application_id, version, tables, hashes): (i64, i64, i64, i64) =
        sqlx::query_as(READ_STATE).fetch_one(&mut *conn).await?;
    if application_id == 0 && version == 0 && tables == 0 {
        return Ok(0);
    }
    if application_id != APPLICATION_ID {
        return Err(refused("the file is a database of another program").into());
    }
    let known = usize::try_from(version).unwrap_or_default();
    if !(1..=MIGRATIONS.len()).contains(&known) {
        return Err(refused(&format!(
            "its schema has version {version}, this program knows versions 1 to {}; use a newer program",
            MIGRATIONS.len()
        ))
        .into());
    }
    let applied: Vec<AppliedMigration> = if hashes == 0 {
        Vec::new()
    } else {
        sqlx::query_as(READ_APPLIED).fetch_all(conn).await?
    };
    check_applied(&MIGRATIONS, known, &applied)?;
    Ok(known)
}
