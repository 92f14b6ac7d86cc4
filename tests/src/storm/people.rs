//! What people do to jobs and runs while the storm goes on, and what they were promised.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_runtime::{Clock as _, SystemClock};
use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::kinds::definition;
use crate::client::Client;
use crate::witness::{self, Note, What};
use crate::{Patience, Witness};

/// What an answer promised: of this job, up to this definition, nothing that is due from then on is started, until it is resumed.
#[derive(Debug, Clone)]
pub struct Promise {
    /// `pause`, `edit` or `delete`.
    pub what: &'static str,
    /// The job.
    pub job: String,
    /// The newest definition that it is about.
    pub round: u32,
    /// When the answer had come.
    pub from: i64,
    /// When somebody began to resume it.
    pub until: Option<i64>,
}

/// A run whose cancellation was asked for.
#[derive(Debug, Clone)]
pub struct Cancelled {
    /// The run.
    pub run: i64,
    /// `done`, `asked`, `ended`.
    pub answer: String,
    /// When the answer had come.
    pub at: i64,
    /// What has to have become of it, if nothing stood in the way.
    pub strict: Option<Phase>,
}

/// In which state a run was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It is not published.
    Scheduled,
    /// It waits behind another.
    Queued,
    /// It runs in the worker's process.
    Running,
    /// It runs as a group of processes.
    Group,
}

fn now() -> i64 {
    SystemClock.now_ms()
}

fn pause(rng: &mut StdRng, range: std::ops::Range<u64>) -> impl Future<Output = ()> + use<> {
    sleep(Duration::from_millis(rng.random_range(range)))
}

fn edited(name: &str, round: u32) -> Value {
    let mut job = definition(name, "200ms");
    job["handler"] = json!({ "native": "witness" });
    job["params"] = json!({ "hold_ms": 5, "round": round }).to_string().into();
    job["route"] = json!("round");
    job
}

async fn apply(client: &Client, job: &Value) -> Result<()> {
    client
        .post("/jobs/apply", &json!({ "jobs": [job] }))
        .await
        .map(drop)
}

/// Pauses, edits and deletes one job at random moments until `over`.
pub async fn edit(
    client: Client,
    name: String,
    mut rng: StdRng,
    over: &AtomicBool,
) -> Result<Vec<Promise>> {
    let mut promises = Vec::new();
    let mut round = 0;
    apply(&client, &edited(&name, round)).await?;
    while !over.load(Ordering::Relaxed) {
        pause(&mut rng, 400..2_500).await;
        let mut promise = Promise {
            what: "pause",
            job: name.clone(),
            round,
            from: 0,
            until: None,
        };
        match rng.random_range(0..3) {
            0 => {
                client
                    .post(&format!("/jobs/{name}/pause"), &Value::Null)
                    .await?;
                promise.from = now();
                pause(&mut rng, 300..1_500).await;
                promise.until = Some(now());
                client
                    .post(&format!("/jobs/{name}/resume"), &Value::Null)
                    .await?;
            }
            1 => {
                promise.what = "edit";
                round += 1;
                apply(&client, &edited(&name, round)).await?;
                promise.from = now();
            }
            _ => {
                promise.what = "delete";
                client.delete(&format!("/jobs/{name}")).await?;
                promise.from = now();
                pause(&mut rng, 100..800).await;
                round += 1;
                apply(&client, &edited(&name, round)).await?;
            }
        }
        promises.push(promise);
    }
    client
        .post(&format!("/jobs/{name}/pause"), &Value::Null)
        .await?;
    Ok(promises)
}

/// Longer than a storm: what is not stopped does not end.
const FOR_EVER_MS: u32 = 10_000_000;

/// Jobs that only people start.
pub fn by_hand(witness: &Witness) -> Vec<Value> {
    let handler = |name: &str| {
        json!({
            "name": name,
            "schedule": { "manual": true },
            "handler": { "native": "witness" },
            "params": json!({ "hold_ms": FOR_EVER_MS }).to_string(),
            "kill_grace": "1s",
        })
    };
    let mut calm = handler("calm-0");
    calm["route"] = json!("consistent_hash");
    let mut group = handler("group-0");
    // A process that leads its group, and one that it leaves there.
    let script = format!(
        "sleep 10000 & exec {} {} {FOR_EVER_MS}",
        witness::program().display(),
        witness.path().display()
    );
    group["handler"] = json!({ "command": ["sh", "-c", script] });
    if let Some(job) = group.as_object_mut() {
        job.remove("params");
    }
    vec![
        calm,
        group,
        handler("cancelled-0"),
        handler("cancelled-1"),
        handler("cancelled-2"),
    ]
}

async fn trigger(client: &Client, job: &str, key: &str, run_at: Option<i64>) -> Result<i64> {
    // With a key, so that it may be asked for again.
    let mut body = json!({ "idempotency_key": key });
    if let Some(at) = run_at {
        body["run_at"] = at.to_string().into();
    }
    let answer = client.post(&format!("/jobs/{job}/trigger"), &body).await?;
    answer["runs"][0].as_i64().context("no run")
}

async fn cancel(client: &Client, run: i64, strict: Option<Phase>) -> Result<Cancelled> {
    let answer = client
        .post(&format!("/runs/{run}/cancel"), &Value::Null)
        .await?;
    Ok(Cancelled {
        run,
        answer: answer["result"].as_str().unwrap_or_default().to_owned(),
        at: now(),
        strict,
    })
}

