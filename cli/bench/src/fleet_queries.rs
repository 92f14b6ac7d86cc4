//! What `fleet` reads from the schedulers' database. The numbers of states are codes of `RunState`: 2 is `queued`, 10
//! is `succeeded`.

use anyhow::Result;
use sqlx::postgres::PgConnection;

/// Executors that accept triggers.
const ACCEPTING: &str =
    "SELECT count(*) FROM executor WHERE NOT draining AND NOT gone AND last_heartbeat_at > $1";

/// Heartbeats written so far. The server publishes this number about once a second.
const STORED_HEARTBEATS: &str = "
    SELECT coalesce(sum(n_tup_ins + n_tup_upd), 0)::float8 FROM pg_stat_user_tables WHERE relname = 'executor'";

const OLDEST_HEARTBEAT: &str = "
    SELECT coalesce(extract(epoch FROM clock_timestamp()) * 1000 - min(last_heartbeat_at), 0)::float8 FROM executor";

const LAST_HEARTBEATS_SPREAD: &str = "
    SELECT coalesce(max(last_heartbeat_at) - min(last_heartbeat_at), 0) FROM executor WHERE name LIKE $1";

const LAST_RUN: &str = "SELECT coalesce(max(id), 0) FROM run";

const MOVES: &str = "
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, (SELECT count(*) FROM run WHERE id > $1),
        count(*) FILTER (WHERE state < 2), count(*) FILTER (WHERE state = 2 AND executor LIKE $2), count(*)
    FROM run_live WHERE id > $1";

const ENDS: &str = "
    SELECT count(*) FILTER (WHERE attempt = 2 AND state = 10 AND executor NOT LIKE $2),
        count(*) FILTER (WHERE attempt > 2), count(*) FILTER (WHERE state IS DISTINCT FROM 10),
        max(queued_at) FILTER (WHERE attempt > 1)
    FROM run WHERE id > $1";

const ROUTED_AGAIN: &str = "
    SELECT count(*) FILTER (WHERE event = 'returned'), count(*) FILTER (WHERE event = 'rerun'),
        min(at) FILTER (WHERE event IN ('returned', 'rerun')), max(at) FILTER (WHERE event IN ('returned', 'rerun'))
    FROM run_event WHERE run_id > $1";

/// The number of executors that accept triggers and whose last heartbeat is later than `since_ms`.
pub(crate) async fn accepting(connection: &mut PgConnection, since_ms: i64) -> Result<u64> {
    let count: i64 = sqlx::query_scalar(ACCEPTING)
        .bind(since_ms)
        .fetch_one(connection)
        .await?;
    Ok(count.unsigned_abs())
}

/// The number of heartbeats stored since the start.
pub(crate) async fn stored_heartbeats(connection: &mut PgConnection) -> Result<f64> {
    let stored = sqlx::query_scalar(STORED_HEARTBEATS);
    Ok(stored.fetch_one(connection).await?)
}

/// The age of the oldest last heartbeat of an executor, in milliseconds.
pub(crate) async fn oldest_heartbeat_ms(connection: &mut PgConnection) -> Result<f64> {
    let oldest = sqlx::query_scalar(OLDEST_HEARTBEAT);
    Ok(oldest.fetch_one(connection).await?)
}

/// The time between the first and the last of the last heartbeats of a process's executors, in milliseconds.
pub(crate) async fn last_heartbeats_spread_ms(
    connection: &mut PgConnection,
    process: &str,
) -> Result<i64> {
    let spread: i64 = sqlx::query_scalar(LAST_HEARTBEATS_SPREAD)
        .bind(format!("{process}-%"))
        .fetch_one(connection)
        .await?;
    Ok(spread)
}

/// The highest id of a run; 0 without runs.
pub(crate) async fn last_run(connection: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::query_scalar(LAST_RUN).fetch_one(connection).await?)
}

/// Where the runs after a given one are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moves {
    /// The database's clock, in milliseconds.
    pub(crate) now_ms: i64,
    /// Runs that exist.
    pub(crate) created: u64,
    /// Runs whose present attempt is not published yet.
    pub(crate) unpublished: u64,
    /// Attempts that are queued at executors of the given process.
    pub(crate) queued_there: u64,
    /// Runs that have not ended.
    pub(crate) live: u64,
}

impl Moves {
    /// Reads where the runs after `run` are. `process` hosts the executors of interest.
    pub(crate) async fn read(
        connection: &mut PgConnection,
        run: i64,
        process: &str,
    ) -> Result<Self> {
        let (now_ms, created, unpublished, queued_there, live): (i64, i64, i64, i64, i64) =
            sqlx::query_as(MOVES)
                .bind(run)
                .bind(format!("{process}-%"))
                .fetch_one(connection)
                .await?;
        Ok(Self {
            now_ms,
            created: created.unsigned_abs(),
            unpublished: unpublished.unsigned_abs(),
            queued_there: queued_there.unsigned_abs(),
            live: live.unsigned_abs(),
        })
    }
}

/// How the runs after a given one have ended, and how their attempts were taken from silent executors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Runs that succeeded at their second attempt, elsewhere.
    pub(crate) second_attempt_elsewhere: u64,
    /// Runs with more than two attempts.
    pub(crate) further_attempts: u64,
    /// Runs that did not succeed.
    pub(crate) unsuccessful: u64,
    /// Attempts that had not reached their executor.
    pub(crate) returned: u64,
    /// Attempts that may have started, and were lost and run again.
    pub(crate) lost: u64,
    /// When the first attempt was taken, by the database's clock, in milliseconds; `None` if none was.
    pub(crate) first_taken_ms: Option<i64>,
    /// When the last attempt was taken.
    pub(crate) last_taken_ms: Option<i64>,
    /// When the last of the attempts that replaced them was stored as queued, after its publication.
    pub(crate) last_published_ms: Option<i64>,
}

impl Ends {
    /// Reads the ends of the runs after `run`. `process` hosted the silent executors.
    pub(crate) async fn read(
        connection: &mut PgConnection,
        run: i64,
        process: &str,
    ) -> Result<Self> {
        let (second, further, unsuccessful, last_published_ms): (i64, i64, i64, Option<i64>) =
            sqlx::query_as(ENDS)
                .bind(run)
                .bind(format!("{process}-%"))
                .fetch_one(&mut *connection)
                .await?;
        let taken: (i64, i64, Option<i64>, Option<i64>) = sqlx::query_as(ROUTED_AGAIN)
            .bind(run)
            .fetch_one(connection)
            .await?;
        let (returned, lost, first_taken_ms, last_taken_ms) = taken;
        Ok(Self {
            second_attempt_elsewhere: second.unsigned_abs(),
            further_attempts: further.unsigned_abs(),
            unsuccessful: unsuccessful.unsigned_abs(),
            returned: returned.unsigned_abs(),
            lost: lost.unsigned_abs(),
            first_taken_ms,
            last_taken_ms,
            last_published_ms,
        })
    }
}
