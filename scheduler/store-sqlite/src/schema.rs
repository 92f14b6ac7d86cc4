//! Creates or migrates the schema when the store is opened. Refuses the file of another program.

use cueline_store::{ErrorKind, StoreError};
use sqlx::{AssertSqlSafe, SqliteConnection, SqlitePool};

use crate::error::Result;

/// Marks the file as a Cueline store, <https://www.sqlite.org/pragma.html#pragma_application_id>: `CueL`.
const APPLICATION_ID: i64 = 0x4375_654c;

/// Each migrates the schema from version `index` to `index + 1`. Never edited after a release.
const MIGRATIONS: [&str; 2] = [
    include_str!("../migrations/0001_store.sql"),
    include_str!("../migrations/0002_namespace.sql"),
];

const READ_STATE: &str = "
    SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),
        (SELECT count(*) FROM sqlite_schema)";

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
        let mark =
            format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};");
        sqlx::raw_sql(AssertSqlSafe(mark)).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}

/// The number of migrations that were applied to the file. Fails if it is not a store that this program knows.
async fn read_version(conn: &mut SqliteConnection) -> Result<usize> {
    let (application_id, version, tables): (i64, i64, i64) =
        sqlx::query_as(READ_STATE).fetch_one(conn).await?;
    if application_id == 0 && version == 0 && tables == 0 {
        return Ok(0);
    }
    if application_id != APPLICATION_ID {
        return Err(refused("the file is a database of another program").into());
    }
    match usize::try_from(version) {
        Ok(known) if (1..=MIGRATIONS.len()).contains(&known) => Ok(known),
        _ => Err(refused(&format!(
            "its schema has version {version}, this program knows versions 1 to {}; use a newer program",
            MIGRATIONS.len()
        ))
        .into()),
    }
}
