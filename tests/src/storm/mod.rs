//! A fault storm: faults kill, stop and disconnect the components of a cluster under load, up to three at once.
//! Meanwhile operators pause, edit and cancel. Afterwards a checker compares the database with the handlers' records.
//!
//! The state directory of one worker is on a disk of its own, which a fault fills. Where no file system can be mounted,
//! that fault is left out, and the storm prints the reason. A scheduler of a cluster keeps nothing on disk, so it has no
//! such fault. Neither have the servers: PostgreSQL stops when its disk is full, which `kill` covers, and what a broker
//! does then depends on the product.
//!
//! The seed determines all random choices: the faults, their order, targets and lengths, and the operators' actions.
//! The machine determines their exact timing.

pub mod checker;
pub mod cluster;
pub mod connection;
pub mod disk;
pub mod faults;
pub mod full_disk;
pub mod injection;
pub mod job_kinds;
pub mod lane_log;
pub mod operator_actions;
pub mod servers;
pub mod store_records;
pub mod summary;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use cueline_runtime::{Clock as _, SystemClock};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::Seed;
use crate::client::Client;
use crate::consistency::Run;

use checker::{Observations, Verdict, check};
use cluster::StormCluster;
use lane_log::LaneLog;
use operator_actions::{Cancellation, Promise};
use servers::{BrokerServer, StoreServer};
use summary::Counters;

/// Settings of a storm.
#[derive(Debug, Clone)]
pub struct Storm {
    /// The name in the printed lines.
    pub name: String,
    pub seed: Seed,
    /// The number of faults. A higher number than there are means all of them.
    pub faults: usize,
}

const SCHEDULERS: usize = 2;
const WORKERS: usize = 3;
/// Operators that pause, edit and delete jobs.
const EDITORS: u64 = 4;
/// Operators that trigger and cancel runs.
const CANCELLERS: u64 = 3;

/// A storm with all faults takes about three minutes, and three times as long on a busy machine. The checks come after
/// it.
const LONGEST: Duration = Duration::from_mins(20);

/// The violations of one guarantee that a failure message lists.
const LISTED_VIOLATIONS: usize = 10;

/// Runs a storm and checks the result. Its last printed line is made for tables.
pub async fn run_storm(storm: &Storm, broker: BrokerServer, database: StoreServer) -> Result<()> {
    let mut cluster = StormCluster::start(broker, database, SCHEDULERS, WORKERS).await?;
    if let Some(why) = &cluster.no_worker_disk {
        println!("{}: a full disk of a worker is left out: {why}", storm.name);
    }
    let mut observations = Observations::default();
    let watched = timeout(LONGEST, storm.observe(&mut cluster, &mut observations)).await;
    let watched = watched.unwrap_or_else(|_| Err(anyhow!("it was not over within {LONGEST:?}")));
    let counters = match watched {
        Ok(counters) => counters,
        Err(error) => return Err(storm.keep_files(&cluster, &format!("{error:?}"))),
    };
    let verdict = check(&observations);
    for ((kind, part), (faults, runs)) in checker::faults_met(&observations) {
        println!(
            "{}: {kind} {part}: {faults} faults met {runs} runs",
            storm.name
        );
    }
    println!(
        "{}: seed {}, {} faults, {:.0} fires/s: {}, latest start {} ms after its fire time with a scheduler away, {} overlaps with a stopped worker or late entries of one, {} lost attempts that may not have started, {} starts out of order published late, {} delivered again",
        storm.name,
        storm.seed.0,
        observations.faults.len(),
        job_kinds::fires_per_second(),
        counters.summary(&observations, &cluster),
        verdict.latest_ms,
        verdict.excused,
        verdict.uncertain,
        verdict.published_late,
        verdict.delivered_again,
    );
    if verdict.violations.is_empty() {
        return Ok(());
    }
    for fault in &observations.faults {
        println!("{fault:?}");
    }
    Err(storm.keep_files(&cluster, &listed(&verdict)))
}

