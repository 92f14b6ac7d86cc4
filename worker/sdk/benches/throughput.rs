//! Attempts per second of a handler that does nothing, over the embedded broker.
//!
//! `cargo bench -p cueline-worker --bench throughput -- [attempts] [concurrency]`. All triggers are in the queue
//! before the worker starts; the clock stops when the last outcome is in the results queue. The broker's share of the
//! CPU is in the figures.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerOptions, Outgoing, QueueId, Settlement};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_model::{
    AttemptEvent, Block, DurationMs, Fence, HandlerSpec, JobId, OnLost, RunId, RunKind, Scope,
    Shard, StoreId, Timestamp,
};
use cueline_protocol::{JobSnapshot, Trigger, VERSION, decode_reports, encode};
use cueline_worker::{Context, Failure, Stop, Worker};
use tokio::time::Instant;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut numbers = std::env::args().filter_map(|a| a.parse::<i64>().ok());
    let attempts = numbers.next().unwrap_or(100_000);
    let concurrency = numbers.next().unwrap_or(256);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(measure(attempts, usize::try_from(concurrency)?))
}

async fn measure(attempts: i64, concurrency: usize) -> Result<(), Error> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("broker.db");
    let driver = EmbeddedDriver::open(&path, EmbeddedOptions::default()).await?;
    let broker = Broker::new(driver, BrokerOptions::default());
    broker.declare(&QueueId::Results).await?;
    publish(&broker, attempts).await?;

    let (start, cpu_before) = (Instant::now(), cpu_ms());
    let stop = Stop::new();
    let worker = Worker::builder("default")
        .allow_unverified_native()
        .name("worker-1")
        .broker(broker.clone())
        .state_dir(directory.path().join("state"))
        .concurrency(concurrency)
        .handler("noop", |_cx: Context| async { Ok::<(), Failure>(()) })
        .build()?;
    let running = tokio::spawn(worker.run(stop.clone()));
    let mut outcomes = 0;
    while outcomes < attempts {
        outcomes += take_outcomes(&broker).await?;
        if running.is_finished() {
            return Err("the worker ended".into());
        }
    }
    let wall = start.elapsed();
    stop.ask_soft();
    running.await??;
    #[expect(clippy::cast_precision_loss, reason = "a printed figure")]
    let (per_second, cpu_us) = (
        attempts as f64 / wall.as_secs_f64(),
        (cpu_ms() - cpu_before) as f64 * 1_000.0 / attempts as f64,
    );
    println!(
        "{attempts} attempts, {concurrency} at once: {per_second:.0}/s, {cpu_us:.1} µs CPU each"
    );
    Ok(())
}

/// Takes reports from the results queue, and returns how many outcomes they hold. A message holds many reports.
async fn take_outcomes(broker: &Broker) -> Result<i64, Error> {
    let wait = Duration::from_millis(100);
    let deliveries = broker.fetch(&QueueId::Results, 1_000, wait).await?;
    let mut outcomes = 0;
    for report in deliveries.iter().flat_map(|d| decode_reports(&d.payload)) {
        outcomes += i64::from(matches!(report?.event, AttemptEvent::Ended { .. }));
    }
    let acks: Vec<_> = deliveries
        .iter()
        .map(|d| (d.receipt, Settlement::Ack))
        .collect();
    broker.settle(&QueueId::Results, &acks).await?;
    Ok(outcomes)
}

async fn publish(broker: &Broker, attempts: i64) -> Result<(), Error> {
    let runs: Vec<i64> = (1..=attempts).collect();
    for chunk in runs.chunks(5_000) {
        let messages: Result<Vec<Outgoing>, Error> = chunk.iter().map(|n| message(*n)).collect();
        for answer in broker.publish(&messages?).await? {
            answer?;
        }
    }
    Ok(())
}

fn message(run: i64) -> Result<Outgoing, Error> {
    let job = JobSnapshot {
        id: JobId(run % 100),
        name: format!("job-{}", run % 100).parse()?,
        version: 1,
        handler: HandlerSpec::Native("noop".to_owned()),
        block: Block::Parallel(64),
        scope: Scope::default(),
        backlog: 1_000_000,
        timeout: Some(DurationMs::secs(60)),
        kill_grace: DurationMs::secs(5),
        on_lost: OnLost::default(),
        fence: Fence::default(),
        priority: 5,
        lane_per_shard: false,
    };
    let trigger = Trigger {
        v: VERSION,
        store: StoreId(1),
        run: RunId(run),
        attempt: 1,
        group: "default".parse()?,
        executor: "worker-1".parse()?,
        kind: RunKind::Schedule,
        fire_at: Timestamp::from_millis(1_800_000_000_000),
        lane_at: None,
        shard: Shard::whole(),
        params: Some("{\"full\":false}".to_owned()),
        job: Arc::new(job),
        session: Some(cueline_model::Session(i64::MAX)),
        deadline: Timestamp::from_millis(i64::MAX / 2),
        signature: None,
    };
    Ok(Outgoing {
        queue: QueueId::Executor {
            group: "default".to_owned(),
            executor: "worker-1".to_owned(),
        },
        topic: trigger.job.name.to_string(),
        id: format!("{run}:1"),
        payload: Bytes::from(encode(&trigger)),
    })
}

/// CPU time of this process so far, user and system; the kernel counts it in hundredths of a second.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.filter_map(|f| f.parse::<u64>().ok()).sum::<u64>() * 10
}
