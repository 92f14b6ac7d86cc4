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
const MIGRATIONS: [&str; 4] = [
    include_str!("../migrations/0001_store.sql"),
    include_str!("../migrations/0002_alarms.sql"),
    include_str!("../migrations/0003_broker_reach.sql"),
    include_str!("../migrations/0004_fewer_index_writes.sql"),
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

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

    use super::{APPLICATION_ID, CREATE_APPLIED, MIGRATIONS, WRITE_APPLIED, migration_hash};
    use crate::{SqliteOptions, SqliteStore};

    /// A file as the program with the first `version` migrations left it.
    async fn older_file(path: &std::path::Path, version: usize) -> sqlx::SqliteConnection {
        let options = SqliteConnectOptions::new().filename(path);
        let mut file = options
            .create_if_missing(true)
            .connect()
            .await
            .expect("opens");
        for (migration, number) in MIGRATIONS.iter().zip(1_i64..).take(version) {
            let marks =
                format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number}");
            for statement in [*migration, CREATE_APPLIED, &marks] {
                let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
                statement.execute(&mut file).await.expect("is valid");
            }
            let applied = sqlx::query(WRITE_APPLIED)
                .bind(number)
                .bind(migration_hash(migration));
            applied.execute(&mut file).await.expect("is written");
        }
        file
    }

    #[tokio::test]
    async fn jobs_of_an_older_file_have_their_groups() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cueline.db");
        let mut file = older_file(&path, 3).await;
        let jobs = "
            INSERT INTO job (name, version, created_at, group_name, startup, definition)
                VALUES ('a', 1, 0, 'first', 0, '{}'), ('b', 1, 0, 'second', 0, '{}');
            INSERT INTO job_due (job_id, version, enabled, fixed_delay) VALUES (1, 1, 1, 0), (2, 1, 1, 0)";
        let jobs = sqlx::raw_sql(jobs).execute(&mut file).await;
        jobs.expect("are written");
        file.close().await.expect("closes");
        let store = SqliteStore::open(&path, SqliteOptions::default()).await;
        let mut conn = store
            .as_ref()
            .expect("opens")
            .db
            .read()
            .await
            .expect("reads");
        let groups: Vec<String> =
            sqlx::query_scalar("SELECT group_name FROM job_due ORDER BY job_id")
                .fetch_all(&mut *conn)
                .await
                .expect("has the column");
        assert_eq!(groups, ["first", "second"]);
    }
}
