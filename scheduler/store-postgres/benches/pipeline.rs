//! Measures the cost of each stage of the pipeline per run: `cargo bench -p cueline-store-postgres`.
//!
//! 10,000 jobs that fire each second go through `fire_due`, `begin_dispatch`, `confirm_dispatch` and `ingest` in
//! batches of 1,000. Each batch is durable when its call returns. The first argument is the number of rounds; one round
//! has 10,000 runs. The second argument is a number of enabled jobs that are not due. With it, the cost of 1,000 due
//! jobs among them is measured too. `CUELINE_BENCH_URL` names a database to use instead of a server of its own.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, ExecutorId, ExecutorName, Job, JobSpec, Outcome,
    OutcomeKind, Shard, Timestamp,
};
use cueline_store::{
    AttemptReport, ClockOverride, DispatchRequest, FireDueRequest, NodeId, Plan, PlannedRun,
    Planner, Store,
};
use cueline_store_postgres::{PgOptions, PgStore};
use cueline_test_servers::postgres::Postgres;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

const JOBS: usize = 10_000;
const BATCH: usize = 1_000;
const STAGES: [&str; 4] = ["fire_due", "begin_dispatch", "confirm_dispatch", "ingest"];

struct EachFireTime;

impl Planner for EachFireTime {
    fn plan(&self, job: &Job, due: Timestamp, _now: Timestamp, _live: &[ExecutorName]) -> Plan {
        Plan {
            runs: vec![PlannedRun {
                fire_at: due,
                due_at: due,
                shard: Shard::whole(),
                executor: None,
                skipped: None,
            }],
            next_fire: job.spec.next_fire(due),
        }
    }
}

fn spec(number: usize) -> Result<JobSpec, serde_json::Error> {
    serde_json::from_value(serde_json::json!({
        "name": format!("job-{number}"),
        "group": "default",
        "description": "A job such as people write them, with a few words on what it is for.",
        "schedule": {"every": "1s"},
        "handler": {"shell": {"script": "echo one line; sleep 1; echo another"}},
    }))
}

fn number(place: usize) -> Option<usize> {
    std::env::args().filter_map(|a| a.parse().ok()).nth(place)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let rounds = number(0).unwrap_or(20);
    let server = match std::env::var("CUELINE_BENCH_URL") {
        Ok(_) => None,
        Err(_) => Some(Postgres::start()?),
    };
    let url = match &server {
        Some(server) => server.url(&server.create_database()?),
        None => std::env::var("CUELINE_BENCH_URL")?,
    };
    let clock = Arc::new(AtomicI64::new(1_800_000_000_000));
    let shown = Arc::clone(&clock);
    let options = PgOptions {
        clock: Some(ClockOverride::new(move || {
            Timestamp::from_millis(shown.load(Ordering::SeqCst))
        })),
        statement_timeout: Duration::from_mins(10),
        call_timeout: Duration::from_mins(10),
        ..PgOptions::default()
    };
    let store = PgStore::connect(&url, options).await?;
    let specs: Vec<JobSpec> = (0..JOBS).map(spec).collect::<Result<_, _>>()?;
    let begun = Instant::now();
    store
        .apply_jobs(&specs, false, &Actor::new(ActorKind::User, "a benchmark"))
        .await?;
    println!("apply {JOBS} jobs: {:?}", begun.elapsed());
    let node = store.register_node("bench", 1 << 40).await?.node;

    let mut spent = [Duration::ZERO; 4];
    let mut runs = 0;
    let begun = Instant::now();
    for round in 0..rounds {
        clock.fetch_add(1_000, Ordering::SeqCst);
        let mut of_round = [Duration::ZERO; 4];
        for _ in 0..JOBS / BATCH {
            runs += one_batch(&store, node, &mut of_round).await?;
        }
        if round == 0 || (round + 1) % 5 == 0 {
            print(&format!("round {}", round + 1), &of_round, JOBS);
        }
        for (sum, part) in spent.iter_mut().zip(of_round) {
            *sum += part;
        }
    }
    print("all", &spent, runs);
    let seconds = begun.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "counts of a bench are small")]
    let rate = runs as f64 / seconds;
    println!("{runs} runs in {seconds:.2} s: {rate:.0} runs/s");
    if let Some(more) = number(1) {
        among(&store, &url, node, more, &clock).await?;
    }
    store.close().await;
    Ok(())
}

