//! The ceiling: the rate of the bare pipeline on the same servers, without any scheduler logic.
//!
//! 1. Claim due rows, set their next fire time, and insert a row for each run.
//! 2. Publish a message of a trigger's size to a durable queue, and consume it.
//! 3. Publish a message of an outcome's size to another, and consume it.
//! 4. Update the run's row.
//!
//! Each step handles a batch of 1,000, and the server confirms it before the next step. No job is read, planned,
//! routed, journalled or run.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::args::Servers;
use crate::broker::{self, BATCH, Pipe, Queue};
use crate::database::Database;
use crate::noop::now_us;
use crate::progress::bar;
use crate::report::{Report, number};

/// Batches that wait between two steps.
const QUEUED_BATCHES: usize = 4;
/// Tasks of each step.
const TASKS: usize = 2;
/// A trigger of the no-op handler, and its outcome, as Cueline sends them. The messages of the bare pipeline have the
/// same lengths.
const TRIGGER: &str = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":2611210000048263,"attempt":1,"group":"default","executor":"worker-1","kind":"schedule","fire_at":1795286019400,"job":{"id":12345,"name":"bench-12345","version":1,"handler":{"native":"noop"},"scope":"executor","backlog":1000000},"session":1795286000000,"deadline":1795289619400}"#;
const OUTCOME: &str = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":2611210000048263,"attempt":1,"group":"default","executor":"worker-1","event":{"ended":{"outcome":{"kind":"succeeded","started_at":1795286019400,"ended_at":1795286019400}}}}"#;
/// Without progress for this long, the measurement fails.
const STUCK_TIMEOUT: Duration = Duration::from_mins(1);

const TABLES: &str = "
    CREATE TABLE due (id bigint PRIMARY KEY, next_fire_at bigint NOT NULL) WITH (fillfactor = 60);
    CREATE INDEX due_next ON due (next_fire_at, id);
    CREATE TABLE run (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id bigint NOT NULL, fire_at bigint NOT NULL,
        state smallint NOT NULL DEFAULT 0, ended_at bigint, UNIQUE (fire_at, job_id)) WITH (fillfactor = 50)";

