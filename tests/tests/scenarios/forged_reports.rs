//! An attacker has worker two's account on the broker, with the rights that the documentation gives it, and the key in
//! its state directory. Reports, heartbeats and dead letters about others change nothing. They become dead letters
//! without a verified origin, or counts (G16).

mod accounts;
mod attacker;
mod forgeries;
mod other_namespace;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cueline_model::RunId;
use cueline_protocol::origin::{EnrolmentToken, Sealer, WorkerKey};
use cueline_test_servers::postgres::Postgres;
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, ENROL_TOKEN, WITHIN, database};
use serde_json::{Value, json};

use accounts::{Accounts, Home};
use attacker::Attacker;
use forgeries::{Attack, WICKED, executor};

/// Worker two is revoked for some seconds, in which its heartbeats do not count. It must not be failed over, also on a
/// machine that stands still for a while.
const TIMES: [&str; 2] = ["--failover-after", "60s"];

const WORKERS: [&str; 2] = ["one", "two"];

fn jobs(cluster: &Cluster) -> String {
    format!(
        r#"
[[job]]
name = "held"
schedule = {{ manual = true }}
route = "broadcast"
handler = {{ shell = "echo $CUELINE_EXECUTOR >> {}; until [ -e {} ]; do sleep 0.1; done; echo honest" }}

[[job]]
name = "unrouted"
group = "absent"
schedule = {{ manual = true }}
dispatch_deadline = "1h"
handler = {{ shell = "true" }}
"#,
        cluster.path("ran").display(),
        cluster.path("may-end").display()
    )
}

/// Each worker knows the store's id from its triggers.
fn store_id(postgres: &Postgres, url: &str) -> Result<String> {
    let database = url.rsplit('/').next().and_then(|d| d.split('?').next());
    postgres.sql(
        database.context("a database")?,
        "SELECT id FROM store_identity",
    )
}

fn run_id(value: &Value) -> Result<RunId> {
    Ok(RunId(value.as_i64().context("the id of a run")?))
}

/// Triggers the job at both workers, and waits until it runs there. Returns the run of each.
async fn running(cluster: &Cluster) -> Result<BTreeMap<String, RunId>> {
    let answer = cluster.run(&["trigger", "held", "-o", "json"]).await?;
    let answer = answer.json()?;
    let mut runs = BTreeMap::new();
    for run in answer["runs"].as_array().context("a list of runs")? {
        cluster.wait_for_state(&run.to_string(), "running").await?;
        let shown = cluster.client.get(&format!("/runs/{run}")).await?;
        let executor = shown["executor"].as_str().context("an executor")?;
        runs.insert(executor.to_owned(), run_id(run)?);
    }
    ensure!(runs.len() == WORKERS.len(), "{runs:?}");
    Ok(runs)
}

/// The key in the state directory of worker two.
fn stolen_key(cluster: &Cluster) -> Result<WorkerKey> {
    let text = std::fs::read_to_string(cluster.path("state-two").join("worker.key"))?;
    let key = text.trim().rsplit(':').next().context("a key")?;
    Ok(WorkerKey::from_base64(key)?)
}

async fn prepare(cluster: &Cluster, store: String) -> Result<Attack> {
    cluster.apply(&jobs(cluster)).await?;
    let runs = running(cluster).await?;
    let unrouted = cluster.run(&["trigger", "unrouted", "-o", "json"]).await?;
    let key = stolen_key(cluster)?;
    Ok(Attack {
        store: store.parse()?,
        two: Sealer::new(executor("two"), key.clone()),
        key,
        of_one: runs["one"],
        of_two: runs["two"],
        unrouted: run_id(&unrouted.json()?["runs"][0])?,
    })
}

/// A counter of the scheduler.
async fn counter(cluster: &Cluster, name: &str) -> Result<u64> {
    let stats = cluster.client.get("/stats").await?;
    let count = stats["since_start"][name].as_u64();
    count.with_context(|| format!("no counter {name}: {stats}"))
}

async fn wait_for_counter(cluster: &Cluster, name: &str, least: u64) -> Result<()> {
    let counted = try_eventually(format!("{name} is {least}"), WITHIN, async || {
        let count = counter(cluster, name).await?;
        anyhow::Ok((count >= least).then_some(()).ok_or(count))
    });
    counted.await
}

/// The executor as the API shows it.
async fn shown(cluster: &Cluster, name: &str) -> Result<Option<Value>> {
    let answer = cluster.client.get("/executors").await?;
    let executors = answer["executors"].as_array().context("a list")?;
    Ok(executors.iter().find(|e| e["name"] == name).cloned())
}

/// The time of the executor's last heartbeat that counted.
async fn heard_at(cluster: &Cluster, name: &str) -> Result<i64> {
    let executor = shown(cluster, name).await?.context("no such executor")?;
    let at = executor["last_heartbeat_at"].as_i64();
    at.with_context(|| format!("no time: {executor}"))
}

