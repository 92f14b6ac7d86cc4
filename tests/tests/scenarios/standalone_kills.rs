//! Fifty SIGKILLs at random moments under 200 fires a second in every kind of lane. Afterwards the test compares the
//! database with the execution log.
//!
//! `CUELINE_TEST_KILLS` sets another number of kills, `CUELINE_TEST_SEED` repeats the moments of an earlier test.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use cueline_test_servers::free_port;
use cueline_test_support::{SOON, eventually};
use cueline_tests::consistency::{
    Run, check_attempts, check_children, check_fire_times, events_by_attempt,
};
use cueline_tests::execution_log::{Entry, Event};
use cueline_tests::standalone::process;
use cueline_tests::{ExecutionLog, Seed, Standalone, program};
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::time::sleep;

/// Jobs that differ only in their number: how many, how often they fire, how long an attempt takes, and more fields of
/// the definition.
struct JobKind {
    prefix: &'static str,
    count: usize,
    every_ms: i64,
    hold_ms: u32,
    fail_below: u32,
    fields: Value,
}

fn kinds() -> Vec<JobKind> {
    let kind = |prefix, count, every_ms, hold_ms, fields| JobKind {
        prefix,
        count,
        every_ms,
        hold_ms,
        fail_below: 0,
        fields,
    };
    vec![
        kind("serial", 8, 100, 15, json!({ "block": "serial" })),
        // An attempt takes longer than the period, so triggers wait in its lane at each kill.
        kind("backlog", 1, 100, 115, json!({ "block": "serial" })),
        kind("discard", 6, 100, 130, json!({ "block": "discard" })),
        kind("cover-long", 2, 100, 130, json!({ "block": "cover" })),
        kind("cover-short", 2, 100, 40, json!({ "block": "cover" })),
        kind(
            "rerun",
            1,
            200,
            40,
            json!({ "block": "serial", "on_lost": "rerun" }),
        ),
        kind("parent", 1, 250, 10, json!({ "block": "serial" })),
        JobKind {
            fail_below: 3,
            ..kind(
                "flaky",
                1,
                500,
                5,
                json!({ "retry": { "max": 2, "first": "50ms" } }),
            )
        },
    ]
}

