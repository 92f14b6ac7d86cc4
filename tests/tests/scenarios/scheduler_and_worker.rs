//! One scheduler and one worker as processes of their own, on real servers.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::{eventually, try_eventually};
use cueline_tests::Process;
use cueline_tests::cluster::{Cluster, WITHIN, database};
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

async fn allowed_jobs_run_and_processes_stop(store: String, broker: String) -> Result<()> {
    let cluster = Cluster::new(store, broker).await?;
    check_jobs_and_stop(&cluster)
        .await
        .with_context(|| cluster.logs())
}

/// A job runs, a handler that is not allowed does not, and each process stops gracefully after SIGTERM.
async fn check_jobs_and_stop(cluster: &Cluster) -> Result<()> {
    // The two may start in any order.
    let mut worker = cluster.worker("one")?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    cluster.wait_for_executor("one").await?;
    cluster.apply(&jobs(cluster.folder.path())).await?;

    let hello = cluster.run(&["trigger", "hello", "--wait"]).await?;
    ensure!(hello.status == Some(0), "{hello:?}: {}", worker.log());
    ensure!(hello.stdout.contains("succeeded"), "{hello:?}");
    let refused = cluster.run(&["trigger", "not-allowed", "--wait"]).await?;
    ensure!(refused.status == Some(1), "{refused:?}");
    ensure!(refused.stdout.contains("unroutable"), "{refused:?}");
    ensure!(!cluster.path("not-allowed").exists(), "it ran");

    // The running attempt ends, and the worker reports it before it ends itself.
    let run = cluster.trigger("slow").await?;
    wait_for_file(cluster, "started").await?;
    worker.terminate().await?;
    ensure!(
        cluster.path("ended").exists(),
        "the worker did not wait for its attempt"
    );
    cluster.wait_for_state(&run, "succeeded").await?;
    for (command, output) in [
        ("list", "default/one"),
        ("drain", "0 triggers removed"),
        ("purge", "0 triggers removed"),
        ("show", "0 unfinished attempts"),
    ] {
        let args = ["queue", command, "one"];
        let args = if command == "list" {
            &args[..2]
        } else {
            &args[..]
        };
        let answer = cluster.run(args).await?.success()?;
        ensure!(answer.contains(output), "{command}: {answer}");
    }
    scheduler.terminate().await?;
    for process in [&worker, &scheduler] {
        let log = process.log();
        ensure!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    }
    Ok(())
}

async fn wait_for_file(cluster: &Cluster, name: &str) -> Result<()> {
    let file = cluster.path(name);
    eventually(format!("the job writes {name}"), WITHIN, async || {
        file.exists().then_some(()).ok_or("no such file")
    })
    .await
    .with_context(|| cluster.logs())
}

#[tokio::test]
async fn a_job_runs_on_postgresql_and_nats() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    allowed_jobs_run_and_processes_stop(store, nats.url()).await
}

#[tokio::test]
async fn a_job_runs_on_postgresql_and_rabbitmq() -> Result<()> {
    let (_server, store) = database()?;
    allowed_jobs_run_and_processes_stop(store, Rabbit::shared_vhost()?).await
}

#[tokio::test]
async fn only_triggers_of_trusted_keys_run() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    cluster
        .apply(&format!(
            "[[job]]\nname = \"forged\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"touch {}/ran\" }}\n",
            cluster.folder.path().display()
        ))
        .await?;

    // A worker that trusts another key rejects the triggers of this scheduler.
    let mut strict = cluster.worker_with("one", "other.key.public", &[])?;
    cluster.wait_for_executor("one").await?;
    let run = cluster.trigger("forged").await?;
    let reason = try_eventually("there is a dead letter", WITHIN, async || {
        let list = cluster
            .run(&["dlq", "list", "-A", "-o", "json"])
            .await?
            .json()?;
        let reason = list["letters"][0]["reason"].as_str().map(str::to_owned);
        anyhow::Ok(reason.ok_or(list))
    })
    .await?;
    ensure!(reason.contains("none of the 1 keys"), "{reason}");
    ensure!(!cluster.path("ran").exists(), "it ran");
    // The attempt ends with that reason, and its trigger is not published again.
    cluster.wait_for_state(&run, "failed").await?;
    let ended = cluster.client.get(&format!("/runs/{run}")).await?;
    let expected = format!("the executor refused the trigger: {reason}");
    ensure!(ended["message"] == expected.as_str(), "{ended}");
    let list = cluster
        .run(&["dlq", "list", "-A", "-o", "json"])
        .await?
        .json()?;
    let letters = list["letters"].as_array().map(Vec::len);
    ensure!(letters == Some(1), "{list}");
    strict.terminate().await?;

    // During a rotation workers trust the old key and the new one.
    let both = "other.key.public,signing.key.public";
    let mut lenient = cluster.worker_with("two", both, &[])?;
    cluster.wait_for_executor("two").await?;
    let forged = cluster.run(&["trigger", "forged", "--wait"]).await?;
    ensure!(forged.status == Some(0), "{forged:?}: {}", lenient.log());
    ensure!(cluster.path("ran").exists(), "it did not run");
    lenient.terminate().await?;
    scheduler.terminate().await
}