/// Waits until a heartbeat of the executor counts that is later than this one.
async fn wait_for_heartbeat(cluster: &Cluster, name: &str, after: i64) -> Result<()> {
    try_eventually(format!("a heartbeat of {name}"), WITHIN, async || {
        let at = heard_at(cluster, name).await?;
        anyhow::Ok((at > after).then_some(()).ok_or(at))
    })
    .await
}

async fn dead_letters(cluster: &Cluster) -> Result<Vec<Value>> {
    let list = ["dlq", "list", "-A", "--limit", "100", "-o", "json"];
    let mut answer = cluster.run(&list).await?.json()?;
    let letters = answer["letters"].as_array_mut().context("a list")?;
    Ok(std::mem::take(letters))
}

/// Waits until there are this many dead letters.
async fn wait_for_letters(cluster: &Cluster, count: usize) -> Result<Vec<Value>> {
    try_eventually(format!("{count} dead letters"), WITHIN, async || {
        let letters = dead_letters(cluster).await?;
        anyhow::Ok(if letters.len() >= count {
            Ok(letters)
        } else {
            Err(format!("{letters:#?}"))
        })
    })
    .await
}

/// Each forged report is a dead letter with its reason and its verified sender, if it has one.
async fn forge_reports(cluster: &Cluster, attacker: &Attacker, attack: &Attack) -> Result<()> {
    let forgeries = attack.reports()?;
    let foreign = forgeries.iter().filter(|f| f.is_foreign()).count();
    let forged = forgeries.iter().filter(|f| f.origin.is_none()).count();
    for forgery in &forgeries {
        attacker.report(forgery.payload.clone()).await?;
    }
    let mut letters = wait_for_letters(cluster, forgeries.len()).await?;
    for forgery in &forgeries {
        let expected = (forgery.reason, forgery.origin);
        let place = letters.iter().position(|letter| {
            letter["queue"] == "results"
                && letter["origin"].as_str() == forgery.origin
                && letter["reason"]
                    .as_str()
                    .is_some_and(|reason| reason.contains(forgery.reason))
        });
        let place = place.with_context(|| format!("no {expected:?} in {letters:#?}"))?;
        letters.swap_remove(place);
    }
    wait_for_counter(cluster, "forged_reports", forged as u64).await?;
    wait_for_counter(cluster, "foreign_reports", foreign as u64).await
}

/// Forged heartbeats neither end an executor nor make a new one, and a stranger is not admitted under a known name.
async fn forge_heartbeats(cluster: &Cluster, attacker: &Attacker, attack: &Attack) -> Result<()> {
    let one = shown(cluster, "one").await?.context("worker one")?;
    let incarnation = one["incarnation"].as_str().context("an incarnation")?;
    let before = counter(cluster, "forged_heartbeats").await?;
    let forged = attack.heartbeats(incarnation)?;
    let least = before + forged.len() as u64;
    // The worst case: the attacker also has the token that admits workers.
    let token = std::fs::read_to_string(cluster.path(ENROL_TOKEN))?;
    let token: EnrolmentToken = token.trim().parse()?;
    let others = [
        attack.old_heartbeat()?,
        Attack::enrolment(&token, incarnation)?,
    ];
    for heartbeat in others.into_iter().chain(forged) {
        attacker.heartbeat(heartbeat).await?;
    }
    wait_for_counter(cluster, "forged_heartbeats", least).await?;
    for name in WORKERS {
        let at = heard_at(cluster, name).await?;
        wait_for_heartbeat(cluster, name, at).await?;
        let executor = shown(cluster, name).await?.context("it is gone")?;
        let is_well = executor["gone"] == false && executor["draining"] == false;
        ensure!(is_well, "{executor}");
    }
    let ghost = shown(cluster, "ghost").await?;
    ensure!(ghost.is_none(), "{ghost:?}");
    let now = shown(cluster, "one").await?.context("worker one")?;
    ensure!(now["incarnation"] == incarnation, "{one} and now {now}");
    Ok(())
}

/// A dead letter about the queue of another has no origin, and nothing replays it.
async fn forge_dead_letters(cluster: &Cluster, attacker: &Attacker, attack: &Attack) -> Result<()> {
    let mut forged = attack.dead_letters()?;
    forged.push(attack.moved_letter()?);
    let (least, before) = (forged.len() as u64, dead_letters(cluster).await?);
    let count = forged.len();
    for letter in forged {
        attacker.dead_letter(letter).await?;
    }
    // Newest first.
    let mut letters = wait_for_letters(cluster, before.len() + count).await?;
    letters.truncate(count);
    for letter in &letters {
        let is_new = before.iter().all(|old| old["id"] != letter["id"]);
        ensure!(is_new && letter["origin"].is_null(), "{letter}");
    }
    wait_for_counter(cluster, "forged_letters", least).await?;
    let ids: Vec<String> = letters
        .iter()
        .map(|letter| letter["id"].to_string())
        .collect();
    let mut replay = vec!["dlq", "replay", "-A", "-o", "json"];
    replay.extend(ids.iter().map(String::as_str));
    let replayed = cluster.run(&replay).await?.json()?;
    ensure!(replayed["count"] == 0, "{replayed}");
    let runs = cluster.client.get("/runs?job=held").await?["runs"].take();
    let runs = runs.as_array().context("a list of runs")?.len();
    ensure!(runs == WORKERS.len(), "{runs} runs of the job");
    Ok(())
}

