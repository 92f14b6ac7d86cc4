//! A fault storm: faults kill, stop and disconnect the components of a cluster under load, one after another. Meanwhile
//! operators pause, edit and cancel. Afterwards a checker compares the database with the handlers' records.
//!
//! The seed determines all random choices: the faults, their order, targets and lengths, and the operators' actions.
//! The machine determines their exact timing.

pub mod checker;
pub mod cluster;
pub mod faults;
pub mod job_kinds;
pub mod operator_actions;
pub mod summary;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cueline_runtime::{Clock as _, SystemClock};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::Seed;
use crate::consistency::Run;

use checker::{Observations, Verdict, check};
use cluster::{BrokerServer, StormCluster};
use operator_actions::{Cancellation, Promise};
use summary::Counters;

/// Settings of a storm.
#[derive(Debug, Clone)]
pub struct Storm {
    /// The name in the printed lines.
    pub name: String,
    pub seed: Seed,
    /// The number of faults, at most 14.
    pub faults: usize,
}

const SCHEDULERS: usize = 2;
const WORKERS: usize = 3;
/// Operators that pause, edit and delete jobs.
const EDITORS: u64 = 4;
/// Operators that trigger and cancel runs.
const CANCELLERS: u64 = 3;

/// The violations of one guarantee that a failure message lists.
const LISTED_VIOLATIONS: usize = 10;

/// Runs a storm and checks the result. Its last printed line is made for tables.
pub async fn run_storm(storm: &Storm, broker: BrokerServer) -> Result<()> {
    let mut cluster = StormCluster::start(broker, SCHEDULERS, WORKERS).await?;
    let mut observations = Observations::default();
    let counters = match storm.observe(&mut cluster, &mut observations).await {
        Ok(counters) => counters,
        Err(error) => return Err(storm.keep_files(&cluster, &format!("{error:?}"))),
    };
    let verdict = check(&observations);
    println!(
        "{}: seed {}, {} faults, {:.0} fires/s: {}, latest start {} ms after its fire time with a scheduler away, {} overlaps with a stopped worker or late entries of one",
        storm.name,
        storm.seed.0,
        observations.faults.len(),
        job_kinds::fires_per_second(),
        counters.summary(&observations, &cluster),
        verdict.latest_ms,
        verdict.excused,
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
        let mut jobs = job_kinds::definitions(&log);
        jobs.extend(operator_actions::manual_jobs(&log));
        client.post("/jobs/apply", &json!({ "jobs": jobs })).await?;
        let over = Arc::new(AtomicBool::new(false));
        let operators = self.start_operators(cluster, &over);
        let counters = Counters::start(&client, &over);
        sleep(Duration::from_secs(2)).await;
        let faults = faults::schedule(&mut rng);
        for (turn, fault) in faults.into_iter().take(self.faults).enumerate() {
            println!("{}: {:?} {:?}", self.name, fault.target, fault.kind);
            let injected = faults::inject(cluster, fault).await?;
            observations.faults.push(injected);
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
        observations.runs = client
            .all_runs()
            .await?
            .iter()
            .map(Run::from_json)
            .collect();
        observations.entries = log.entries()?;
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
        let kept = cluster.folder().with_extension("kept");
        let moved = std::fs::rename(cluster.folder(), &kept);
        let place = match moved {
            Ok(()) => format!("files are kept in {}", kept.display()),
            Err(e) => format!("files are lost: {e}"),
        };
        anyhow::anyhow!(
            "{}: seed {}: {what}\n{logs}\n{place}",
            self.name,
            self.seed.0
        )
    }
}

/// Tasks that act on jobs and runs until the storm is over.
struct Operators {
    editors: Vec<JoinHandle<Result<Vec<Promise>>>>,
    cancellers: Vec<JoinHandle<Result<Vec<Cancellation>>>>,
}

/// Periods in which this process did not run. The whole machine was halted then, so delays in these periods do not
/// count.
async fn observe_standstills(over: Arc<AtomicBool>) -> Result<Vec<(i64, i64)>> {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    const LONGEST_MS: i64 = 1_000;
    const MOST: usize = 10_000;
    let mut found = Vec::new();
    let mut last = SystemClock.now_ms();
    while !over.load(Ordering::Relaxed) {
        sleep(LOOK_EVERY).await;
        let now = SystemClock.now_ms();
        if now - last > LONGEST_MS {
            found.push((last, now));
        }
        last = now;
        if found.len() > MOST {
            bail!("this machine stands still too often for a storm");
        }
    }
    Ok(found)
}