const CLAIM: &str = "
    WITH c AS MATERIALIZED (
        SELECT id, next_fire_at FROM due WHERE next_fire_at <= $1 ORDER BY next_fire_at, id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (UPDATE due SET next_fire_at = due.next_fire_at + 3600000 FROM c WHERE due.id = c.id)
    INSERT INTO run (job_id, fire_at) SELECT id, next_fire_at FROM c RETURNING id";

const END: &str = "UPDATE run SET state = 1, ended_at = $2 WHERE id = ANY ($1) AND state = 0";

/// Measures `rows` due rows.
pub(crate) async fn run(servers: &Servers, rows: usize) -> Result<Report> {
    let database = Database::create(&servers.store, "ceiling").await?;
    let prefix = format!("bench-{}-ceiling", std::process::id());
    let seconds = measure(servers, &database, &prefix, rows).await;
    let dropped = database.drop().await;
    let deleted = broker::delete_all(servers, &prefix, &[]).await;
    let seconds = seconds?;
    dropped?;
    deleted?;
    let about = format!(
        "{rows} due rows through the bare pipeline (claim, insert, publish, consume, publish, consume, update), PostgreSQL, {}",
        servers.broker_name()
    );
    let mut report = Report::new("ceiling", about);
    report.add("fires/s", number(rows as u64) / seconds, "1/s");
    report.add("seconds", seconds, "s");
    Ok(report)
}

/// Returns the seconds that all rows take.
async fn measure(servers: &Servers, database: &Database, prefix: &str, rows: usize) -> Result<f64> {
    let mut connection = database.connect().await?;
    connection.execute(TABLES).await?;
    let now = now_us() / 1_000;
    sqlx::query("INSERT INTO due SELECT i, $1 FROM generate_series(1, $2) i")
        .bind(now - 1_000)
        .bind(i64::try_from(rows)?)
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    database.settle().await?;

    let begin = Instant::now();
    through(servers, database, prefix, rows as u64, now).await?;
    let seconds = begin.elapsed().as_secs_f64();

    let mut connection = database.connect().await?;
    let ended = "SELECT count(*) FROM run WHERE state = 1";
    let ended: i64 = sqlx::query_scalar(ended).fetch_one(&mut connection).await?;
    connection.close().await?;
    if ended != i64::try_from(rows)? {
        bail!("{ended} of {rows} rows went through");
    }
    Ok(seconds)
}

async fn through(
    servers: &Servers,
    database: &Database,
    prefix: &str,
    rows: u64,
    now: i64,
) -> Result<()> {
    let mut tasks = JoinSet::<Result<()>>::new();
    let (claimed, claimed_ids) = shared_channel(QUEUED_BATCHES);
    let (ended, mut count) = mpsc::channel::<u64>(QUEUED_BATCHES);
    for _ in 0..TASKS {
        let connection = database.connect().await?;
        tasks.spawn(claim(connection, claimed.clone(), now));
        let pipe_in = broker::open(servers, prefix).await?;
        tasks.spawn(publish(pipe_in, claimed_ids.clone()));
        tasks.spawn(work(broker::open(servers, prefix).await?));
        let (connection, pipe_out) = (
            database.connect().await?,
            broker::open(servers, prefix).await?,
        );
        tasks.spawn(end(connection, pipe_out, ended.clone(), now));
    }
    drop((claimed, ended));
    let bar = bar(rows, "ceiling");
    let mut done = 0;
    while done < rows {
        tokio::select! {
            more = timeout(STUCK_TIMEOUT, count.recv()) => {
                done += more.context("the bare pipeline is stuck")?.context("the bare pipeline has ended")?;
                bar.set_position(done);
            }
            Some(ended) = tasks.join_next() => ended??,
        }
    }
    bar.finish_and_clear();
    tasks.shutdown().await;
    Ok(())
}

type Ids = Vec<i64>;
type ClaimedIds = std::sync::Arc<tokio::sync::Mutex<mpsc::Receiver<Ids>>>;

/// A channel with several receivers.
fn shared_channel(waiting: usize) -> (mpsc::Sender<Ids>, ClaimedIds) {
    let (sender, receiver) = mpsc::channel(waiting);
    (
        sender,
        std::sync::Arc::new(tokio::sync::Mutex::new(receiver)),
    )
}

async fn claim(mut connection: PgConnection, claimed: mpsc::Sender<Ids>, now: i64) -> Result<()> {
    loop {
        let ids: Ids = sqlx::query_scalar(CLAIM)
            .bind(now)
            .bind(i64::try_from(BATCH)?)
            .fetch_all(&mut connection)
            .await?;
        if ids.is_empty() || claimed.send(ids).await.is_err() {
            return Ok(());
        }
    }
}

async fn publish(mut pipe: Box<dyn Pipe>, claimed_ids: ClaimedIds) -> Result<()> {
    loop {
        let ids = claimed_ids.lock().await.recv().await;
        let Some(ids) = ids else { return Ok(()) };
        let payloads = ids.iter().map(|id| message(*id, TRIGGER.len())).collect();
        pipe.publish(Queue::Triggers, payloads).await?;
    }
}

async fn work(mut pipe: Box<dyn Pipe>) -> Result<()> {
    loop {
        let triggers = pipe.consume(Queue::Triggers).await?;
        let outcomes = triggers
            .iter()
            .map(|t| Ok(message(id_of(t)?, OUTCOME.len())));
        let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
        pipe.publish(Queue::Outcomes, outcomes).await?;
        pipe.ack().await?;
    }
}

async fn end(
    mut connection: PgConnection,
    mut pipe: Box<dyn Pipe>,
    ended: mpsc::Sender<u64>,
    now: i64,
) -> Result<()> {
    loop {
        let outcomes = pipe.consume(Queue::Outcomes).await?;
        let ids = outcomes.iter().map(id_of).collect::<Result<Ids>>()?;
        let done = sqlx::query(END)
            .bind(&ids)
            .bind(now)
            .execute(&mut connection)
            .await?;
        pipe.ack().await?;
        if ended.send(done.rows_affected()).await.is_err() {
            return Ok(());
        }
    }
}

/// A message of `bytes` bytes that begins with a run's id.
fn message(id: i64, bytes: usize) -> Bytes {
    Bytes::from(format!("{id:<bytes$}"))
}

fn id_of(message: &Bytes) -> Result<i64> {
    Ok(std::str::from_utf8(message)?.trim_end().parse()?)
}

#[cfg(test)]
mod tests {
    use cueline_protocol::{ReportMessage, Trigger, decode, encode};

    use super::*;

    #[test]
    fn messages_are_as_long_as_real_ones() {
        let trigger: Trigger = decode(TRIGGER.as_bytes()).expect("a trigger");
        assert_eq!(encode(&trigger), TRIGGER.as_bytes());
        let outcome: ReportMessage = decode(OUTCOME.as_bytes()).expect("an outcome");
        assert_eq!(encode(&outcome), OUTCOME.as_bytes());
    }
}
