//! Measures the cost of each stage of the pipeline per run: `cargo bench -p cueline-store-sqlite`.
//!
//! 10,000 jobs that fire each second go through `fire_due`, `begin_dispatch`, `confirm_dispatch` and `ingest` in
//! batches of 1,000. Each batch is durable when its call returns. The argument is the number of rounds; one round has
//! 10,000 runs.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, ExecutorId, ExecutorName, Job, JobSpec, Outcome,
    OutcomeKind, Shard, Timestamp,
};
use cueline_store::{
    AttemptReport, ClockOverride, DispatchRequest, FireDueRequest, Plan, PlannedRun, Planner, Store,
};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
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

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args()
        .skip(1)
        .find_map(|a| a.parse().ok())
        .unwrap_or(20);
    let dir = tempfile::tempdir_in(std::env::var_os("CUELINE_BENCH_DIR").unwrap_or(".".into()))?;
    let clock = Arc::new(AtomicI64::new(1_800_000_000_000));
    let shown = Arc::clone(&clock);
    let options = SqliteOptions {
        clock: Some(ClockOverride::new(move || {
            Timestamp::from_millis(shown.load(Ordering::SeqCst))
        })),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&dir.path().join("bench.db"), options).await?;
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
    println!("{runs} runs in {seconds:.2} s");
    store.close().await;
    Ok(())
}

async fn one_batch(
    store: &SqliteStore,
    node: cueline_store::NodeId,
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
