//! Two schedulers, three workers, PostgreSQL and a broker, while each of them in turn is killed, stopped for longer than every lease, and cut off;
//! then the books are compared: what the database says against what the handlers themselves wrote down.
//!
//! `CUELINE_TEST_SEED` chooses other faults than the usual ones, or repeats those of an earlier run. `CUELINE_TEST_FAULTS` sets how many there are: 4 by default, one of each target; 12 has
//! all.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use cueline_test_servers::proxy::Link;
use cueline_tests::books::{self, Run};
use cueline_tests::cluster::{BrokerServer, Cluster};
use cueline_tests::witness::Note;
use cueline_tests::{Seed, Witness, witness};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};
use tokio::time::sleep;

/// A kind of job in this test.
struct Kind {
    prefix: &'static str,
    count: usize,
    every_ms: i64,
    hold_ms: u32,
    fail_below: u32,
    more: Value,
}

/// About sixty fires a second: handlers are processes, and all of the cluster is on one machine.
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
        kind(
            "serial",
            6,
            500,
            20,
            json!({ "block": "serial", "route": "consistent_hash" }),
        ),
        kind(
            "round",
            4,
            500,
            20,
            json!({ "block": "serial", "route": "round" }),
        ),
        kind(
            "parallel",
            4,
            500,
            20,
            json!({ "block": { "parallel": 2 }, "route": "random" }),
        ),
        kind(
            "first",
            2,
            500,
            20,
            json!({ "block": "serial", "route": "first" }),
        ),
        kind(
            "discard",
            3,
            500,
            700,
            json!({ "block": "discard", "route": "consistent_hash" }),
        ),
        kind(
            "cover",
            3,
            500,
            700,
            json!({ "block": "cover", "route": "consistent_hash" }),
        ),
        kind(
            "rerun",
            3,
            500,
            50,
            json!({ "block": "serial", "on_lost": "rerun", "route": "round" }),
        ),
        kind(
            "sharded",
            1,
            1_000,
            20,
            json!({ "block": "serial", "route": { "sharded": ["a", "b", "c"] } }),
        ),
        kind(
            "parent",
            1,
            1_000,
            10,
            json!({ "block": "serial", "route": "round" }),
        ),
        flaky(),
    ]
}

/// Fails twice, and is tried again.
fn flaky() -> Kind {
    Kind {
        prefix: "flaky",
        count: 2,
        every_ms: 1_000,
        hold_ms: 5,
        fail_below: 3,
        more: json!({ "retry": { "max": 2, "first": "50ms" }, "route": "random" }),
    }
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
                "dispatch_deadline": "10m",
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Scheduler,
    Worker,
    Broker,
    Store,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Kill,
    Stop,
    CutOff,
}

/// Longer than every lease: a node's and a dead executor's are 15 s, the fence 20 s, failover 30 s.
const LONG: Duration = Duration::from_secs(42);

/// One of each target first, so that a short run has them all.
fn faults(rng: &mut StdRng) -> Vec<(Target, How)> {
    let mut by_target: Vec<(Target, Vec<How>)> = [
        Target::Scheduler,
        Target::Worker,
        Target::Broker,
        Target::Store,
    ]
    .into_iter()
    .map(|target| {
        let mut hows = vec![How::Kill, How::Stop, How::CutOff];
        hows.shuffle(rng);
        (target, hows)
    })
    .collect();
    by_target.shuffle(rng);
    let mut all = Vec::new();
    for round in 0..3 {
        all.extend(
            by_target
                .iter()
                .map(|(target, hows)| (*target, hows[round])),
        );
    }
    all
}

/// Inflicts one, heals it, and waits until everybody is back.
async fn inflict(cluster: &mut Cluster, rng: &mut StdRng, target: Target, how: How) -> Result<()> {
    let link = [Link::Cut, Link::HalfOpen][rng.random_range(0..2)];
    let scheduler = rng.random_range(0..cluster.schedulers.len());
    let worker = rng.random_range(0..cluster.workers.len());
    match (target, how) {
        (Target::Scheduler, How::Kill) => cluster.schedulers[scheduler].kill().await?,
        (Target::Worker, How::Kill) => {
            cluster.workers[worker].kill().await?;
            // At once, or after others have taken over.
            if rng.random() {
                sleep(LONG).await;
            }
        }
        (Target::Broker, How::Kill) => cluster.broker.kill_and_start()?,
        (Target::Store, How::Kill) => {
            cluster.postgres.kill()?;
            cluster.postgres.start_again()?;
        }
        (Target::Scheduler, How::Stop) => {
            cluster.schedulers[scheduler].pause()?;
            sleep(LONG).await;
            cluster.schedulers[scheduler].resume()?;
        }
        (Target::Worker, How::Stop) => {
            cluster.workers[worker].pause()?;
            sleep(LONG).await;
            cluster.workers[worker].resume()?;
        }
        (Target::Broker, How::Stop) => {
            cluster.broker.pause()?;
            sleep(LONG).await;
            cluster.broker.resume()?;
        }
        (Target::Store, How::Stop) => {
            cluster.postgres.pause()?;
            sleep(LONG).await;
            cluster.postgres.resume()?;
        }
        (Target::Scheduler, How::CutOff) => {
            cluster.schedulers[scheduler].link(link);
            sleep(LONG).await;
            cluster.schedulers[scheduler].link(Link::Whole);
        }
        (Target::Worker, How::CutOff) => {
            cluster.workers[worker].link(link);
            sleep(LONG).await;
            cluster.workers[worker].link(Link::Whole);
        }
        // Cut off from everybody, for a while that is shorter than the leases of those who wait for it.
        (Target::Broker | Target::Store, How::CutOff) => {
            for member in cluster.schedulers.iter().chain(&cluster.workers) {
                member.link(link);
            }
            sleep(Duration::from_millis(rng.random_range(500..12_000))).await;
            for member in cluster.schedulers.iter().chain(&cluster.workers) {
                member.link(Link::Whole);
            }
        }
    }
    cluster.start_again()?;
    cluster.all_heard().await?;
    sleep(Duration::from_millis(rng.random_range(500..3_000))).await;
    Ok(())
}