/// What a revoked worker seals does not count, until it is allowed again.
async fn revoke_and_allow(cluster: &Cluster, attacker: &Attacker, attack: &Attack) -> Result<()> {
    let key = attack.two.key_id();
    let change = |verb: &str| format!("/worker-keys/default/two/{key}/{verb}");
    let before = counter(cluster, "forged_heartbeats").await?;
    cluster.client.post(&change("revoke"), &json!({})).await?;
    // The scheduler knows it when it ignores a heartbeat of the worker itself.
    wait_for_counter(cluster, "forged_heartbeats", before + 1).await?;
    let letters = dead_letters(cluster).await?.len();
    attacker.report(attack.own_end()).await?;
    let letters = wait_for_letters(cluster, letters + 1).await?;
    ensure!(letters[0]["origin"].is_null(), "{}", letters[0]);
    let reason = letters[0]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("revoked"), "{reason}");
    check_untouched(cluster, attack.of_two).await?;

    let heard_at = heard_at(cluster, "two").await?;
    cluster.client.post(&change("allow"), &json!({})).await?;
    wait_for_heartbeat(cluster, "two", heard_at).await
}

/// The run is as its own executor has reported it: it runs, and has no log yet.
async fn check_untouched(cluster: &Cluster, run: RunId) -> Result<()> {
    let shown = cluster.client.get(&format!("/runs/{run}")).await?;
    let is_untouched = shown["state"] == "running" && shown["attempt"] == 1;
    ensure!(
        is_untouched && !shown.to_string().contains(WICKED),
        "{shown}"
    );
    let log = cluster.run(&["run", "logs", &run.to_string()]).await?;
    ensure!(!log.success()?.contains(WICKED), "the log is forged");
    Ok(())
}

async fn attack(cluster: &Cluster, attacker: &Attacker, attack: &Attack) -> Result<()> {
    forge_reports(cluster, attacker, attack).await?;
    forge_heartbeats(cluster, attacker, attack).await?;
    forge_dead_letters(cluster, attacker, attack).await?;
    revoke_and_allow(cluster, attacker, attack).await?;
    for run in [attack.of_one, attack.of_two] {
        check_untouched(cluster, run).await?;
    }
    let path = format!("/runs/{}", attack.unrouted);
    let unrouted = cluster.client.get(&path).await?;
    ensure!(unrouted["state"] == "scheduled", "{unrouted}");

    // The workers go on, and their own reports count.
    std::fs::write(cluster.path("may-end"), "")?;
    for run in [attack.of_one, attack.of_two] {
        cluster
            .wait_for_state(&run.to_string(), "succeeded")
            .await?;
        let log = cluster.run(&["run", "logs", &run.to_string()]).await?;
        let log = log.success()?;
        ensure!(log.contains("honest") && !log.contains(WICKED), "{log}");
    }
    let ran = std::fs::read_to_string(cluster.path("ran"))?;
    let mut ran: Vec<&str> = ran.lines().collect();
    ran.sort_unstable();
    ensure!(ran == WORKERS, "{ran:?}");
    Ok(())
}

/// Starts a scheduler, the two workers and the attacker, each with its own account.
async fn no_forgery_counts(accounts: Accounts) -> Result<()> {
    let (postgres, store) = database()?;
    let mut cluster = Cluster::new(store.clone(), accounts.scheduler).await?;
    let mut scheduler = cluster.scheduler(&TIMES)?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut workers = Vec::new();
    let attackers = accounts.two.clone();
    for (name, broker) in WORKERS.into_iter().zip([accounts.one, accounts.two]) {
        cluster.broker = broker;
        workers.push(cluster.worker_with(name, "signing.key.public", &TIMES)?);
        cluster.wait_for_executor(name).await?;
    }
    let attacker = Attacker::connect(&attackers, accounts.place).await?;
    let prepared = prepare(&cluster, store_id(&postgres, &store)?).await;
    let prepared = prepared.with_context(|| cluster.logs())?;
    attack(&cluster, &attacker, &prepared)
        .await
        .with_context(|| cluster.logs())?;
    for worker in &mut workers {
        worker.terminate().await?;
    }
    scheduler.terminate().await
}

#[tokio::test]
async fn a_workers_account_and_key_forge_nothing_of_others_over_nats() -> Result<()> {
    let (_server, accounts) = accounts::on_nats(Home::SameNamespace)?;
    no_forgery_counts(accounts).await
}

#[tokio::test]
async fn a_workers_account_and_key_forge_nothing_of_others_over_rabbitmq() -> Result<()> {
    no_forgery_counts(accounts::on_rabbitmq(Home::SameNamespace)?).await
}