/// Lists some violations of each guarantee.
fn listed(verdict: &Verdict) -> String {
    let mut by_guarantee = BTreeMap::<&str, usize>::new();
    let mut listed = Vec::new();
    for violation in &verdict.violations {
        let guarantee = violation.split(':').next().unwrap_or_default();
        let seen = by_guarantee.entry(guarantee).or_default();
        *seen += 1;
        if *seen <= LISTED_VIOLATIONS {
            listed.push(violation.as_str());
        }
    }
    let count = verdict.violations.len();
    format!("{count} violations:\n{}", listed.join("\n"))
}

impl Storm {
    /// Runs faults and operator actions against the cluster until all runs have ended.
    async fn observe(
        &self,
        cluster: &mut StormCluster,
        observations: &mut Observations,
    ) -> Result<Counters> {
        let mut rng = self.seed.rng();
        let (client, log) = (cluster.client.clone(), cluster.execution_log());
        // They end after the last run, because a standstill may delay that, too.
        let counters = Counters::start(&client, cluster.folder());
        let mut jobs = job_kinds::definitions(&log);
        jobs.extend(operator_actions::manual_jobs(&log));
        client.post("/jobs/apply", &json!({ "jobs": jobs })).await?;
        observations.scheduled_from = SystemClock.now_ms();
        let over = Arc::new(AtomicBool::new(false));
        let operators = self.start_operators(cluster, &over);
        sleep(Duration::from_secs(2)).await;
        let waves = faults::schedule(&mut rng, self.faults, cluster.setup());
        for (turn, wave) in waves.iter().enumerate() {
            for fault in wave {
                println!(
                    "{}: wave {turn}: {:?} {:?}",
                    self.name, fault.target, fault.kind
                );
            }
            let injected = injection::inject(cluster, wave).await?;
            observations.faults.extend(injected);
            let cancelled = operator_actions::cancel_between_faults(&client, &log, turn).await;
            let cancelled = cancelled.context("between faults")?;
            observations.cancellations.extend(cancelled);
        }
        over.store(true, Ordering::Relaxed);
        for task in operators.editors {
            observations.promises.extend(task.await??);
        }
        for task in operators.cancellers {
            observations.cancellations.extend(task.await??);
        }
        observations.scheduled_until = SystemClock.now_ms();
        for name in job_kinds::kinds()
            .iter()
            .flat_map(job_kinds::JobKind::names)
        {
            client
                .post(&format!("/jobs/{name}/pause"), &Value::Null)
                .await?;
        }
        client.wait_until_all_ended(Duration::from_mins(2)).await?;
        let counters = counters.finish(observations).await?;
        observations.entries = log.entries()?;
        read_store(&client, observations).await?;
        for worker in &cluster.workers {
            let read = LaneLog::parse(&worker.process.log())?;
            observations.lanes.insert(worker.process.name.clone(), read);
        }
        for scheduler in &cluster.schedulers {
            observations
                .failovers
                .extend(checker::failovers_in(&scheduler.process.log())?);
        }
        Ok(counters)
    }

    fn start_operators(&self, cluster: &StormCluster, over: &Arc<AtomicBool>) -> Operators {
        let editors = (0..EDITORS).map(|i| {
            let (client, over) = (cluster.client.clone(), Arc::clone(over));
            let rng = Seed(self.seed.0 ^ ((i + 1) << 32)).rng();
            tokio::spawn(async move {
                operator_actions::edit_at_random(client, format!("edited-{i}"), rng, &over).await
            })
        });
        let cancellers = (0..CANCELLERS).map(|i| {
            let (client, over) = (cluster.client.clone(), Arc::clone(over));
            let rng = Seed(self.seed.0 ^ ((i + 1) << 40)).rng();
            tokio::spawn(async move {
                let job = format!("cancelled-{i}");
                operator_actions::cancel_at_random(client, job, rng, &over).await
            })
        });
        Operators {
            editors: editors.collect(),
            cancellers: cancellers.collect(),
        }
    }