async fn storm(name: &str, broker: BrokerServer) -> Result<()> {
    let seed = Seed::or(name, 2);
    let mut rng = seed.rng();
    let count: usize = std::env::var("CUELINE_TEST_FAULTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(4);
    let mut cluster = Cluster::start(broker, 2, 3).await?;
    let witness = Witness::in_folder(cluster.folder.path());
    let jobs = jobs(&witness);
    cluster
        .post("/jobs/apply", &json!({ "jobs": jobs }))
        .await?;
    sleep(Duration::from_secs(3)).await;
    for (target, how) in faults(&mut rng).into_iter().take(count) {
        println!("{name}: {how:?} {target:?}");
        inflict(&mut cluster, &mut rng, target, how).await?;
    }
    let names: Vec<&str> = jobs
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|j| j["name"].as_str())
        .collect();
    for name in names.iter().filter(|n| !n.starts_with("child")) {
        cluster
            .post(&format!("/jobs/{name}/pause"), &Value::Null)
            .await?;
    }
    cluster.quiet(Duration::from_mins(4)).await?;
    let runs: Vec<Run> = cluster.all_runs().await?.iter().map(Run::read).collect();
    let notes = witness.notes()?;
    let wrong = audit(&runs, &notes);
    println!("{name}: {}", summary(&runs, &cluster));
    if !wrong.is_empty() {
        let logs = cluster.last_lines();
        let kept = cluster.folder.path().with_extension("kept");
        std::fs::rename(cluster.folder.path(), &kept)?;
        panic!(
            "seed {}: {} violations, files kept in {}:\n{}\n{logs}",
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

fn summary(runs: &[Run], cluster: &Cluster) -> String {
    let mut states = BTreeMap::<&str, usize>::new();
    for run in runs {
        *states.entry(&run.state).or_default() += 1;
    }
    let more = runs.iter().filter(|r| r.attempt > 1).count();
    let said = |what: &str| -> usize {
        cluster
            .schedulers
            .iter()
            .map(|s| s.log().matches(what).count())
            .sum()
    };
    format!(
        "{} runs {states:?}, {more} with more than one attempt, {} failovers, {} reconciliations",
        runs.len(),
        said("failed over an executor"),
        said("triggers were lost on the way"),
    )
}

fn audit(runs: &[Run], notes: &[Note]) -> Vec<String> {
    let mut wrong = books::attempts(runs, notes);
    // Two at once are as they should be there.
    wrong.retain(|w| !(w.contains("overlap") && w.contains("\"parallel-")));
    for kind in kinds() {
        for i in 0..kind.count {
            wrong.extend(books::grid(
                runs,
                &format!("{}-{i}", kind.prefix),
                kind.every_ms,
                10,
            ));
        }
    }
    let seen = books::seen(notes);
    let nothing = std::collections::BTreeSet::new();
    for run in runs {
        let witnessed = seen.get(&(run.id, run.attempt)).unwrap_or(&nothing);
        let ever_started = (1..=run.attempt).any(|a| seen.contains_key(&(run.id, a)));
        let is_true = match run.state.as_str() {
            "succeeded" => witnessed.contains("start") && witnessed.contains("end"),
            "lost" => !run.job.starts_with("rerun"),
            "discarded" => run.job.starts_with("discard") && !witnessed.contains("start"),
            "covered" => run.job.starts_with("cover"),
            // The pause at the end met it before its trigger had gone out, or while it waited for another attempt.
            "skipped" => !ever_started && run.message.contains("paused"),
            "cancelled" => run.message.contains("paused"),
            "failed" => run.job.starts_with("flaky") && witnessed.contains("fail"),
            _ => false,
        };
        if !is_true {
            wrong.push(format!(
                "G4: {run:?} is said to be {}, its handler noted {witnessed:?}",
                run.state
            ));
        }
    }
    let mut children = BTreeMap::<i64, usize>::new();
    for child in runs.iter().filter(|r| r.job == "child-0") {
        *children.entry(child.parent.unwrap_or(-1)).or_default() += 1;
    }
    for parent in runs.iter().filter(|r| r.job == "parent-0") {
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
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_over_nats() -> Result<()> {
    storm("cluster_nats", BrokerServer::nats()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_over_rabbitmq() -> Result<()> {
    storm("cluster_rabbitmq", BrokerServer::rabbit()?).await
}
