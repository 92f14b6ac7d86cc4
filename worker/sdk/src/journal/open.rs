//! Opens the journal's file, and migrates one of an earlier version. A file that is not a journal is left unchanged.

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::error::UnusableJournal;
use super::schema::{APPLICATION_ID, MOVE_TRIGGERS, SCHEMA, VERSION, WAITING};

/// Opens the file. A new file becomes an empty journal. One of version 1 keeps its entries.
pub(super) async fn connect(
    options: &SqliteConnectOptions,
) -> Result<SqliteConnection, UnusableJournal> {
    let mut connection = options.connect().await?;
    match prepare(&mut connection).await {
        Ok(()) => Ok(connection),
        Err(why) => {
            let _ = connection.close().await;
            Err(why)
        }
    }
}

async fn prepare(connection: &mut SqliteConnection) -> Result<(), UnusableJournal> {
    let (id, version, tables): (i64, i64, i64) = sqlx::query_as(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
         FROM pragma_application_id, pragma_user_version",
    )
    .fetch_one(&mut *connection)
    .await?;
    let is_new = (id, version, tables) == (0, 0, 0);
    if !is_new && id != APPLICATION_ID {
        return Err(UnusableJournal::OtherProgram);
    }
    if !is_new && !(1..=VERSION).contains(&version) {
        return Err(UnusableJournal::Newer(version));
    }
    sqlx::query("PRAGMA journal_mode = WAL")
        .execute(&mut *connection)
        .await?;
    if is_new || version < VERSION {
        let steps = if is_new {
            format!("{SCHEMA} {WAITING} PRAGMA application_id = {APPLICATION_ID};")
        } else {
            format!("{WAITING} {MOVE_TRIGGERS}")
        };
        // If a step fails, the caller closes the connection, which rolls back.
        let make = format!("BEGIN IMMEDIATE; {steps} PRAGMA user_version = {VERSION}; COMMIT");
        sqlx::raw_sql(AssertSqlSafe(make))
            .execute(connection)
            .await?;
    }
    Ok(())
}
