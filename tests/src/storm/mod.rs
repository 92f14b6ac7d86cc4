//! A storm: a cluster under load, all of whose parts are killed, stopped and cut off in turn, while people pause, edit and cancel; and the checker
//! that compares the books afterwards.
//!
//! All that is random comes from the seed: which faults, in which order, of whom, for how long, and what people do. When exactly things happen
//! relative to each other is up to the machine.

pub mod audit;
pub mod faults;
pub mod kinds;
pub mod people;
pub mod tally;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cueline_runtime::{Clock as _, SystemClock};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::books::Run;
use crate::cluster::{BrokerServer, Cluster};
use crate::{Seed, Witness};

use audit::{Evidence, audit};
use people::{Cancelled, Promise};
use tally::Tally;

/// How a storm is.
#[derive(Debug, Clone)]
pub struct Storm {
    /// Its name in what is printed.
    pub name: String,
    /// What all of it comes from.
    pub seed: Seed,
    /// The most faults; there are 14.
    pub faults: usize,
}

/// Two schedulers, three workers.
const SCHEDULERS: usize = 2;
const WORKERS: usize = 3;
const EDITORS: u64 = 4;
const CANCELLERS: u64 = 3;

impl Storm {
    /// Lets it rage, and checks the books. The last line of what is printed is for tables.
    pub async fn rage(&self, broker: BrokerServer) -> Result<()> {
        let mut cluster = Cluster::start(broker, SCHEDULERS, WORKERS).await?;
        let witness = Witness::in_folder(cluster.folder.path());
        let mut evidence = Evidence::default();
        let raged = self.run(&mut cluster, &witness, &mut evidence).await;
        let tally = match raged {
            Ok(tally) => tally,
            Err(error) => return Err(self.keep(&cluster, &format!("{error:?}"))),
        };
        let verdict = audit(&evidence);
        println!(
            "{}: seed {}, {} faults, {:.0} fires/s: {}, latest start {} ms after its time with a scheduler away, {} overlaps with a stopped worker or late notes of one",
            self.name,
            self.seed.0,
            evidence.past.len(),
            kinds::fires_per_second(),
            tally.told(&evidence, &cluster),
            verdict.latest_ms,
            verdict.excused,
        );
        if verdict.wrong.is_empty() {
            return Ok(());
        }
        for past in &evidence.past {
            println!("{past:?}");
        }
        // Some of each kind.
        let mut kinds = BTreeMap::<&str, usize>::new();
        let mut first = Vec::new();
        for wrong in &verdict.wrong {
            let kind = wrong.split(':').next().unwrap_or_default();
            let seen = kinds.entry(kind).or_default();
            *seen += 1;
            if *seen <= 10 {
                first.push(wrong.as_str());
            }
        }
        let count = verdict.wrong.len();
        Err(self.keep(
            &cluster,
            &format!("{count} violations:\n{}", first.join("\n")),
        ))
    }

    async fn run(
        &self,
        cluster: &mut Cluster,
        witness: &Witness,
        evidence: &mut Evidence,
    ) -> Result<Tally> {
        let mut rng = self.seed.rng();
        let client = cluster.client.clone();
        let mut jobs = kinds::definitions(witness);
        jobs.extend(people::by_hand(witness));
        client.post("/jobs/apply", &json!({ "jobs": jobs })).await?;
        let over = Arc::new(AtomicBool::new(false));
        let crowd = self.people(cluster, &over);
        let tally = Tally::begin(&client, &over);
        sleep(Duration::from_secs(2)).await;
        for (turn, fault) in faults::faults(&mut rng)
            .into_iter()
            .take(self.faults)
            .enumerate()
        {
            println!("{}: {:?} {:?}", self.name, fault.target, fault.how);
            let past = faults::inflict(cluster, fault).await?;
            evidence.past.push(past);
            let cancelled = people::cancel_in_calm(&client, witness, turn).await;
            evidence.cancelled.extend(cancelled.context("in calm")?);
        }
        over.store(true, Ordering::Relaxed);
        for task in crowd.0 {
            evidence.promises.extend(task.await??);
        }
        for task in crowd.1 {
            evidence.cancelled.extend(task.await??);
        }
        for name in kinds::kinds().iter().flat_map(kinds::Kind::names) {
            client
                .post(&format!("/jobs/{name}/pause"), &Value::Null)
                .await?;
        }
        client.quiet(Duration::from_mins(2)).await?;
        let tally = tally.end(evidence).await?;
        evidence.runs = client.all_runs().await?.iter().map(Run::read).collect();
        evidence.notes = witness.notes()?;
        for scheduler in &cluster.schedulers {
            evidence
                .failovers
                .extend(audit::failovers_in(&scheduler.log())?);
        }
        Ok(tally)
    }

    fn people(&self, cluster: &Cluster, over: &Arc<AtomicBool>) -> Crowd {
        let mut crowd = Crowd(Vec::new(), Vec::new());
        for i in 0..EDITORS {
            let (client, over) = (cluster.client.clone(), Arc::clone(over));
            let rng = Seed(self.seed.0 ^ ((i + 1) << 32)).rng();
            crowd.0.push(tokio::spawn(async move {
                people::edit(client, format!("edited-{i}"), rng, &over).await
            }));
        }
        for i in 0..CANCELLERS {
            let (client, over) = (cluster.client.clone(), Arc::clone(over));
            let rng = Seed(self.seed.0 ^ ((i + 1) << 40)).rng();
            crowd.1.push(tokio::spawn(async move {
                people::cancel_at_random(client, format!("cancelled-{i}"), rng, &over).await
            }));
        }
        crowd
    }

    /// Keeps the files of a cluster in which something is wrong.
    fn keep(&self, cluster: &Cluster, what: &str) -> anyhow::Error {
        let logs = cluster.last_lines();
        let kept = cluster.folder.path().with_extension("kept");
        let moved = std::fs::rename(cluster.folder.path(), &kept);
        let place = match moved {
            Ok(()) => kept.display().to_string(),
            Err(e) => format!("nowhere: {e}"),
        };
        anyhow::anyhow!(
            "{}: seed {}: {what}\n{logs}\nfiles are kept in {place}",
            self.name,
            self.seed.0
        )
    }
}

struct Crowd(
    Vec<JoinHandle<Result<Vec<Promise>>>>,
    Vec<JoinHandle<Result<Vec<Cancelled>>>>,
);

/// When nothing on the whole machine went on: then how late something was says nothing.
async fn standstills(over: Arc<AtomicBool>) -> Result<Vec<(i64, i64)>> {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    const LONGEST_MS: i64 = 1_000;
    let mut found = Vec::new();
    let mut last = SystemClock.now_ms();
    while !over.load(Ordering::Relaxed) {
        sleep(LOOK_EVERY).await;
        let now = SystemClock.now_ms();
        if now - last > LONGEST_MS {
            found.push((last, now));
        }
        last = now;
        if found.len() > 10_000 {
            bail!("nothing goes on here");
        }
    }
    Ok(found)
}
