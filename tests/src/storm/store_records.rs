//! More of the database's records than the list of runs: timelines and ledgers, read over the API after a storm.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::client::Client;

/// An unusual event of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineEvent {
    /// In milliseconds.
    pub at: i64,
    pub attempt: u32,
    /// `retry`, `rerun`, `returned`, `republished` and so on.
    pub event: String,
    pub detail: String,
}

/// A fire time that the ledger of a job expects, and its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// In milliseconds.
    pub fire_at: i64,
    /// Several fire times may name the same skipped run.
    pub run: Option<i64>,
}

/// Timelines that one storm reads at most. It fails if more runs have one.
const MOST_TIMELINES: usize = 50_000;
/// Requests for timelines at once.
const AT_ONCE: usize = 8;

/// Reads the timelines of these runs.
pub async fn timelines(
    client: &Client,
    runs: &BTreeSet<i64>,
) -> Result<HashMap<i64, Vec<TimelineEvent>>> {
    ensure!(
        runs.len() <= MOST_TIMELINES,
        "{} runs have more than one attempt or started out of order; a storm reads at most {MOST_TIMELINES} timelines",
        runs.len()
    );
    let runs: Vec<i64> = runs.iter().copied().collect();
    let mut timelines = HashMap::new();
    for part in runs.chunks(AT_ONCE) {
        let mut requests = JoinSet::new();
        for run in part.iter().copied() {
            let client = client.clone();
            requests.spawn(async move {
                let shown = client.get(&format!("/runs/{run}")).await?;
                anyhow::Ok((run, events(&shown)?))
            });
        }
        while let Some(read) = requests.join_next().await {
            timelines.extend([read??]);
        }
    }
    Ok(timelines)
}

fn events(run: &Value) -> Result<Vec<TimelineEvent>> {
    let events = run["timeline"].as_array().context("no timeline")?.iter();
    events
        .map(|event| {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            Ok(TimelineEvent {
                at: event["at"].as_i64().context("an event has a time")?,
                attempt: u32::try_from(event["attempt"].as_u64().unwrap_or(0))?,
                event: text("event"),
                detail: text("detail"),
            })
        })
        .collect()
}

/// Pages of one ledger. A storm of an hour has fewer.
const MOST_PAGES: usize = 100;

/// Reads the ledger of a job from `from` until right before `to`.
pub async fn ledger(client: &Client, job: &str, from: i64, to: i64) -> Result<Vec<LedgerEntry>> {
    let mut all = Vec::new();
    let mut from = from;
    for _ in 0..MOST_PAGES {
        if from >= to {
            break;
        }
        let path = format!("/jobs/{job}/ledger?from={from}&to={to}&limit=1000");
        let page = client.get(&path).await?;
        let entries = page["entries"].as_array().context("no entries")?;
        for entry in entries {
            all.push(LedgerEntry {
                fire_at: entry["fire_at"].as_i64().context("an entry has a time")?,
                run: entry["run"].as_i64(),
            });
        }
        match all.last() {
            Some(last) if page["more"] == true => from = last.fire_at + 1,
            _ => break,
        }
    }
    Ok(all)
}