/// Measures the cost of 1,000 due jobs among 10,000 jobs, and among `more` further ones.
async fn among(
    store: &PgStore,
    url: &str,
    node: NodeId,
    more: usize,
    clock: &AtomicI64,
) -> Result<(), Box<dyn Error>> {
    for _ in 0..2 {
        println!(
            "among {JOBS} jobs: {:.2} µs per run",
            fires(store, url, node, clock).await?
        );
    }
    let rare = |number: usize| {
        serde_json::from_value::<JobSpec>(serde_json::json!({
            "name": format!("rare-{number}"),
            "group": "default",
            "schedule": {"every": "365d"},
            "handler": {"native": "noop"},
        }))
    };
    let begun = Instant::now();
    for first in (0..more).step_by(20_000) {
        let specs: Vec<JobSpec> = (first..more.min(first + 20_000))
            .map(rare)
            .collect::<Result<_, _>>()?;
        store
            .apply_jobs(&specs, false, &Actor::new(ActorKind::User, "a benchmark"))
            .await?;
    }
    println!("apply {more} jobs: {:?}", begun.elapsed());
    for _ in 0..2 {
        println!(
            "among {} jobs: {:.2} µs per run",
            JOBS + more,
            fires(store, url, node, clock).await?
        );
    }
    Ok(())
}

/// The median of some calls of `fire_due`, in microseconds per run. The tables are vacuumed first, and the runs of a
/// call end before the next one. Otherwise the last measurement would pay for both.
async fn fires(
    store: &PgStore,
    url: &str,
    node: NodeId,
    clock: &AtomicI64,
) -> Result<f64, Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    // Two statements that are sent together are a transaction, in which there is no VACUUM.
    for sql in ["VACUUM ANALYZE", "CHECKPOINT"] {
        sqlx::raw_sql(sql).execute(&mut connection).await?;
    }
    connection.close().await?;
    let mut spent = Vec::new();
    for round in 0..=10 {
        clock.fetch_add(1_000, Ordering::SeqCst);
        for _ in 0..JOBS / BATCH {
            let mut stages = [Duration::ZERO; 4];
            one_batch(store, node, &mut stages).await?;
            // The first round warms up.
            if round > 0 {
                spent.push(stages[0]);
            }
        }
    }
    spent.sort_unstable();
    let median = spent.get(spent.len() / 2).ok_or("nothing was measured")?;
    Ok(median.as_secs_f64() * 1e6 / 1_000.0)
}

async fn one_batch(
    store: &PgStore,
    node: NodeId,
    spent: &mut [Duration; 4],
) -> Result<usize, Box<dyn Error>> {
    let executor = ExecutorId {
        group: "default".parse()?,
        name: "executor-1".parse()?,
    };
    let due = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: BATCH,
        max_runs: usize::MAX,
    };
    let begun = Instant::now();
    let fired = store.fire_due(due, &EachFireTime).await?;
    spent[0] += begun.elapsed();
    let marks: Vec<DispatchRequest> = fired
        .runs
        .iter()
        .map(|run| DispatchRequest {
            attempt: run.attempt_id(),
            job_version: run.job.version,
            executor: executor.name.clone(),
            lane: run.lane(),
            limits: None,
        })
        .collect();
    let begun = Instant::now();
    let taken = store.begin_dispatch(node, &marks).await?;
    spent[1] += begun.elapsed();
    let begun = Instant::now();
    store.confirm_dispatch(&taken).await?;
    spent[2] += begun.elapsed();
    let now = store.now().await?;
    let reports: Vec<AttemptReport> = taken
        .iter()
        .map(|id| success(*id, &executor, now))
        .collect();
    let begun = Instant::now();
    let done = store.ingest_reports(&reports).await?;
    spent[3] += begun.elapsed();
    if done.ended != taken.len() || taken.len() != BATCH {
        return Err(format!("{} of {BATCH} taken, {done:?}", taken.len()).into());
    }
    Ok(done.ended)
}

fn success(id: AttemptId, executor: &ExecutorId, now: Timestamp) -> AttemptReport {
    let mut outcome = Outcome::new(OutcomeKind::Succeeded, now);
    outcome.started_at = Some(now);
    outcome.exit_status = Some(0);
    AttemptReport {
        attempt: id,
        executor: Some(executor.clone()),
        event: AttemptEvent::Ended { outcome },
    }
}

fn print(what: &str, spent: &[Duration; 4], runs: usize) {
    let runs = u32::try_from(runs).unwrap_or(u32::MAX);
    let micros = |spent: &Duration| spent.as_secs_f64() * 1e6 / f64::from(runs);
    let stages: Vec<String> = STAGES
        .iter()
        .zip(spent)
        .map(|(stage, spent)| format!("{stage} {:.2}", micros(spent)))
        .collect();
    let together = micros(&spent.iter().sum());
    println!(
        "{what:>9}:  {}  together {together:.2} µs per run",
        stages.join("  ")
    );
}