fn jobs(log: &ExecutionLog) -> Value {
    let program = program::test_command();
    let handler = |hold: u32, fail_below: u32| json!({ "command": [program.to_str(), log.path().to_str(), hold.to_string(), fail_below.to_string()] });
    let mut jobs = Vec::new();
    for kind in kinds() {
        for i in 0..kind.count {
            let mut job = json!({
                "name": format!("{}-{i}", kind.prefix),
                "schedule": { "every": format!("{}ms", kind.every_ms) },
                // No run is too late here, so each fire time must have one.
                "misfire": { "policy": "catch_up", "grace": "1h", "catch_up_limit": 10_000 },
                "handler": handler(kind.hold_ms, kind.fail_below),
            });
            for (key, value) in kind.fields.as_object().into_iter().flatten() {
                job[key] = value.clone();
            }
            jobs.push(job);
        }
    }
    jobs.push(json!({ "name": "child-0", "after": "parent-0", "handler": handler(5, 0) }));
    Value::Array(jobs)
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_kills_lose_no_run_and_double_none() -> Result<()> {
    let seed = Seed::random("standalone_kills");
    let kills: u32 = std::env::var("CUELINE_TEST_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(50);
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let log = ExecutionLog::in_folder(folder.path());

    let server = Standalone::start(&data, ARGS).await?;
    server.apply(&jobs(&log)).await?;
    kill_again_and_again(server, &data, seed, kills).await?;

    let server = Standalone::start(&data, ARGS).await?;
    sleep(Duration::from_secs(1)).await;
    wait_for_backlog(&server).await;
    let names: Vec<String> = job_names(&jobs(&log));
    let before = server.all_runs().await?;
    // The child is not paused, because it still follows runs of its parent.
    for name in names.iter().filter(|n| !n.starts_with("child")) {
        server
            .post(&format!("/jobs/{name}/pause"), &Value::Null)
            .await?;
    }
    server.wait_until_all_ended(Duration::from_mins(2)).await?;
    let runs = server.all_runs().await?;
    let runs: Vec<Run> = runs.iter().map(Run::from_json).collect();
    let entries = log.entries()?;
    let comparison = Comparison::new(&runs, &entries, before.iter().map(Run::from_json));
    comparison.print(kills);
    let mut violations = comparison.check();
    violations.extend(check_ledgers(&server, &names, &runs).await?);
    server.terminate().await?;
    if !violations.is_empty() {
        let kept = folder.keep();
        panic!(
            "seed {}: {} violations, files kept in {}:\n{}",
            seed.0,
            violations.len(),
            kept.display(),
            violations
                .iter()
                .take(40)
                .cloned()
                .collect::<Vec<_>>()
                .join("\n")
        );
    }
    Ok(())
}

const ARGS: &[&str] = &["--concurrency", "200"];

/// Runs that may wait when the jobs are paused. They end without a publish. A second and a half of fires wait at any time,
/// because they are claimed ahead.
const BACKLOG: u64 = 600;

/// Waits until the server has published the runs that it missed while it was away. On a machine that stands still, this takes
/// longer than usual. If it does not get so far, the checks below tell what was not tested.
async fn wait_for_backlog(server: &Standalone) {
    let published = eventually("few runs wait", SOON, async || {
        let stats = server.get("/stats").await.map_err(|e| format!("{e:#}"))?;
        let waiting = stats["live"]["scheduled"].as_u64().unwrap_or(0);
        (waiting <= BACKLOG)
            .then_some(())
            .ok_or(waiting.to_string())
    });
    if let Err(late) = published.await {
        println!("{late}");
    }
}

async fn kill_again_and_again(
    first: Standalone,
    data: &Path,
    seed: Seed,
    kills: u32,
) -> Result<()> {
    let mut rng = seed.rng();
    let mut running = Some(first);
    for kill in 0..kills {
        // One in five is killed while it starts.
        if kill % 5 == 4 {
            let mut starting = process(data, free_port()?, ARGS)?;
            starting.start()?;
            sleep(Duration::from_millis(rng.random_range(0..150))).await;
            starting.kill().await?;
            continue;
        }
        let server = match running.take() {
            Some(server) => server,
            None => Standalone::start(data, ARGS).await?,
        };
        sleep(Duration::from_millis(rng.random_range(50..1_200))).await;
        server.get("/stats").await?;
        server.kill().await?;
    }
    Ok(())
}

fn job_names(jobs: &Value) -> Vec<String> {
    jobs.as_array()
        .into_iter()
        .flatten()
        .filter_map(|j| j["name"].as_str().map(str::to_owned))
        .collect()
}

/// The database and the execution log.
struct Comparison<'a> {
    runs: &'a [Run],
    entries: &'a [Entry],
    /// Runs that had ended before the jobs were paused.
    ended_before: HashSet<i64>,
}

type Violations = Vec<String>;

impl<'a> Comparison<'a> {
    fn new(runs: &'a [Run], entries: &'a [Entry], before: impl Iterator<Item = Run>) -> Self {
        Self {
            runs,
            entries,
            ended_before: before.filter(Run::has_ended).map(|r| r.id).collect(),
        }
    }

    fn print(&self, kills: u32) {
        let mut states = BTreeMap::<&str, usize>::new();
        for run in self.runs {
            *states.entry(&run.state).or_default() += 1;
        }
        let retried = self.runs.iter().filter(|r| r.attempt > 1).count();
        println!(
            "{kills} kills: {} runs {states:?}, {retried} with more than one attempt, {} entries in the execution log",
            self.runs.len(),
            self.entries.len()
        );
    }

    fn check(&self) -> Violations {
        let mut violations = Violations::new();
        let skipped = self.runs.iter().filter(|r| r.state == "skipped").count();
        if skipped * 10 > self.runs.len() {
            violations.push(format!(
                "{skipped} of {} runs were never published: too little was tested",
                self.runs.len()
            ));
        }
        for kind in kinds() {
            for i in 0..kind.count {
                let job = format!("{}-{i}", kind.prefix);
                violations.extend(check_fire_times(self.runs, &job, 0, kind.every_ms, 10));
            }
        }
        violations.extend(check_attempts(self.runs, self.entries));
        self.check_states(&mut violations);
        self.check_lane_order(&mut violations);
        violations.extend(check_children(self.runs, "parent-", "child-"));
        self.check_retries(&mut violations);
        violations
    }

    /// G4, G7, G8: each run has ended, and its state agrees with what its handler recorded.
    fn check_states(&self, violations: &mut Violations) {
        let events = events_by_attempt(self.entries);
        let nothing = BTreeSet::new();
        for run in self.runs {
            let recorded = events.get(&(run.id, run.attempt)).unwrap_or(&nothing);
            let has = |event| recorded.contains(event);
            let ever_started = (1..=run.attempt).any(|a| events.contains_key(&(run.id, a)));
            let agrees = match run.state.as_str() {
                "succeeded" => has("start") && has("end"),
                // The process may be killed between the journal and the handler's first step, or before the handler
                // ends.
                "lost" => !run.job.starts_with("rerun"),
                "discarded" => run.job.starts_with("discard") && !ever_started,
                // The final pause hit it while it waited for a retry.
                "cancelled" => run.job.starts_with("flaky") && run.message.contains("paused"),
                // The final pause came before a failing attempt ended: there is no retry then.
                "failed" => {
                    run.job.starts_with("flaky")
                        && has("fail")
                        && !self.ended_before.contains(&run.id)
                }
                // The final pause came before its trigger was published.
                "skipped" => !ever_started && run.message.contains("paused"),
                // Its process may record its end and be stopped before it exits.
                "covered" => {
                    run.job.starts_with("cover") && !run.message.contains("returned success")
                }
                _ => false,
            };
            if !agrees {
                violations.push(format!(
                    "G4: {run:?} is {}, its handler recorded {recorded:?}",
                    run.state
                ));
            }
        }
    }

    /// G6, G8: first attempts start in the order of their fire times, and a covered run was covered by a newer one.
    fn check_lane_order(&self, violations: &mut Violations) {
        let mut newest = HashMap::<&str, i64>::new();
        for entry in self
            .entries
            .iter()
            .filter(|e| e.event == Event::Start && e.attempt == 1)
        {
            if entry.job.starts_with("flaky") || entry.job.starts_with("child") {
                continue;
            }
            let before = newest.insert(&entry.job, entry.fire_at).unwrap_or(i64::MIN);
            if before >= entry.fire_at {
                violations.push(format!("G6: {entry:?} after fire time {before}"));
            }
        }
        let mut last = HashMap::<&str, i64>::new();
        for run in self.runs {
            let entry = last.entry(&run.job).or_insert(i64::MIN);
            *entry = run.fire_at.max(*entry);
        }
        for run in self.runs.iter().filter(|r| r.state == "covered") {
            if last[run.job.as_str()] == run.fire_at {
                violations.push(format!("G8: {run:?} was covered by no newer run"));
            }
        }
    }

    /// G9: no run has more attempts than its policy allows.
    fn check_retries(&self, violations: &mut Violations) {
        for run in self.runs {
            let most = if run.job.starts_with("flaky") {
                3
            } else if run.job.starts_with("rerun") {
                4
            } else {
                1
            };
            if run.attempt > most {
                violations.push(format!(
                    "G9: {run:?} has more attempts than its policy allows"
                ));
            }
        }
    }
}

/// G1: the ledgers of all jobs have a run for each fire time.
async fn check_ledgers(server: &Standalone, names: &[String], runs: &[Run]) -> Result<Violations> {
    let mut violations = Violations::new();
    for name in names.iter().filter(|n| !n.starts_with("child")) {
        let times = || runs.iter().filter(|r| r.job == **name).map(|r| r.fire_at);
        let (Some(mut from), Some(to)) = (times().min(), times().max()) else {
            continue;
        };
        loop {
            let page = server
                .get(&format!(
                    "/jobs/{name}/ledger?from={from}&to={to}&limit=1000"
                ))
                .await?;
            let entries = page["entries"].as_array().cloned().unwrap_or_default();
            for entry in entries.iter().filter(|e| e["run"].is_null()) {
                violations.push(format!(
                    "G1: the ledger of {name} has no run for {}",
                    entry["fire_at"]
                ));
            }
            match entries.last().and_then(|e| e["fire_at"].as_i64()) {
                Some(last) if page["more"] == true && last + 1 < to => from = last + 1,
                _ => break,
            }
        }
    }
    Ok(violations)
}