/// A worker that trusts only the key of another group refuses what this group's key has signed.
#[tokio::test]
async fn a_group_with_a_key_of_its_own_is_signed_with_it() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut scheduler = cluster.scheduler(&["--signing-key", "default=other.key"])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    cluster
        .apply(&format!(
            "[[job]]\nname = \"signed\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"touch {}/ran\" }}\n",
            cluster.folder.path().display()
        ))
        .await?;
    let mut stranger = cluster.worker("one")?;
    cluster.wait_for_executor("one").await?;
    let run = cluster.trigger("signed").await?;
    cluster.wait_for_state(&run, "failed").await?;
    ensure!(!cluster.path("ran").exists(), "it ran");
    stranger.terminate().await?;
    let mut own = cluster.worker_with("two", "other.key.public", &[])?;
    cluster.wait_for_executor("two").await?;
    let signed = cluster.run(&["trigger", "signed", "--wait"]).await?;
    ensure!(signed.status == Some(0), "{signed:?}: {}", own.log());
    own.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn a_second_signal_ends_a_worker_at_once() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut worker = cluster.worker("one")?;
    cluster.wait_for_executor("one").await?;
    cluster
        .apply(&format!(
            "[[job]]\nname = \"long\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"touch {}/started; sleep 600\" }}\n",
            cluster.folder.path().display()
        ))
        .await?;
    let run = cluster.trigger("long").await?;
    wait_for_file(&cluster, "started").await?;
    worker.signal(Signal::SIGTERM)?;
    try_eventually("the worker drains", WITHIN, async || {
        let list = cluster.run(&["executor", "list"]).await?.success()?;
        anyhow::Ok(list.contains("draining").then_some(()).ok_or(list))
    })
    .await?;
    worker.terminate().await?;
    let log = worker.log();
    ensure!(log.contains("stopping at once"), "{log}");

    // The next process of this worker ends the attempt that was left behind, and reports it.
    worker.start()?;
    cluster.wait_for_state(&run, "lost").await?;
    worker.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn a_scheduler_waits_for_its_store_and_logs_it() -> Result<()> {
    let store = Postgres::start()?;
    let database = store.create_database()?;
    let nats = Nats::start(Version::V2_10)?;
    let cluster = Cluster::new(store.url(&database), nats.url()).await?;
    store.kill()?;

    let mut scheduler = cluster.scheduler(&[])?;
    eventually("the scheduler logs that it waits", WITHIN, async || {
        let log = scheduler.log();
        log.contains("is unavailable; retrying")
            .then_some(())
            .ok_or(log)
    })
    .await?;
    cluster.wait_for_status("/livez", 200).await?;
    ensure!(
        cluster.status_of("/readyz").await == Some(503),
        "it is ready without a store"
    );
    store.start_again()?;
    cluster.wait_until_ready(&mut scheduler).await?;
    // It is ready only while the store answers.
    store.kill()?;
    cluster.wait_for_status("/readyz", 503).await?;
    store.start_again()?;
    cluster.wait_until_ready(&mut scheduler).await?;
    scheduler.terminate().await?;

    // SIGTERM ends it while it waits.
    store.kill()?;
    let mut waiting = cluster.scheduler(&[])?;
    cluster.wait_for_status("/livez", 200).await?;
    waiting.terminate().await?;
    let mut impatient = cluster.scheduler(&["--start-timeout", "1s"])?;
    expect_failure(&mut impatient).await
}

/// The process must end by itself with status 1.
async fn expect_failure(process: &mut Process) -> Result<()> {
    let status = process.wait().await?;
    ensure!(status.code() == Some(1), "{status}: {}", process.log());
    Ok(())
}

#[tokio::test]
async fn a_permanent_failure_ends_a_start_at_once() -> Result<()> {
    let rabbit = Rabbit::shared()?;
    let (server, store) = database()?;
    let wrong = rabbit.url_as("guest", "wrong-secret", "/");
    let cluster = Cluster::new(store.clone(), wrong.clone()).await?;
    let mut worker = cluster.worker("one")?;
    expect_failure(&mut worker).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    expect_failure(&mut scheduler).await?;
    for process in [&worker, &scheduler] {
        let log = process.log();
        ensure!(
            log.contains("error: ") && !log.contains("wrong-secret"),
            "{log}"
        );
    }

    // A newer program has migrated the database.
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
    expect_failure(&mut scheduler).await?;
    let log = scheduler.log();
    ensure!(log.contains("newer program"), "{log}");
    Ok(())
}

#[tokio::test]
async fn the_schema_is_created_by_migrate_or_by_the_first_scheduler() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store.clone(), nats.url()).await?;
    let check = ["migrate", "--check", "--store", &store];
    let before = cluster.run(&check).await?;
    ensure!(before.status == Some(1), "{before:?}");
    let mut refusing = cluster.scheduler(&["--no-migrate"])?;
    expect_failure(&mut refusing).await?;
    let log = refusing.log();
    ensure!(log.contains("cueline migrate"), "{log}");

    // Two migrations at once.
    let migrate = ["migrate", "--store", &store, "-o", "json"];
    let (one, two) = tokio::join!(cluster.run(&migrate), cluster.run(&migrate));
    let (one, two): (Value, Value) = (one?.json()?, two?.json()?);
    ensure!(one["version"].is_i64() && one == two, "{one} {two}");
    cluster.run(&check).await?.success()?;
    let mut scheduler = cluster.scheduler(&["--no-migrate"])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    scheduler.terminate().await
}
