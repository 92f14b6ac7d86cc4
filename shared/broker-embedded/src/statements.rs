//! The SQL statements that read and write the open file.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use cueline_broker::QueueId;
use futures_util::TryStreamExt;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{AssertSqlSafe, Either, Execute, Executor, Row, Sqlite};

use crate::memory::{Message, id_range};
use crate::queue::{LOAD_MESSAGES, Load};

pub(crate) fn queue_of(kind: &str, group: String, executor: String) -> Option<QueueId> {
    Some(match kind {
        "executor" => QueueId::Executor { group, executor },
        "results" => QueueId::Results,
        "requests" => QueueId::Requests,
        "dead" => QueueId::Dead,
        _ => return None,
    })
}

fn columns_of(queue: &QueueId) -> (&'static str, &str, &str) {
    match queue {
        QueueId::Executor { group, executor } => ("executor", group, executor),
        QueueId::Results => ("results", "", ""),
        QueueId::Requests => ("requests", "", ""),
        QueueId::Dead => ("dead", "", ""),
    }
}

pub(crate) async fn begin(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    execute_surely(conn, sqlx::query::<Sqlite>("BEGIN IMMEDIATE")).await
}

pub(crate) async fn commit(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    execute_surely(conn, sqlx::query::<Sqlite>("COMMIT")).await
}

/// Runs a statement after which messages count as written.
///
/// If the connection's thread ends during a statement, sqlx ends the results without an error, and its own `execute`
/// takes that for a statement that changed nothing. A statement that was carried out has a result.
async fn execute_surely<'q, E>(conn: &mut SqliteConnection, statement: E) -> sqlx::Result<()>
where
    E: Execute<'q, Sqlite> + 'q,
{
    let mut results = conn.fetch_many(statement);
    let mut is_done = false;
    while let Some(result) = results.try_next().await? {
        is_done |= matches!(result, Either::Left(_));
    }
    if is_done {
        Ok(())
    } else {
        Err(sqlx::Error::WorkerCrashed)
    }
}

/// Rolls back a transaction that failed with this error. `SQLite` has already done so after some errors; an error here
/// is harmless.
pub(crate) async fn roll_back(conn: &mut SqliteConnection, why: &sqlx::Error) {
    if matches!(why, sqlx::Error::WorkerCrashed) {
        // A statement for a thread that is about to end may wait for ever.
        return;
    }
    let _ = sqlx::query("ROLLBACK").execute(conn).await;
}

/// Copies the WAL back and empties it. On a full disk this may free the room that acks need.
pub(crate) async fn make_room(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
        .execute(conn)
        .await
        .map(drop)
}

pub(crate) async fn insert_queue(
    conn: &mut SqliteConnection,
    queue: &QueueId,
) -> sqlx::Result<i64> {
    let (kind, group, executor) = columns_of(queue);
    sqlx::query_scalar("INSERT INTO queue (kind, grp, executor) VALUES (?, ?, ?) RETURNING key")
        .bind(kind)
        .bind(group)
        .bind(executor)
        .fetch_one(conn)
        .await
}

pub(crate) async fn delete_queue(conn: &mut SqliteConnection, key: i64) -> sqlx::Result<()> {
    let (after, to) = id_range(key);
    sqlx::query("DELETE FROM message WHERE id > ? AND id <= ?")
        .bind(after)
        .bind(to)
        .execute(&mut *conn)
        .await?;
    sqlx::query("DELETE FROM queue WHERE key = ?")
        .bind(key)
        .execute(conn)
        .await?;
    Ok(())
}

/// The rows per statement, largest first. Few sizes mean few prepared statements. With all powers of two, a batch needs
/// at most one statement of each size but the largest: each statement is a round trip to the connection's thread. With 3
/// values per row the largest stays far below `SQLite`'s limit of 32,766 parameters.
const INSERT_SIZES: [usize; 9] = [256, 128, 64, 32, 16, 8, 4, 2, 1];

static INSERTS: LazyLock<[Arc<str>; INSERT_SIZES.len()]> = LazyLock::new(|| {
    INSERT_SIZES.map(|rows| {
        let values = vec!["(?,?,?)"; rows].join(",");
        format!("INSERT INTO message (id, topic, payload) VALUES {values}").into()
    })
});

