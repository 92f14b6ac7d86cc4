//! The ceiling: what the same servers do for the bare pipeline, without any scheduler logic.
//!
//! Rows that are due are claimed and moved on, a row for each run is inserted, a message of a trigger's size goes into a durable queue and
//! out of it, one of an outcome's size into another and out of it, and the row is updated: all of it in batches of 1,000, each confirmed by the server
//! before the next step, on as many connections as it takes. No job is read, nothing is planned, routed, journalled, checked or run.

pub(super) mod nats;
pub(super) mod rabbitmq;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Servers;
use super::database::Database;
use super::noop::now_us;
use super::progress;
use super::report::{Report, number};

const BATCH: usize = 1_000;
/// Batches that wait between two steps.
const WAITING: usize = 4;
/// How many do each step at the same time.
const HANDS: usize = 2;
/// A trigger of the no-op handler, and its outcome, as Cueline sends them: messages of the bare pipeline are as long.
const TRIGGER: &str = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":2611210000048263,"attempt":1,"group":"default","executor":"worker-1","kind":"schedule","fire_at":1795286019400,"shard":{"index":0,"total":1},"job":{"id":12345,"name":"bench-12345","version":1,"handler":{"native":"noop"},"block":"serial","scope":"executor","backlog":1000000,"kill_grace":"5s","on_lost":"fail","priority":5},"deadline":1795289619400}"#;
const OUTCOME: &str = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":2611210000048263,"attempt":1,"executor":"worker-1","event":{"ended":{"outcome":{"kind":"succeeded","started_at":1795286019400,"ended_at":1795286019400}}}}"#;
const STUCK: Duration = Duration::from_mins(1);

/// A broker with two durable queues.
#[async_trait]
pub(super) trait Pipe: Send + Sync + 'static {
    /// Sends, and returns when all are on the broker's disk.
    async fn send(&mut self, to: Queue, payloads: Vec<Bytes>) -> Result<()>;
    /// Takes up to a batch, waiting for the first.
    async fn take(&mut self, from: Queue) -> Result<Vec<Bytes>>;
    /// Acknowledges what was taken last.
    async fn ack(&mut self) -> Result<()>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Triggers,
    Outcomes,
}

async fn pipe(servers: &Servers, prefix: &str) -> Result<Box<dyn Pipe>> {
    Ok(if servers.broker.starts_with("amqp") {
        Box::new(rabbitmq::Rabbit::open(&servers.broker, prefix).await?)
    } else {
        Box::new(nats::Nats::open(&servers.broker, prefix).await?)
    })
}

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

/// Sends `rows` due rows through.
pub(super) async fn run(servers: &Servers, rows: usize) -> Result<Report> {
    let database = Database::create(&servers.store, "ceiling").await?;
    let prefix = format!("bench-{}-ceiling", std::process::id());
    let seconds = measure(servers, &database, &prefix, rows).await;
    let dropped = database.drop().await;
    let swept = super::rubbish::sweep(&servers.broker, &prefix).await;
    let seconds = seconds?;
    dropped?;
    swept?;
    let about = format!(
        "{rows} due rows through the bare pipeline (claim, insert, publish, consume, publish, consume, update), PostgreSQL, {}",
        servers.product()
    );
    let mut report = Report::new("ceiling", about);
    report.add("fires/s", number(rows as u64) / seconds, "1/s");
    report.add("seconds", seconds, "s");
    Ok(report)
}

/// How many seconds it takes.
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
        bail!("{ended} of {rows} rows came through");
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
    let mut hands = JoinSet::<Result<()>>::new();
    let (claimed, to_send) = async_channel(WAITING);
    let (ended, mut count) = mpsc::channel::<u64>(WAITING);
    for _ in 0..HANDS {
        let connection = database.connect().await?;
        hands.spawn(claim(connection, claimed.clone(), now));
        let pipe_in = pipe(servers, prefix).await?;
        hands.spawn(publish(pipe_in, to_send.clone()));
        hands.spawn(work(pipe(servers, prefix).await?));
        let (connection, pipe_out) = (database.connect().await?, pipe(servers, prefix).await?);
        hands.spawn(end(connection, pipe_out, ended.clone(), now));
    }
    drop((claimed, ended));
    let bar = progress(rows, "ceiling");
    let mut done = 0;
    while done < rows {
        tokio::select! {
            more = timeout(STUCK, count.recv()) => {
                done += more.context("the bare pipeline does not move")?.context("the bare pipeline has ended")?;
                bar.set_position(done);
            }
            Some(ended) = hands.join_next() => ended??,
        }
    }
    bar.finish_and_clear();
    hands.shutdown().await;
    Ok(())
}

type Ids = Vec<i64>;
type ToSend = std::sync::Arc<tokio::sync::Mutex<mpsc::Receiver<Ids>>>;

/// One channel for several takers.
fn async_channel(waiting: usize) -> (mpsc::Sender<Ids>, ToSend) {
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

async fn publish(mut pipe: Box<dyn Pipe>, to_send: ToSend) -> Result<()> {
    loop {
        let ids = to_send.lock().await.recv().await;
        let Some(ids) = ids else { return Ok(()) };
        let payloads = ids.iter().map(|id| message(*id, TRIGGER.len())).collect();
        pipe.send(Queue::Triggers, payloads).await?;
    }
}

async fn work(mut pipe: Box<dyn Pipe>) -> Result<()> {
    loop {
        let triggers = pipe.take(Queue::Triggers).await?;
        let outcomes = triggers
            .iter()
            .map(|t| Ok(message(id_of(t)?, OUTCOME.len())));
        let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
        pipe.send(Queue::Outcomes, outcomes).await?;
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
        let outcomes = pipe.take(Queue::Outcomes).await?;
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

/// A message of this size that begins with a run's id.
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