    /// Keeps the files of a cluster with a problem.
    fn keep_files(&self, cluster: &StormCluster, what: &str) -> anyhow::Error {
        let logs = cluster.last_lines();
        if let Err(error) = cluster.keep_worker_disk() {
            println!("{}: a worker's journal is lost: {error:#}", self.name);
        }
        let kept = cluster.folder().with_extension("kept");
        let moved = std::fs::rename(cluster.folder(), &kept);
        let place = match moved {
            Ok(()) => format!("files are kept in {}", kept.display()),
            Err(e) => format!("files are lost: {e}"),
        };
        anyhow!(
            "{}: seed {}: {what}\n{logs}\n{place}",
            self.name,
            self.seed.0
        )
    }
}

/// Reads the runs, and the timelines and ledgers that the checks need.
async fn read_store(client: &Client, observations: &mut Observations) -> Result<()> {
    let runs = client.all_runs().await?;
    observations.runs = runs.iter().map(Run::from_json).collect();
    let runs = checker::runs_with_timeline(observations);
    observations.timelines = store_records::timelines(client, &runs).await?;
    for kind in job_kinds::kinds().iter().filter(|k| k.misfire.is_some()) {
        for name in kind.names() {
            let fires = observations.runs.iter().filter(|r| r.job == name);
            // The ledger uses the present definition, so it expects fire times after the pause too.
            let last = fires.map(|r| r.fire_at).max().unwrap_or(0);
            let from = observations.scheduled_from;
            let ledger = store_records::ledger(client, &name, from, last + 1).await?;
            observations.ledgers.insert(name, ledger);
        }
    }
    Ok(())
}

/// Tasks that act on jobs and runs until the storm is over.
struct Operators {
    editors: Vec<JoinHandle<Result<Vec<Promise>>>>,
    cancellers: Vec<JoinHandle<Result<Vec<Cancellation>>>>,
}

/// A longer pause of the machine is a standstill. It is shorter than a lane needs to become idle on a busy machine.
const STANDSTILL_MS: i64 = 200;
/// A machine with more standstills is too bad for a storm.
const MOST_STANDSTILLS: usize = 10_000;

/// Periods in which the machine was halted: this process did not run, or the disk did not store a few bytes. Delays in
/// these periods do not count.
async fn observe_standstills(over: Arc<AtomicBool>, folder: PathBuf) -> Result<Vec<(i64, i64)>> {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let disk_over = Arc::clone(&over);
    let disk = spawn_blocking(move || observe_disk(&disk_over, &folder));
    let mut found = Vec::new();
    let mut last = SystemClock.now_ms();
    while !over.load(Ordering::Relaxed) {
        sleep(LOOK_EVERY).await;
        let now = SystemClock.now_ms();
        note_standstill(&mut found, last, now)?;
        last = now;
    }
    found.extend(disk.await??);
    Ok(merged(found))
}

/// Joins periods that overlap: the process and the disk may have noticed the same standstill.
fn merged(mut periods: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    periods.sort_unstable();
    let mut merged: Vec<(i64, i64)> = Vec::new();
    for (began, over) in periods {
        match merged.last_mut() {
            Some(last) if began <= last.1 => last.1 = last.1.max(over),
            _ => merged.push((began, over)),
        }
    }
    merged
}

/// Periods in which a write to the disk did not end. It flushes ten small writes a second.
fn observe_disk(over: &AtomicBool, folder: &Path) -> Result<Vec<(i64, i64)>> {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    let mut file = File::create(folder.join("disk"))?;
    let mut found = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let before = SystemClock.now_ms();
        file.rewind()?;
        file.write_all(&before.to_le_bytes())?;
        file.sync_data()?;
        note_standstill(&mut found, before, SystemClock.now_ms())?;
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(found)
}

fn note_standstill(found: &mut Vec<(i64, i64)>, from: i64, to: i64) -> Result<()> {
    if to - from > STANDSTILL_MS {
        found.push((from, to));
    }
    if found.len() > MOST_STANDSTILLS {
        bail!("this machine stands still too often for a storm");
    }
    Ok(())
}