/// Whether [`insert_messages`] writes this many messages with at most one statement.
pub(crate) fn is_one_insert(messages: usize) -> bool {
    messages == 0 || INSERT_SIZES.contains(&messages)
}

pub(crate) async fn insert_messages(
    conn: &mut SqliteConnection,
    messages: &[&Message],
) -> sqlx::Result<()> {
    let mut rest = messages;
    for (size, statement) in INSERT_SIZES.iter().zip(INSERTS.iter()) {
        while rest.len() >= *size {
            let (now, later) = rest.split_at(*size);
            let mut insert = sqlx::query::<Sqlite>(AssertSqlSafe(Arc::clone(statement)));
            for message in now {
                insert = insert
                    .bind(message.id)
                    .bind(message.topic.as_str())
                    .bind(message.payload.as_ref());
            }
            execute_surely(conn, insert).await?;
            rest = later;
        }
    }
    Ok(())
}

/// At least this many adjacent ids are deleted as one range.
const RANGE: usize = 16;

/// Deletes messages. Missing ids are ignored.
pub(crate) async fn delete_messages(
    conn: &mut SqliteConnection,
    mut ids: Vec<i64>,
) -> sqlx::Result<()> {
    ids.sort_unstable();
    ids.dedup();
    let mut single = String::new();
    for run in ids.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [first, .., last] if run.len() >= RANGE => {
                sqlx::query("DELETE FROM message WHERE id BETWEEN ? AND ?")
                    .bind(*first)
                    .bind(*last)
                    .execute(&mut *conn)
                    .await?;
            }
            _ => {
                for id in run {
                    single.push(if single.is_empty() { '[' } else { ',' });
                    single.push_str(&id.to_string());
                }
            }
        }
    }
    if !single.is_empty() {
        single.push(']');
        sqlx::query("DELETE FROM message WHERE id IN (SELECT value FROM json_each(?))")
            .bind(single)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Reads one message and the time by the file's clock, to make a dead letter.
pub(crate) async fn message_and_time(
    conn: &mut SqliteConnection,
    id: i64,
) -> sqlx::Result<Option<(Message, i64)>> {
    let row = sqlx::query(
        "SELECT topic, payload, CAST(unixepoch('subsec') * 1000 AS INTEGER) FROM message WHERE id = ?",
    )
    .bind(id)
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let message = Message {
            id,
            topic: row.try_get(0)?,
            payload: Bytes::from(row.try_get::<Vec<u8>, _>(1)?),
        };
        Ok((message, row.try_get(2)?))
    })
    .transpose()
}

/// Reads messages of about `most_bytes` in total. Returns whether the file has no more of them.
pub(crate) async fn load(
    readers: &SqlitePool,
    load: &Load,
    most_bytes: usize,
) -> sqlx::Result<(Vec<Message>, bool)> {
    let query = match load {
        // With a bare parameter of `LIMIT`, SQLite would prepare the statement anew at each use.
        Load::Fresh { after, to } => sqlx::query(
            "SELECT id, topic, payload FROM message WHERE id > ? AND id <= ? ORDER BY id LIMIT ? + 0",
        )
        .bind(*after)
        .bind(*to)
        .bind(i64::try_from(LOAD_MESSAGES).unwrap_or(i64::MAX)),
        Load::Again(ids) => {
            let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
            sqlx::query(
                "SELECT id, topic, payload FROM message WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id",
            )
            .bind(format!("[{}]", ids.join(",")))
        }
    };
    let mut rows = query.fetch(readers);
    let (mut messages, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.try_next().await? {
        let message = Message {
            id: row.try_get(0)?,
            topic: row.try_get(1)?,
            payload: Bytes::from(row.try_get::<Vec<u8>, _>(2)?),
        };
        bytes += message.bytes();
        messages.push(message);
        if bytes >= most_bytes {
            return Ok((messages, false));
        }
    }
    let complete = matches!(load, Load::Again(_)) || messages.len() < LOAD_MESSAGES;
    Ok((messages, complete))
}
