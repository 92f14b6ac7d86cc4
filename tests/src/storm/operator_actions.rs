//! The actions of operators on jobs and runs during a storm, and the promises in the answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_runtime::{Clock as _, SystemClock};
use cueline_test_support::eventually;
use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::job_kinds::definition;
use crate::client::Client;
use crate::execution_log::Entry;
use crate::{ExecutionLog, program};

/// The promise of an answer: runs of this job and of definitions up to `revision` do not start if they are due after
/// `from` and before `until`.
#[derive(Debug, Clone)]
pub struct Promise {
    /// `pause`, `edit` or `delete`.
    pub action: &'static str,
    pub job: String,
    /// The newest definition that the promise covers.
    pub revision: u32,
    /// When the answer was received.
    pub from: i64,
    /// When the request to resume the job was sent.
    pub until: Option<i64>,
}

/// A request to cancel a run.
#[derive(Debug, Clone)]
pub struct Cancellation {
    pub run: i64,
    /// `done`, `asked`, `ended`.
    pub answer: String,
    /// When the answer was received.
    pub at: i64,
    /// The state of the run if no fault was present. The outcome is then certain.
    pub phase: Option<Phase>,
}

/// The state in which a run was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The run is not published yet.
    Scheduled,
    /// The run waits behind another run.
    Queued,
    /// The run executes in the worker's process.
    Running,
    /// The run executes as a group of processes.
    ProcessGroup,
}

fn now() -> i64 {
    SystemClock.now_ms()
}

fn pause(rng: &mut StdRng, range: std::ops::Range<u64>) -> impl Future<Output = ()> + use<> {
    sleep(Duration::from_millis(rng.random_range(range)))
}

fn revised(name: &str, revision: u32) -> Value {
    let mut job = definition(name, "200ms");
    job["handler"] = json!({ "native": "record" });
    job["params"] = json!({ "hold_ms": 5, "revision": revision })
        .to_string()
        .into();
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
pub async fn edit_at_random(
    client: Client,
    name: String,
    mut rng: StdRng,
    over: &AtomicBool,
) -> Result<Vec<Promise>> {
    let mut promises = Vec::new();
    let mut revision = 0;
    apply(&client, &revised(&name, revision)).await?;
    while !over.load(Ordering::Relaxed) {
        pause(&mut rng, 400..2_500).await;
        let mut promise = Promise {
            action: "pause",
            job: name.clone(),
            revision,
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
                promise.action = "edit";
                revision += 1;
                apply(&client, &revised(&name, revision)).await?;
                promise.from = now();
            }
            _ => {
                promise.action = "delete";
                client.delete(&format!("/jobs/{name}")).await?;
                promise.from = now();
                pause(&mut rng, 100..800).await;
                revision += 1;
                apply(&client, &revised(&name, revision)).await?;
            }
        }
        promises.push(promise);
    }
    client
        .post(&format!("/jobs/{name}/pause"), &Value::Null)
        .await?;
    Ok(promises)
}

/// Longer than a storm: such a run ends only if it is stopped.
const ENDLESS_MS: u32 = 10_000_000;

/// Jobs that only operators trigger.
pub fn manual_jobs(log: &ExecutionLog) -> Vec<Value> {
    let handler = |name: &str| {
        json!({
            "name": name,
            "schedule": { "manual": true },
            "handler": { "native": "record" },
            "params": json!({ "hold_ms": ENDLESS_MS }).to_string(),
            "kill_grace": "1s",
        })
    };
    let mut cancellable = handler("cancellable-0");
    cancellable["route"] = json!("consistent_hash");
    let mut group = handler("process-group-0");
    // A process group with a leader and a process that the leader does not wait for.
    let script = format!(
        "sleep 10000 & exec {} {} {ENDLESS_MS}",
        program::test_command().display(),
        log.path().display()
    );
    group["handler"] = json!({ "command": ["sh", "-c", script] });
    if let Some(job) = group.as_object_mut() {
        job.remove("params");
    }
    vec![
        cancellable,
        group,
        handler("cancelled-0"),
        handler("cancelled-1"),
        handler("cancelled-2"),
    ]
}

async fn trigger(client: &Client, job: &str, key: &str, run_at: Option<i64>) -> Result<i64> {
    // The key makes the request safe to repeat.
    let mut body = json!({ "idempotency_key": key });
    if let Some(at) = run_at {
        body["run_at"] = at.to_string().into();
    }
    let answer = client.post(&format!("/jobs/{job}/trigger"), &body).await?;
    answer["runs"][0].as_i64().context("no run")
}

async fn cancel(client: &Client, run: i64, phase: Option<Phase>) -> Result<Cancellation> {
    let answer = client
        .post(&format!("/runs/{run}/cancel"), &Value::Null)
        .await?;
    Ok(Cancellation {
        run,
        answer: answer["result"].as_str().unwrap_or_default().to_owned(),
        at: now(),
        phase,
    })
}

