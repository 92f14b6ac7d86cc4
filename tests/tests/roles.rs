//! Scheduler and worker as processes of their own, on real servers: as in a cluster, with one of each.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_tests::roles::{Cluster, WITHIN, database};
use cueline_tests::until;
use nix::sys::signal::Signal;
use serde_json::Value;

fn jobs(folder: &Path) -> String {
    format!(
        r#"
[[job]]
name = "hello"
schedule = {{ manual = true }}
handler = {{ shell = "echo hello $1" }}

[[job]]
name = "slow"
schedule = {{ manual = true }}
handler = {{ shell = "echo started > {0}/started; sleep 2; echo ended > {0}/ended" }}

[[job]]
name = "not-allowed"
schedule = {{ manual = true }}
dispatch_deadline = "2s"
handler = {{ command = ["touch", "{0}/not-allowed"] }}
"#,
        folder.display()
    )
}

/// A job runs, what is not allowed does not, and each process ends well when it is asked to.
async fn a_day(store: String, broker: String) -> Result<()> {
    let cluster = Cluster::new(store, broker).await?;
    through_the_day(&cluster)
        .await
        .with_context(|| cluster.logs())
}

async fn through_the_day(cluster: &Cluster) -> Result<()> {
    // Any order will do.
    let mut worker = cluster.worker("one", "signing.key.public", "shell")?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.ready(&mut scheduler).await?;
    cluster.heard("default/one").await?;
    cluster.apply(&jobs(cluster.folder.path())).await?;

    let said = cluster.run(&["trigger", "hello", "--wait"]).await?;
    ensure!(said.status == Some(0), "{said:?}: {}", worker.said());
    ensure!(said.stdout.contains("succeeded"), "{said:?}");
    let refused = cluster.run(&["trigger", "not-allowed", "--wait"]).await?;
    ensure!(refused.status == Some(1), "{refused:?}");
    ensure!(refused.stdout.contains("unroutable"), "{refused:?}");
    ensure!(!cluster.path("not-allowed").exists(), "it ran");

    // What runs may end; then the worker reports it and leaves.
    let run = cluster.trigger("slow").await?;
    let started = cluster.path("started");
    until("a start", WITHIN, async || {
        Ok(started.exists().then_some(()))
    })
    .await?;
    worker.terminate().await?;
    ensure!(cluster.path("ended").exists(), "it was not waited for");
    cluster.comes_to(&run, "succeeded").await?;
    for (what, said) in [
        ("list", "default/one"),
        ("drain", "0 triggers taken out"),
        ("purge", "0 triggers taken out"),
        ("show", "0 attempts not finished"),
    ] {
        let args = ["queue", what, "one"];
        let args = if what == "list" {
            &args[..2]
        } else {
            &args[..]
        };
        let answer = cluster.run(args).await?.good()?;
        ensure!(answer.contains(said), "{what}: {answer}");
    }
    scheduler.terminate().await?;
    for process in [&worker, &scheduler] {
        let said = process.said();
        ensure!(
            !said.contains("ERROR") && !said.contains("panicked"),
            "{said}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_job_runs_on_postgresql_and_nats() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    a_day(store, nats.url()).await
}

#[tokio::test]
async fn a_job_runs_on_postgresql_and_rabbitmq() -> Result<()> {
    let (_server, store) = database()?;
    let rabbit = Rabbit::start()?;
    a_day(store, rabbit.url("/")).await
}

#[tokio::test]
async fn only_triggers_of_trusted_keys_run() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.ready(&mut scheduler).await?;
    cluster
        .apply(&format!(
            "[[job]]\nname = \"forged\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"touch {}/ran\" }}\n",
            cluster.folder.path().display()
        ))
        .await?;

    // A worker that trusts another scheduler takes this one's triggers for forged.
    let mut strict = cluster.worker("one", "other.key.public", "shell")?;
    cluster.heard("default/one").await?;
    let run = cluster.trigger("forged").await?;
    let look = async || {
        let dead = cluster.run(&["dlq", "list", "-o", "json"]).await?.json()?;
        let letter = dead["letters"][0]["reason"].as_str().map(str::to_owned);
        Ok(letter)
    };
    let reason = until("a dead letter", WITHIN, look).await?;
    ensure!(reason.contains("none of the 1 keys"), "{reason}");
    ensure!(!cluster.path("ran").exists(), "it ran");
    cluster.run(&["run", "cancel", &run]).await?.good()?;
    strict.terminate().await?;

    // During a rotation workers trust the old key and the new one.
    let both = "other.key.public,signing.key.public";
    let mut lenient = cluster.worker("two", both, "shell")?;
    cluster.heard("default/two").await?;
    let said = cluster.run(&["trigger", "forged", "--wait"]).await?;
    ensure!(said.status == Some(0), "{said:?}: {}", lenient.said());
    ensure!(cluster.path("ran").exists(), "it did not run");
    lenient.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn a_second_signal_ends_a_worker_at_once() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.ready(&mut scheduler).await?;
    let mut worker = cluster.worker("one", "signing.key.public", "shell")?;
    cluster.heard("default/one").await?;
    cluster
        .apply(&format!(
            "[[job]]\nname = \"long\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"touch {}/started; sleep 600\" }}\n",
            cluster.folder.path().display()
        ))
        .await?;
    let run = cluster.trigger("long").await?;
    let started = cluster.path("started");
    let look = async || Ok(started.exists().then_some(()));
    until("a start", WITHIN, look).await?;
    worker.signal(Signal::SIGTERM)?;
    let look = async || {
        let list = cluster.run(&["executor", "list"]).await?.good()?;
        Ok(list.contains("draining").then_some(()))
    };
    until("it drains", WITHIN, look).await?;
    worker.terminate().await?;
    let said = worker.said();
    ensure!(said.contains("stopping at once"), "{said}");

    // What it left behind is ended and told by the next one.
    let mut next = cluster.worker("one", "signing.key.public", "shell")?;
    cluster.comes_to(&run, "lost").await?;
    next.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn a_scheduler_waits_for_its_store_and_says_so() -> Result<()> {
    let store = Postgres::start()?;
    let database = store.create_database()?;
    let nats = Nats::start(Version::V2_10)?;
    let cluster = Cluster::new(store.url(&database), nats.url()).await?;
    store.kill()?;

    let mut scheduler = cluster.scheduler(&[])?;
    let look = async || {
        let waits = scheduler.said().contains("trying again");
        Ok(waits.then_some(()))
    };
    until("a line in the log", WITHIN, look).await?;
    ensure!(cluster.answer("/livez").await == Some(200), "it is alive");
    ensure!(
        cluster.answer("/readyz").await == Some(503),
        "it is not ready"
    );
    store.start_again()?;
    cluster.ready(&mut scheduler).await?;
    // Ready means that the store answers.
    store.kill()?;
    let look = async || Ok((cluster.answer("/readyz").await == Some(503)).then_some(()));
    until("it is not ready any more", WITHIN, look).await?;
    store.start_again()?;
    cluster.ready(&mut scheduler).await?;
    scheduler.terminate().await?;

    // While it waits it ends as well.
    store.kill()?;
    let mut waiting = cluster.scheduler(&[])?;
    let look = async || Ok((cluster.answer("/livez").await == Some(200)).then_some(()));
    until("it is alive", WITHIN, look).await?;
    waiting.terminate().await?;
    let mut impatient = cluster.scheduler(&["--start-timeout", "1s"])?;
    ensure!(
        impatient.end().await?.code() == Some(1),
        "{}",
        impatient.said()
    );
    Ok(())
}

#[tokio::test]
async fn what_cannot_heal_ends_a_start_at_once() -> Result<()> {
    let rabbit = Rabbit::start()?;
    rabbit.add_user("cueline", "right", "/", [".*", ".*", ".*"])?;
    let (server, store) = database()?;
    let wrong = rabbit.url_as("cueline", "wrong-secret", "/");
    let cluster = Cluster::new(store.clone(), wrong.clone()).await?;
    let mut worker = cluster.worker("one", "signing.key.public", "shell")?;
    ensure!(worker.end().await?.code() == Some(1), "{}", worker.said());
    let mut scheduler = cluster.scheduler(&[])?;
    ensure!(
        scheduler.end().await?.code() == Some(1),
        "{}",
        scheduler.said()
    );
    for process in [&worker, &scheduler] {
        let said = process.said();
        ensure!(
            said.contains("error: ") && !said.contains("wrong-secret"),
            "{said}"
        );
    }

    // A newer program has been here.
    let database = store.rsplit('/').next().and_then(|d| d.split('?').next());
    let database = database.context("a database")?;
    server.sql(
        database,
        "UPDATE cueline_schema SET version = 99, compatible_from = 99",
    )?;
    let migrated = cluster.run(&["migrate", "--store", &store]).await?;
    ensure!(migrated.status == Some(1), "{migrated:?}");
    ensure!(migrated.stderr.contains("newer program"), "{migrated:?}");
    let mut scheduler = cluster.scheduler(&[])?;
    ensure!(
        scheduler.end().await?.code() == Some(1),
        "{}",
        scheduler.said()
    );
    ensure!(
        scheduler.said().contains("newer program"),
        "{}",
        scheduler.said()
    );
    Ok(())
}

#[tokio::test]
async fn the_schema_is_made_by_migrate_or_by_the_first_node() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store.clone(), nats.url()).await?;
    let check = ["migrate", "--check", "--store", &store];
    let before = cluster.run(&check).await?;
    ensure!(before.status == Some(1), "{before:?}");
    let mut refusing = cluster.scheduler(&["--no-migrate"])?;
    ensure!(
        refusing.end().await?.code() == Some(1),
        "{}",
        refusing.said()
    );
    ensure!(
        refusing.said().contains("cueline migrate"),
        "{}",
        refusing.said()
    );

    // From two places at once.
    let migrate = ["migrate", "--store", &store, "-o", "json"];
    let (one, two) = tokio::join!(cluster.run(&migrate), cluster.run(&migrate));
    let (one, two): (Value, Value) = (one?.json()?, two?.json()?);
    ensure!(one["version"].is_i64() && one == two, "{one} {two}");
    cluster.run(&check).await?.good()?;
    let mut scheduler = cluster.scheduler(&["--no-migrate"])?;
    cluster.ready(&mut scheduler).await?;
    scheduler.terminate().await
}
