//! Scheduler and worker as processes of their own, on real servers: as in a cluster, with one of each.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_tests::standalone::{free_port, program};
use cueline_tests::{Ended, ended, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

const WITHIN: Duration = Duration::from_mins(1);

/// What the processes of a cluster have in common, and where a person sits who uses it.
struct Cluster {
    folder: TempDir,
    store: String,
    broker: String,
    port: u16,
}

/// A process and what it has printed.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Cluster {
    /// Keys and a token, made as a person makes them; no process yet.
    async fn new(store: String, broker: String) -> Result<Self> {
        let cluster = Self {
            folder: tempfile::tempdir()?,
            store,
            broker,
            port: free_port()?,
        };
        for key in ["signing.key", "other.key"] {
            let public = cluster.run(&["key", "new", "--out", key]).await?.good()?;
            std::fs::write(cluster.path(&format!("{key}.public")), public)?;
        }
        cluster
            .run(&["token", "new", "--out", "admin.token"])
            .await?
            .good()?;
        Ok(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CUELINE_") {
                command.env_remove(name);
            }
        }
        let token = std::fs::read_to_string(self.path("admin.token")).unwrap_or_default();
        command
            .args(args)
            .current_dir(self.folder.path())
            .env("XDG_STATE_HOME", self.folder.path())
            .env("CUELINE_URL", format!("http://127.0.0.1:{}", self.port))
            .env("CUELINE_TOKEN", token.trim());
        command
    }

    /// Runs a command to its end.
    async fn run(&self, args: &[&str]) -> Result<Ended> {
        ended(self.command(args), WITHIN).await
    }

    fn start(&self, name: &str, args: &[&str]) -> Result<Process> {
        let log = self.path(&format!("{name}.log"));
        let out = File::options().append(true).create(true).open(&log)?;
        let mut command = self.command(args);
        // The token comes from its file here.
        command
            .env_remove("CUELINE_TOKEN")
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true);
        let child = command.spawn().context("failed to start cueline")?;
        Ok(Process { child, log })
    }

    fn scheduler(&self, extra: &[&str]) -> Result<Process> {
        let listen = format!("127.0.0.1:{}", self.port);
        let own = [
            "scheduler",
            "--store",
            &self.store,
            "--broker",
            &self.broker,
            "--listen",
            &listen,
            "--token-file",
            "admin.token",
            "--signing-key",
            "signing.key",
        ];
        self.start("scheduler", &[&own[..], extra].concat())
    }

    fn worker(&self, name: &str, trust: &str, allow: &str) -> Result<Process> {
        // One that is shared with another test would answer from the journal of other runs.
        let state = self.path(&format!("state-{name}"));
        let args = [
            "worker",
            "--state-dir",
            state.to_str().context("a path of letters")?,
            "--broker",
            &self.broker,
            "--name",
            name,
            "--trust",
            trust,
            "--allow",
            allow,
        ];
        self.start(name, &args)
    }

    async fn answer(&self, path: &str) -> Option<u16> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        Some(reqwest::get(url).await.ok()?.status().as_u16())
    }

    async fn ready(&self, process: &mut Process) -> Result<()> {
        let look = async || {
            if let Some(status) = process.child.try_wait()? {
                bail!("it ended at its start, {status}: {}", process.said());
            }
            Ok((self.answer("/readyz").await == Some(200)).then_some(()))
        };
        let waited = until("readiness", WITHIN, look).await;
        waited.with_context(|| process.said())
    }

    /// Waits until the worker is heard.
    async fn heard(&self, name: &str) -> Result<()> {
        let look = async || {
            let list = self.run(&["executor", "list"]).await?.good()?;
            let alive = list.lines().any(|l| l.contains(name) && l.contains("yes"));
            Ok(alive.then_some(()))
        };
        let heard = until("a sign of life", WITHIN, look).await;
        heard.with_context(|| self.logs())
    }

    /// What all its processes have printed.
    fn logs(&self) -> String {
        let files = std::fs::read_dir(self.folder.path()).into_iter().flatten();
        let said: Vec<String> = files
            .filter_map(|file| Some(file.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "log"))
            .map(|path| {
                let said = std::fs::read_to_string(&path).unwrap_or_default();
                format!("{}:\n{said}\n", path.display())
            })
            .collect();
        said.concat()
    }

    async fn apply(&self, jobs: &str) -> Result<()> {
        std::fs::write(self.path("jobs.toml"), jobs)?;
        self.run(&["job", "apply", "-f", "jobs.toml"])
            .await?
            .good()?;
        Ok(())
    }

    /// Triggers a job; the run's id.
    async fn trigger(&self, job: &str) -> Result<String> {
        let answer = self.run(&["trigger", job, "-o", "json"]).await?.json()?;
        Ok(answer["runs"][0].to_string())
    }

    async fn state(&self, run: &str) -> Result<String> {
        let run = self
            .run(&["run", "show", run, "-o", "json"])
            .await?
            .json()?;
        let state = run["run"]["state"].as_str().or(run["state"].as_str());
        Ok(state
            .with_context(|| format!("no state: {run}"))?
            .to_owned())
    }

    async fn comes_to(&self, run: &str, state: &str) -> Result<()> {
        let look = async || Ok((self.state(run).await? == state).then_some(()));
        until(&format!("run {run} {state}"), WITHIN, look).await
    }
}

impl Process {
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().context("it has ended already")?;
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
    }

    async fn end(&mut self) -> Result<ExitStatus> {
        let ended = tokio::time::timeout(WITHIN, self.child.wait()).await;
        Ok(ended.with_context(|| format!("it goes on: {}", self.said()))??)
    }

    /// SIGTERM; it has to end well.
    async fn terminate(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let status = self.end().await?;
        ensure!(status.code() == Some(0), "{status}: {}", self.said());
        Ok(())
    }
}

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

fn database() -> Result<(std::sync::Arc<Postgres>, String)> {
    let server = Postgres::shared()?;
    let url = server.url(&server.create_database()?);
    Ok((server, url))
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
