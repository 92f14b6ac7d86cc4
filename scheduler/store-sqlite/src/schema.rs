//! The file's schema: brought up to date at opening, refused when it is not ours to touch.

use cueline_store::{ErrorKind, StoreError};
use sqlx::{AssertSqlSafe, SqliteConnection, SqlitePool};

use crate::error::failed;

/// Marks the file as a Cueline store, <https://www.sqlite.org/pragma.html#pragma_application_id>: `CueL`.
const APPLICATION_ID: i64 = 0x4375_654c;

/// Each brings the schema from version `index` to `index + 1`. Never edited once released.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/0001_store.sql")];

const READ_ID: &str = "SELECT application_id FROM pragma_application_id";
const READ_VERSION: &str = "SELECT user_version FROM pragma_user_version";
const COUNT_TABLES: &str = "SELECT count(*) FROM sqlite_schema";

/// Brings an empty or older file up to date, or refuses it if that may not be. A file that is not ours is left as it is.
pub(crate) async fn prepare(writer: &SqlitePool, may_migrate: bool) -> Result<(), StoreError> {
    let fail = failed("open the store");
    let mut connection = writer.acquire().await.map_err(&fail)?;
    let found = version_of(&mut connection).await?;
    if !may_migrate {
        return up_to_date(found);
    }
    // It stays with the file, so other connections need not ask for it.
    sqlx::query("PRAGMA journal_mode = WAL")
        .execute(&mut *connection)
        .await
        .map_err(&fail)?;
    drop(connection);
    update(writer).await
}

fn up_to_date(version: usize) -> Result<(), StoreError> {
    let needed = MIGRATIONS.len();
    let refuse = |why: String| Err(StoreError::new(ErrorKind::Broken, why));
    match version {
        0 => refuse(
            "failed to open the store: the file is empty; create its tables with `cueline migrate`"
                .to_owned(),
        ),
        version if version < needed => refuse(format!(
            "failed to open the store: its schema has version {version}, this program needs version {needed}; bring it up to date with `cueline migrate`"
        )),
        _ => Ok(()),
    }
}

async fn update(writer: &SqlitePool) -> Result<(), StoreError> {
    let fail = failed("bring the store's schema up to date");
    let mut tx = writer.begin_with("BEGIN IMMEDIATE").await.map_err(&fail)?;
    let from = version_of(&mut tx).await?;
    for (migration, to) in MIGRATIONS.iter().zip(1_i64..).skip(from) {
        sqlx::raw_sql(*migration)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let mark = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {to};");
        sqlx::raw_sql(AssertSqlSafe(mark))
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
    }
    tx.commit().await.map_err(&fail)
}

/// How many migrations the file has seen; an error if it is not ours.
async fn version_of(conn: &mut SqliteConnection) -> Result<usize, StoreError> {
    let fail = failed("open the store");
    let id: i64 = sqlx::query_scalar(READ_ID)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    let version: i64 = sqlx::query_scalar(READ_VERSION)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    let tables: i64 = sqlx::query_scalar(COUNT_TABLES)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    version_to_start_from(id, version, tables)
}

fn version_to_start_from(id: i64, version: i64, tables: i64) -> Result<usize, StoreError> {
    let refuse = |why: String| {
        Err(StoreError::new(
            ErrorKind::Broken,
            format!("failed to open the store: {why}"),
        ))
    };
    if id == 0 && version == 0 && tables == 0 {
        return Ok(0);
    }
    if id != APPLICATION_ID {
        return refuse("the file is a database of another program".to_owned());
    }
    match usize::try_from(version) {
        Ok(known) if (1..=MIGRATIONS.len()).contains(&known) => Ok(known),
        _ => refuse(format!(
            "its schema has version {version}, this program knows versions 1 to {}; use a newer program",
            MIGRATIONS.len()
        )),
    }
}
