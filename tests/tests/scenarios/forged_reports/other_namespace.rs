//! The attacker is a worker of another namespace, with the account that the documentation gives it and its genuine key. What
//! it says about a run, a worker or a queue of the namespace `default` counts for nothing (G16, G18).

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use cueline_model::ExecutorId;
use cueline_protocol::VERSION;
use cueline_protocol::origin::{Purpose, Sealer};
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use serde_json::json;

use super::accounts::{self, Accounts, Home};
use super::attacker::Attacker;
use super::forgeries::{Attack, FOREIGN, ended, letter, now};
use super::{
    TIMES, check_untouched, counter, dead_letters, heard_at, shown, stolen_key, store_id,
    wait_for_counter, wait_for_heartbeat, wait_for_letters,
};

const GROUP: &str = "other/default";
const ORIGIN: &str = "executor other/default/two";
const OTHER_EXECUTOR: &str = "executor other/default/two sealed a message of executor default/one";

async fn wait_for_attackers_worker(cluster: &Cluster) -> Result<()> {
    try_eventually("two is listed", WITHIN, async || {
        let list = cluster.client.get("/namespaces/other/executors").await?;
        let found = list["executors"][0]["name"] == "two";
        anyhow::Ok(if found { Ok(()) } else { Err(list.to_string()) })
    })
    .await
}

/// Starts a run of `default` that waits for the file `may-end`.
async fn start_run(cluster: &Cluster) -> Result<String> {
    let job = format!(
        "[[job]]\nname = \"held\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"until [ -e {} ]; do sleep 0.1; done\" }}\n",
        cluster.path("may-end").display()
    );
    cluster.apply(&job).await?;
    let run = cluster.trigger("held").await?;
    cluster.wait_for_state(&run, "running").await?;
    Ok(run)
}

async fn forge(cluster: &Cluster, attacker: &Attacker, store: &str, run: &str) -> Result<()> {
    let id = ExecutorId {
        group: GROUP.parse()?,
        name: "two".parse()?,
    };
    let sealer = Sealer::new(id, stolen_key(cluster)?);
    let run: i64 = run.parse()?;
    let report = |group: &str, executor: &str| {
        let report = json!({
            "v": VERSION,
            "store": store,
            "run": run,
            "attempt": 1,
            "group": group,
            "executor": executor,
            "event": ended(),
        });
        sealer.seal(Purpose::Reports, report.to_string().into_bytes())
    };
    attacker.report(report("default", "one")).await?;
    attacker.report(report(GROUP, "two")).await?;
    let letters = wait_for_letters(cluster, 2).await?;
    for reason in [OTHER_EXECUTOR, FOREIGN] {
        let found = letters.iter().any(|letter| {
            let text = letter["reason"].as_str().unwrap_or_default();
            letter["origin"] == ORIGIN && text.contains(reason)
        });
        ensure!(found, "no {reason:?} in {letters:#?}");
    }
    // They are of the attacker's namespace, and nothing of them is in the other one.
    let of_default = cluster.run(&["dlq", "list", "-o", "json"]).await?.json()?;
    ensure!(of_default["letters"] == json!([]), "{of_default}");

    let one = shown(cluster, "one").await?.context("worker one")?;
    let incarnation = one["incarnation"].as_str().context("an incarnation")?;
    let before = counter(cluster, "forged_heartbeats").await?;
    let heartbeat = Attack::gone("one", incarnation, now()).to_string();
    let heartbeat = sealer.seal(Purpose::Heartbeat, heartbeat.into_bytes());
    attacker.heartbeat(heartbeat).await?;
    wait_for_counter(cluster, "forged_heartbeats", before + 1).await?;
    wait_for_heartbeat(cluster, "one", heard_at(cluster, "one").await?).await?;
    let one = shown(cluster, "one").await?.context("worker one")?;
    ensure!(one["gone"] == false && one["draining"] == false, "{one}");

    let request = json!({ "v": VERSION, "job": "held" }).to_string();
    let of_one = letter("x.default.one", Bytes::from(request))?;
    let of_one = sealer.seal(Purpose::DeadLetter, of_one);
    attacker.dead_letter(of_one).await?;
    let letters = wait_for_letters(cluster, 3).await?;
    let unverified = letters.iter().filter(|letter| letter["origin"].is_null());
    ensure!(unverified.count() == 1, "{letters:#?}");
    ensure!(dead_letters(cluster).await?.len() == 3, "{letters:#?}");
    Ok(())
}

async fn no_forgery_counts(accounts: Accounts) -> Result<()> {
    let (postgres, store) = database()?;
    let mut cluster = Cluster::new(store.clone(), accounts.scheduler).await?;
    let mut scheduler = cluster.scheduler(&TIMES)?;
    cluster.wait_until_ready(&mut scheduler).await?;
    cluster.broker = accounts.one;
    let mut one = cluster.worker_with("one", "signing.key.public", &TIMES)?;
    cluster.wait_for_executor("one").await?;
    cluster.broker = accounts.two.clone();
    let in_group = [&TIMES[..], &["--group", GROUP]].concat();
    let mut two = cluster.worker_with("two", "signing.key.public", &in_group)?;
    let started = wait_for_attackers_worker(&cluster).await;
    started.with_context(|| cluster.logs())?;
    let attacker = Attacker::connect(&accounts.two, accounts.place).await?;
    let run = start_run(&cluster).await?;
    let store = store_id(&postgres, &store)?;
    let forged = forge(&cluster, &attacker, store.trim(), &run).await;
    forged.with_context(|| cluster.logs())?;
    check_untouched(&cluster, cueline_model::RunId(run.parse()?)).await?;
    std::fs::write(cluster.path("may-end"), "")?;
    cluster.wait_for_state(&run, "succeeded").await?;
    one.terminate().await?;
    two.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn a_worker_of_another_namespace_forges_nothing_over_nats() -> Result<()> {
    let (_server, accounts) = accounts::on_nats(Home::OtherNamespace)?;
    no_forgery_counts(accounts).await
}

#[tokio::test]
async fn a_worker_of_another_namespace_forges_nothing_over_rabbitmq() -> Result<()> {
    no_forgery_counts(accounts::on_rabbitmq(Home::OtherNamespace)?).await
}
