//! Opening: the file is made, or is a journal that this program knows; any other file is left as it is.

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

/// Marks the file as a journal, <https://www.sqlite.org/pragma.html#pragma_application_id>: `CueJ`.
const APPLICATION_ID: i64 = 0x4375_654a;

/// Of the schema below.
const VERSION: i64 = 3;

const SCHEMA: &str = "
    CREATE TABLE entry (
        -- The run's number, and its store's in the upper bits.
        run     INTEGER PRIMARY KEY,
        attempt INTEGER NOT NULL,
        state   INTEGER NOT NULL,
        seq     INTEGER NOT NULL,
        at      INTEGER NOT NULL,
        job     TEXT,
        trigger BLOB,
        outcome TEXT
    ) STRICT;
    CREATE INDEX entry_reported ON entry (at) WHERE state = 3;";

/// Since version 2.
const CONTACT: &str = "
    CREATE TABLE contact (
        id   INTEGER PRIMARY KEY CHECK (id = 1),
        at   INTEGER NOT NULL,
        up   INTEGER NOT NULL,
        boot TEXT NOT NULL
    ) STRICT;";

/// Since version 3. What was there before has the number 0, see [`crate::stores`].
const STORE: &str = "
    CREATE TABLE store (
        number INTEGER PRIMARY KEY,
        id     TEXT NOT NULL UNIQUE
    ) STRICT;";

/// Why a file cannot be the journal, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum UnusableJournal {
    /// The database said no.
    #[error(
        "{0}; if the disk is well and the file is not, move it away: what had started may then run again"
    )]
    Database(#[from] sqlx::Error),
    /// It belongs to something else.
    #[error("it is a database of another program; give another state directory, or move it away")]
    Foreign,
    /// A newer program made it.
    #[error("it has version {0}, this program knows version {VERSION}; use a newer program")]
    Newer(i64),
}

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
    let fresh = (id, version, tables) == (0, 0, 0);
    if !fresh && id != APPLICATION_ID {
        return Err(UnusableJournal::Foreign);
    }
    if !fresh && !(1..=VERSION).contains(&version) {
        return Err(UnusableJournal::Newer(version));
    }
    sqlx::query("PRAGMA journal_mode = WAL")
        .execute(&mut *connection)
        .await?;
    if fresh || version < VERSION {
        let entry = if fresh { SCHEMA } else { "" };
        let contact = if version < 2 { CONTACT } else { "" };
        let make = format!(
            "BEGIN IMMEDIATE; {entry} {contact} {STORE} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT"
        );
        sqlx::raw_sql(AssertSqlSafe(make))
            .execute(connection)
            .await?;
    }
    Ok(())
}
