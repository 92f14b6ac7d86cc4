//! SIGKILL, fifty times in a row, at random moments, under two hundred fires a second in every kind of lane; then the books are compared: what the
//! database says against what the handlers themselves wrote down.
//!
//! `CUELINE_TEST_KILLS` sets another number of kills, `CUELINE_TEST_SEED` repeats the moments of an earlier run.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use cueline_tests::books::{self, Run};
use cueline_tests::standalone::{command, free_port};
use cueline_tests::witness::{Note, What};
use cueline_tests::{Seed, Standalone, Witness, witness};
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::time::sleep;

/// A kind of job in this test: how many, how often, how long a run takes, and what is special about it.
struct Kind {
    prefix: &'static str,
    count: usize,
    every_ms: i64,
    hold_ms: u32,
    fail_below: u32,
    more: Value,
}

fn kinds() -> Vec<Kind> {
    let kind = |prefix, count, every_ms, hold_ms, more| Kind {
        prefix,
        count,
        every_ms,
        hold_ms,
        fail_below: 0,
        more,
    };
    vec![
        kind("serial", 8, 100, 15, json!({ "block": "serial" })),
        // Takes longer than its period: triggers wait in its lane whenever the process dies.
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
        Kind {
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

fn jobs(witness: &Witness) -> Value {
    let program = witness::program();
    let handler = |hold: u32, fail_below: u32| json!({ "command": [program.to_str(), witness.path().to_str(), hold.to_string(), fail_below.to_string()] });
    let mut jobs = Vec::new();
    for kind in kinds() {
        for i in 0..kind.count {
            let mut job = json!({
                "name": format!("{}-{i}", kind.prefix),
                "schedule": { "every": format!("{}ms", kind.every_ms) },
                // Nothing is ever too late here, so each fire time must have its run.
                "misfire": { "policy": "catch_up", "grace": "1h", "catch_up_limit": 10_000 },
                "handler": handler(kind.hold_ms, kind.fail_below),
            });
            for (key, value) in kind.more.as_object().into_iter().flatten() {
                job[key] = value.clone();
            }
            jobs.push(job);
        }
    }
    jobs.push(json!({ "name": "child-0", "after": "parent-0", "handler": handler(5, 0) }));
    Value::Array(jobs)
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_kills_lose_nothing_and_double_nothing() -> Result<()> {
    let seed = Seed::of("kill_standalone");
    let kills: u32 = std::env::var("CUELINE_TEST_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(50);
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let witness = Witness::in_folder(folder.path());

    let server = Standalone::start(&data, ARGS).await?;
    server.apply(&jobs(&witness)).await?;
    kill_again_and_again(server, &data, seed, kills).await?;

    let server = Standalone::start(&data, ARGS).await?;
    sleep(Duration::from_secs(1)).await;
    let names: Vec<String> = job_names(&jobs(&witness));
    let before = server.all_runs().await?;
    // The child last: what its parent has still to do is followed by it.
    for name in names.iter().filter(|n| !n.starts_with("child")) {
        server
            .post(&format!("/jobs/{name}/pause"), &Value::Null)
            .await?;
    }
    server.quiet(Duration::from_mins(2)).await?;
    let runs: Vec<Run> = server.all_runs().await?.iter().map(Run::read).collect();
    let notes = witness.notes()?;
    let books = Books::new(&runs, &notes, before.iter().map(Run::read));
    books.print(kills);
    let mut wrong = books.audit();
    wrong.extend(missing_in_ledgers(&server, &names, &runs).await?);
    server.terminate().await?;
    if !wrong.is_empty() {
        let kept = folder.keep();
        panic!(
            "seed {}: {} violations, files kept in {}:\n{}",
            seed.0,
            wrong.len(),
            kept.display(),
            wrong
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

async fn kill_again_and_again(
    first: Standalone,
    data: &Path,
    seed: Seed,
    kills: u32,
) -> Result<()> {
    let mut rng = seed.rng();
    let mut running = Some(first);
    for kill in 0..kills {
        // One in five dies while it starts.
        if kill % 5 == 4 {
            let mut child = command(data, free_port()?, ARGS)?.spawn()?;
            sleep(Duration::from_millis(rng.random_range(0..150))).await;
            child.start_kill()?;
            child.wait().await?;
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

/// The two sets of books.
struct Books<'a> {
    runs: &'a [Run],
    notes: &'a [Note],
    /// Had ended before the jobs were paused.
    ended_before: HashSet<i64>,
}

type Wrong = Vec<String>;

impl<'a> Books<'a> {
    fn new(runs: &'a [Run], notes: &'a [Note], before: impl Iterator<Item = Run>) -> Self {
        Self {
            runs,
            notes,
            ended_before: before.filter(Run::has_ended).map(|r| r.id).collect(),
        }
    }

    fn print(&self, kills: u32) {
        let mut states = BTreeMap::<&str, usize>::new();
        for run in self.runs {
            *states.entry(&run.state).or_default() += 1;
        }
        let more = self.runs.iter().filter(|r| r.attempt > 1).count();
        println!(
            "{kills} kills: {} runs {states:?}, {more} with more than one attempt, {} notes by handlers",
            self.runs.len(),
            self.notes.len()
        );
    }

    fn audit(&self) -> Wrong {
        let mut wrong = Wrong::new();
        let skipped = self.runs.iter().filter(|r| r.state == "skipped").count();
        if skipped * 10 > self.runs.len() {
            wrong.push(format!(
                "{skipped} of {} runs never went out: nothing much was tested",
                self.runs.len()
            ));
        }
        self.every_fire_time_once(&mut wrong);
        wrong.extend(books::attempts(self.runs, self.notes));
        self.states_are_true(&mut wrong);
        self.lanes_in_order(&mut wrong);
        self.effects_once(&mut wrong);
        wrong
    }

    /// G1, G2: each point of a job's grid has exactly one run.
    fn every_fire_time_once(&self, wrong: &mut Wrong) {
        for kind in kinds() {
            for i in 0..kind.count {
                let job = format!("{}-{i}", kind.prefix);
                wrong.extend(books::grid(self.runs, &job, kind.every_ms, 10));
            }
        }
    }

    /// G4, G7, G8: each run has ended, and what is said of it is what happened.
    fn states_are_true(&self, wrong: &mut Wrong) {
        let seen = books::seen(self.notes);
        let nothing = BTreeSet::new();
        for run in self.runs {
            let notes = seen.get(&(run.id, run.attempt)).unwrap_or(&nothing);
            let has = |what| notes.contains(what);
            let ever_started = (1..=run.attempt).any(|a| seen.contains_key(&(run.id, a)));
            let is_true = match run.state.as_str() {
                "succeeded" => has("start") && has("end"),
                // It may have been killed with the process between the journal and its first step, or have ended after the process.
                "lost" => !run.job.starts_with("rerun"),
                "discarded" => run.job.starts_with("discard") && !ever_started,
                // The pause at the end met it while it waited for a retry.
                "cancelled" => run.job.starts_with("flaky") && run.message.contains("paused"),
                // The pause at the end met it while an attempt that was to fail had still to run: there is no retry then.
                "failed" => {
                    run.job.starts_with("flaky")
                        && has("fail")
                        && !self.ended_before.contains(&run.id)
                }
                // The pause at the end met it before its trigger had gone out.
                "skipped" => !ever_started && run.message.contains("paused"),
                // Its process may have noted its end and been stopped before it had really ended.
                "covered" => {
                    run.job.starts_with("cover") && !run.message.contains("returned success")
                }
                _ => false,
            };
            if !is_true {
                wrong.push(format!(
                    "G4: {run:?} is said to be {}, its handler noted {notes:?}",
                    run.state
                ));
            }
        }
    }

    /// G6, G8: first attempts start in the order of their fire times; what was covered was covered by something newer.
    fn lanes_in_order(&self, wrong: &mut Wrong) {
        let mut newest = HashMap::<&str, i64>::new();
        for note in self
            .notes
            .iter()
            .filter(|n| n.what == What::Start && n.attempt == 1)
        {
            if note.job.starts_with("flaky") || note.job.starts_with("child") {
                continue;
            }
            let before = newest.insert(&note.job, note.fire_at).unwrap_or(i64::MIN);
            if before >= note.fire_at {
                wrong.push(format!("G6: {note:?} after fire time {before}"));
            }
        }
        let mut last = HashMap::<&str, i64>::new();
        for run in self.runs {
            let entry = last.entry(&run.job).or_insert(i64::MIN);
            *entry = run.fire_at.max(*entry);
        }
        for run in self.runs.iter().filter(|r| r.state == "covered") {
            if last[run.job.as_str()] == run.fire_at {
                wrong.push(format!("G8: {run:?} was covered by nothing"));
            }
        }
    }

    /// G9: each success of the parent has one child run, and nothing else has; nothing is retried more often than it may be.
    fn effects_once(&self, wrong: &mut Wrong) {
        let mut children = BTreeMap::<i64, usize>::new();
        for child in self.of("child-0") {
            *children.entry(child.parent.unwrap_or(-1)).or_default() += 1;
        }
        for parent in self.of("parent-0") {
            let expected = usize::from(parent.state == "succeeded");
            let found = children.remove(&parent.id).unwrap_or(0);
            if found != expected {
                wrong.push(format!(
                    "G9: {parent:?} has {found} child runs, not {expected}"
                ));
            }
        }
        if !children.is_empty() {
            wrong.push(format!("G9: child runs of no parent: {children:?}"));
        }
        for run in self.runs {
            let most = if run.job.starts_with("flaky") {
                3
            } else if run.job.starts_with("rerun") {
                4
            } else {
                1
            };
            if run.attempt > most {
                wrong.push(format!(
                    "G9: {run:?} has more attempts than its retry policy allows"
                ));
            }
        }
    }

    fn of<'b>(&'b self, job: &'b str) -> impl Iterator<Item = &'b Run> + 'b {
        self.runs
            .iter()
            .filter(move |r| r.job == job && (r.kind == "schedule" || r.kind == "child"))
    }
}

/// G1 as the product itself tells it.
async fn missing_in_ledgers(server: &Standalone, names: &[String], runs: &[Run]) -> Result<Wrong> {
    let mut wrong = Wrong::new();
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
                wrong.push(format!(
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
    Ok(wrong)
}
