//! The summary line of a storm: the numbers of runs, triggers, failovers and reconciliations.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::checker::Observations;
use super::cluster::StormCluster;
use crate::client::Client;

/// Counters of a scheduler, which start at 0 with each process.
const NAMES: [&str; 4] = ["published", "reconciled", "failovers", "failed_over"];

type Counts = [u64; NAMES.len()];

type Standstills = JoinHandle<Result<Vec<(i64, i64)>>>;

/// The sums of the schedulers' counters, collected while a storm runs.
#[derive(Debug)]
pub struct Counters {
    over: Arc<AtomicBool>,
    collecting: Vec<JoinHandle<Counts>>,
    standstills: Option<Standstills>,
    sums: Counts,
}

impl Counters {
    /// Starts collecting.
    pub fn start(client: &Client, folder: &Path) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let collecting = (0..client.schedulers())
            .map(|at| tokio::spawn(collect(client.clone(), at, Arc::clone(&over))));
        Self {
            collecting: collecting.collect(),
            standstills: Some(tokio::spawn(super::observe_standstills(
                Arc::clone(&over),
                folder.to_owned(),
            ))),
            sums: Counts::default(),
            over,
        }
    }

    /// Stops collecting and adds the counters up.
    pub async fn finish(mut self, observations: &mut Observations) -> Result<Self> {
        self.over.store(true, Ordering::Relaxed);
        for collecting in self.collecting.drain(..) {
            let counts = collecting.await?;
            for (sum, count) in self.sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        let [_, reconciled, ..] = self.sums;
        observations.reconciled = reconciled;
        if let Some(standstills) = self.standstills.take() {
            observations.standstills = standstills.await??;
        }
        Ok(self)
    }

    /// The numbers in one line.
    pub fn summary(&self, observations: &Observations, cluster: &StormCluster) -> String {
        let mut states = BTreeMap::<&str, usize>::new();
        for run in &observations.runs {
            *states.entry(&run.state).or_default() += 1;
        }
        let retried = observations.runs.iter().filter(|r| r.attempt > 1).count();
        let logs = cluster.workers.iter().map(|w| w.process.log());
        let redelivered: u64 = logs.map(|log| redelivered(&log)).sum();
        let [published, reconciled, failovers, failed_over] = self.sums;
        format!(
            "{} runs {states:?}, {retried} with more than one attempt, {published} triggers, {redelivered} redelivered, \
             {failovers} failovers of {failed_over} attempts, {reconciled} reconciled, {} promises, {} cancelled, {} standstills",
            observations.runs.len(),
            observations.promises.len(),
            observations.cancellations.len(),
            observations.standstills.len(),
        )
    }
}

/// The runtime of a storm that failed would wait for the thread that watches the disk.
impl Drop for Counters {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// The triggers that a worker received more than once, from its log.
fn redelivered(log: &str) -> u64 {
    let lines = log
        .lines()
        .filter(|l| l.contains("received triggers of known attempts"));
    lines
        .filter_map(|l| {
            l.split("count=")
                .nth(1)?
                .split_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum()
}

/// Adds up a scheduler's counters over its restarts. The last half second before a kill is missing.
async fn collect(client: Client, at: usize, over: Arc<AtomicBool>) -> Counts {
    let (mut sum, mut last) = (Counts::default(), Counts::default());
    let mut done = false;
    while !done {
        // Collect once more after the end of the storm.
        done = over.load(Ordering::Relaxed);
        if let Ok(stats) = client.get_from(at, "/stats").await {
            let now = NAMES.map(|name| stats["since_start"][name].as_u64().unwrap_or(0));
            for i in 0..NAMES.len() {
                sum[i] += if now[0] >= last[0] {
                    now[i] - last[i].min(now[i])
                } else {
                    now[i]
                };
            }
            last = now;
        }
        if !done {
            sleep(Duration::from_millis(500)).await;
        }
    }
    sum
}
