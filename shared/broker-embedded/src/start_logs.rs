//! The SQL statements of start logs. They know nothing of callers or transactions.

use bytes::Bytes;
use cueline_broker::{START_LOG_RECORDS, StartLog};
use sqlx::sqlite::{SqliteConnection, SqlitePool};

pub(crate) async fn insert_log(conn: &mut SqliteConnection, log: &StartLog) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO start_log (grp, executor) VALUES (?, ?) ON CONFLICT DO NOTHING")
        .bind(log.group.as_str())
        .bind(log.executor.as_str())
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes a log and its records, in a transaction of the caller.
pub(crate) async fn delete_log(conn: &mut SqliteConnection, log: &StartLog) -> sqlx::Result<()> {
    let Some(key) = key(conn, log).await? else {
        return Ok(());
    };
    sqlx::query("DELETE FROM start_record WHERE log = ?")
        .bind(key)
        .execute(&mut *conn)
        .await?;
    sqlx::query("DELETE FROM start_log WHERE key = ?")
        .bind(key)
        .execute(conn)
        .await?;
    Ok(())
}

/// Appends a record and drops the oldest ones past the bound, in a transaction of the caller. Returns whether the log
/// exists.
pub(crate) async fn append(
    conn: &mut SqliteConnection,
    log: &StartLog,
    record: &Bytes,
) -> sqlx::Result<bool> {
    let Some(key) = key(conn, log).await? else {
        return Ok(false);
    };
    let newest: i64 = sqlx::query_scalar(
        "INSERT INTO start_record (log, number, record) VALUES (?1,
             coalesce((SELECT number FROM start_record WHERE log = ?1 ORDER BY number DESC LIMIT 1), 0) + 1, ?2)
         RETURNING number",
    )
    .bind(key)
    .bind(&record[..])
    .fetch_one(&mut *conn)
    .await?;
    let kept = i64::try_from(START_LOG_RECORDS).unwrap_or(i64::MAX);
    sqlx::query("DELETE FROM start_record WHERE log = ? AND number <= ?")
        .bind(key)
        .bind(newest - kept)
        .execute(conn)
        .await?;
    Ok(true)
}

/// Whether a log has no records.
pub(crate) async fn is_empty(readers: &SqlitePool, log: &StartLog) -> sqlx::Result<bool> {
    let found: i64 = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM start_record
         WHERE log = (SELECT key FROM start_log WHERE grp = ? AND executor = ?))",
    )
    .bind(log.group.as_str())
    .bind(log.executor.as_str())
    .fetch_one(readers)
    .await?;
    Ok(found == 0)
}

/// Reads all records of a log, oldest first.
pub(crate) async fn read(readers: &SqlitePool, log: &StartLog) -> sqlx::Result<Vec<Bytes>> {
    let records: Vec<Vec<u8>> = sqlx::query_scalar(
        "SELECT record FROM start_record
         WHERE log = (SELECT key FROM start_log WHERE grp = ? AND executor = ?) ORDER BY number",
    )
    .bind(log.group.as_str())
    .bind(log.executor.as_str())
    .fetch_all(readers)
    .await?;
    Ok(records.into_iter().map(Bytes::from).collect())
}

async fn key(conn: &mut SqliteConnection, log: &StartLog) -> sqlx::Result<Option<i64>> {
    sqlx::query_scalar("SELECT key FROM start_log WHERE grp = ? AND executor = ?")
        .bind(log.group.as_str())
        .bind(log.executor.as_str())
        .fetch_optional(conn)
        .await
}