/// Triggers runs of one job and cancels them at random moments until `over`.
pub async fn cancel_at_random(
    client: Client,
    job: String,
    mut rng: StdRng,
    over: &AtomicBool,
) -> Result<Vec<Cancellation>> {
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

const REACHED_WITHIN: Duration = Duration::from_secs(45);

/// Waits until the run is in this state. Returns `false` if a worker without connection or heartbeats caused another
/// end.
async fn reaches(client: &Client, run: i64, expected: &'static str) -> Result<bool> {
    let goal = format!("G11: run {run} is {expected}");
    let reached = eventually(goal, REACHED_WITHIN, async || {
        let shown = match client.get(&format!("/runs/{run}")).await {
            Ok(shown) => shown,
            Err(e) => return Ok(Err(e)),
        };
        match shown["state"].as_str().unwrap_or_default() {
            state if state == expected => Ok(Ok(true)),
            // The run that it waits behind may be lost too.
            "lost" => Ok(Ok(false)),
            "running" if expected == "queued" => Ok(Ok(false)),
            state => Err(state.to_owned()),
        }
    });
    match reached.await {
        Ok(reached) => reached,
        Err(late) if expected == "cancelled" => Err(late.into()),
        Err(_) => Ok(false),
    }
}

async fn executor_of(client: &Client, run: i64) -> Result<Value> {
    Ok(client.get(&format!("/runs/{run}")).await?["executor"].clone())
}

/// A busy machine may lose a run, so the test tries this many times.
const TRIES: usize = 5;

/// Cancels one run in each state while no fault is present. Gives up if the machine is too busy.
pub async fn cancel_between_faults(
    client: &Client,
    log: &ExecutionLog,
    turn: usize,
) -> Result<Vec<Cancellation>> {
    for again in 0..TRIES {
        let key = format!("between-faults/{turn}/{again}");
        if let Some(all) = cancel_in_each_phase(client, log, &key).await? {
            return Ok(all);
        }
    }
    println!("nothing was cancelled between two faults: runs were lost {TRIES} times in a row");
    Ok(Vec::new())
}

async fn cancel_in_each_phase(
    client: &Client,
    log: &ExecutionLog,
    key: &str,
) -> Result<Option<Vec<Cancellation>>> {
    let key = |phase: &str| format!("{key}/{phase}");
    let running = trigger(client, "cancellable-0", &key("running"), None).await?;
    let group = trigger(client, "process-group-0", &key("group"), None).await?;
    let mut good = reaches(client, running, "running").await?;
    good &= reaches(client, group, "running").await?;
    let queued = trigger(client, "cancellable-0", &key("queued"), None).await?;
    good &= reaches(client, queued, "queued").await?;
    // The set of live executors may have changed just now.
    good &= executor_of(client, queued).await? == executor_of(client, running).await?;
    let an_hour = Some(now() + 3_600_000);
    let later = trigger(client, "cancellable-0", &key("scheduled"), an_hour).await?;
    let mut all = Vec::new();
    for (run, phase) in [
        (later, Phase::Scheduled),
        (queued, Phase::Queued),
        (running, Phase::Running),
        (group, Phase::ProcessGroup),
    ] {
        all.push(cancel(client, run, Some(phase)).await?);
        good &= reaches(client, run, "cancelled").await?;
    }
    let entries = log.entries()?;
    let leader = entries.iter().find(|e| e.run == group);
    if let Some(leader) = leader.filter(|_| good) {
        ensure!(
            !group_has_processes(leader.pid)?,
            "G11: run {group} is cancelled, and its process group {} still has processes",
            leader.pid
        );
    }
    Ok(good.then_some(all))
}

/// Whether the group has a living process.
pub fn group_has_processes(group: i32) -> Result<bool> {
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

/// Verifies G3: returns the starts that break a promise. `created_at` returns when the database got a run.
pub fn check_promises(
    promises: &[Promise],
    entries: &[Entry],
    created_at: impl Fn(i64) -> Option<i64>,
) -> Vec<String> {
    let mut violations = Vec::new();
    let starts: Vec<&Entry> = entries
        .iter()
        .filter(|e| e.is_start() && e.job.starts_with("edited-"))
        .collect();
    for promise in promises {
        let covers = |at: i64| at > promise.from + CLOCK_MS && promise.until.is_none_or(|u| at < u);
        for start in &starts {
            let old = start.job == promise.job && start.revision <= promise.revision;
            // The resume itself may create a run that is due after it, in a transaction that read the clock just
            // before.
            let resumed = promise.until.is_some_and(|u| start.fire_at >= u);
            let created = created_at(start.run).is_some_and(covers) && !resumed;
            if old && (covers(start.fire_at) || created) {
                violations.push(format!("G3: {promise:?}: {start:?}"));
            }
        }
    }
    violations
}

/// The largest error of a scheduler's estimate of the database's clock.
const CLOCK_MS: i64 = 50;
