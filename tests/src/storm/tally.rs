//! How much of everything there was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::audit::Evidence;
use crate::client::Client;
use crate::cluster::Cluster;

/// What schedulers count for themselves.
const COUNTED: [&str; 4] = ["published", "reconciled", "failovers", "failed_over"];

type Counts = [u64; COUNTED.len()];

type Standing = JoinHandle<Result<Vec<(i64, i64)>>>;

/// Counts while a storm goes on.
#[derive(Debug)]
pub struct Tally {
    over: Arc<AtomicBool>,
    counting: Vec<JoinHandle<Counts>>,
    standing: Option<Standing>,
    counts: Counts,
}

impl Tally {
    /// Begins to count.
    pub fn begin(client: &Client, over: &Arc<AtomicBool>) -> Self {
        let counting = (0..client.schedulers())
            .map(|at| tokio::spawn(count(client.clone(), at, Arc::clone(over))));
        Self {
            over: Arc::clone(over),
            counting: counting.collect(),
            standing: Some(tokio::spawn(super::standstills(Arc::clone(over)))),
            counts: Counts::default(),
        }
    }

    /// The sums.
    pub async fn end(mut self, evidence: &mut Evidence) -> Result<Self> {
        self.over.store(true, Ordering::Relaxed);
        for counting in self.counting.drain(..) {
            let counts = counting.await?;
            for (sum, count) in self.counts.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        if let Some(standing) = self.standing.take() {
            evidence.standstills = standing.await??;
        }
        Ok(self)
    }

    /// In words.
    pub fn told(&self, evidence: &Evidence, cluster: &Cluster) -> String {
        let mut states = BTreeMap::<&str, usize>::new();
        for run in &evidence.runs {
            *states.entry(&run.state).or_default() += 1;
        }
        let more = evidence.runs.iter().filter(|r| r.attempt > 1).count();
        let again: u64 = cluster.workers.iter().map(|w| known_again(&w.log())).sum();
        let [published, reconciled, failovers, failed_over] = self.counts;
        format!(
            "{} runs {states:?}, {more} with more than one attempt, {published} triggers, {again} came again, \
             {failovers} failovers of {failed_over} attempts, {reconciled} reconciled, {} promises, {} cancelled, {} standstills",
            evidence.runs.len(),
            evidence.promises.len(),
            evidence.cancelled.len(),
            evidence.standstills.len(),
        )
    }
}

/// Triggers that a worker knew already.
fn known_again(log: &str) -> u64 {
    let lines = log.lines().filter(|l| l.contains("triggers came again"));
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

/// Adds up what a scheduler counts from start to start. What it counted in the last moments before it was killed is not known.
async fn count(client: Client, at: usize, over: Arc<AtomicBool>) -> Counts {
    let (mut sum, mut last) = (Counts::default(), Counts::default());
    let mut done = false;
    while !done {
        // Once more when it is over.
        done = over.load(Ordering::Relaxed);
        if let Ok(stats) = client.get_from(at, "/stats").await {
            let now = COUNTED.map(|what| stats["since_start"][what].as_u64().unwrap_or(0));
            for i in 0..COUNTED.len() {
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