/// Starts runs of one job and cancels them at random moments, until `over`.
pub async fn cancel_at_random(
    client: Client,
    job: String,
    mut rng: StdRng,
    over: &AtomicBool,
) -> Result<Vec<Cancelled>> {
    let mut cancelled = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let key = format!("{job}/{}", cancelled.len());
        let later = rng.random_range(0..4) == 0;
        let run_at = later.then(|| now() + rng.random_range(0..1_500));
        let run = trigger(&client, &job, &key, run_at).await?;
        pause(&mut rng, 0..1_500).await;
        cancelled.push(cancel(&client, run, None).await?);
        pause(&mut rng, 100..1_500).await;
    }
    Ok(cancelled)
}

const SOON: Duration = Duration::from_secs(45);

/// Waits until the run is in one of these states. False when it has ended otherwise, and could do no better: its worker had no contact, or was silent.
async fn comes_to(client: &Client, run: i64, wanted: &'static str) -> Result<bool> {
    let patience = Patience::of(SOON);
    while patience.pause().await {
        let shown = client.get(&format!("/runs/{run}")).await?;
        let state = shown["state"].as_str().unwrap_or_default();
        if state == wanted {
            return Ok(true);
        }
        // What it was to wait behind may be lost as well.
        if state == "lost" || (wanted == "queued" && state == "running") {
            return Ok(false);
        }
    }
    if wanted == "cancelled" {
        bail!("G11: run {run} is not {wanted} within {SOON:?}");
    }
    Ok(false)
}

async fn executor_of(client: &Client, run: i64) -> Result<Value> {
    Ok(client.get(&format!("/runs/{run}")).await?["executor"].clone())
}

/// Tries, in which a run was lost because the machine was too busy for its worker.
const TRIES: usize = 5;

/// Cancels a run in each state while nothing else happens. Of a machine that is too busy for that, nothing.
pub async fn cancel_in_calm(
    client: &Client,
    witness: &Witness,
    turn: usize,
) -> Result<Vec<Cancelled>> {
    for again in 0..TRIES {
        if let Some(all) = cancel_each(client, witness, &format!("calm/{turn}/{again}")).await? {
            return Ok(all);
        }
    }
    println!("nothing was cancelled in calm: runs were lost {TRIES} times in a row");
    Ok(Vec::new())
}

async fn cancel_each(
    client: &Client,
    witness: &Witness,
    key: &str,
) -> Result<Option<Vec<Cancelled>>> {
    let key = |what: &str| format!("{key}/{what}");
    let running = trigger(client, "calm-0", &key("running"), None).await?;
    let group = trigger(client, "group-0", &key("group"), None).await?;
    let mut good = comes_to(client, running, "running").await?;
    good &= comes_to(client, group, "running").await?;
    let queued = trigger(client, "calm-0", &key("queued"), None).await?;
    good &= comes_to(client, queued, "queued").await?;
    // Who is there may just have changed.
    good &= executor_of(client, queued).await? == executor_of(client, running).await?;
    let an_hour = Some(now() + 3_600_000);
    let later = trigger(client, "calm-0", &key("scheduled"), an_hour).await?;
    let mut all = Vec::new();
    for (run, phase) in [
        (later, Phase::Scheduled),
        (queued, Phase::Queued),
        (running, Phase::Running),
        (group, Phase::Group),
    ] {
        all.push(cancel(client, run, Some(phase)).await?);
        good &= comes_to(client, run, "cancelled").await?;
    }
    let notes = witness.notes()?;
    let leader = notes.iter().find(|n| n.run == group);
    if let Some(leader) = leader.filter(|_| good) {
        ensure!(
            !has_members(leader.pid)?,
            "G11: run {group} is cancelled, and processes of its group {} are there",
            leader.pid
        );
    }
    Ok(good.then_some(all))
}

/// Whether processes of this group are there.
pub fn has_members(group: i32) -> Result<bool> {
    let group = group.to_string();
    for process in std::fs::read_dir("/proc")?.flatten() {
        let Ok(stat) = std::fs::read_to_string(process.path().join("stat")) else {
            continue;
        };
        let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let state = fields.next().unwrap_or("Z");
        if fields.nth(1) == Some(&group) && !matches!(state, "Z" | "X") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// G3: what was started against a promise. `created_at` says when a run was written down.
pub fn broken(
    promises: &[Promise],
    notes: &[Note],
    created_at: impl Fn(i64) -> Option<i64>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let starts: Vec<&Note> = notes
        .iter()
        .filter(|n| matches!(n.what, What::Start | What::Overlap))
        .filter(|n| n.job.starts_with("edited-"))
        .collect();
    for promise in promises {
        let covers = |at: i64| at > promise.from + CLOCK_MS && promise.until.is_none_or(|u| at < u);
        for note in &starts {
            let old = note.job == promise.job && note.round <= promise.round;
            // What is due after the resume may have been written down with it, by a transaction that had looked at the clock just before.
            let resumed = promise.until.is_some_and(|u| note.fire_at >= u);
            let written = created_at(note.run).is_some_and(covers) && !resumed;
            if old && (covers(note.fire_at) || written) {
                wrong.push(format!("G3: {promise:?}: {note:?}"));
            }
        }
    }
    wrong
}

/// A node's idea of the database's time may be off by so much.
const CLOCK_MS: i64 = 50;
