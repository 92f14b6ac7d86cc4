//! Ten thousand runs of a slow job wait beside a fast job on the same executors. The fast job fires, starts and succeeds
//! while none of them ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use cueline_tests::{Finished, Standalone};
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};

/// Runs of each slow job that wait.
const RUNS: u64 = 10_000;
/// Fires of the fast job beside each backlog.
const FIRES: usize = 3;
const WORKERS: [&str; 2] = ["w1", "w2"];

/// A slow job, and where its runs wait.
struct Slow {
    name: &'static str,
    fields: &'static str,
    /// The executors hold them. Those of the other jobs wait in the memory of the scheduler.
    at_executors: bool,
}

const SLOW: [Slow; 5] = [
    Slow {
        name: "serial",
        fields: "",
        at_executors: true,
    },
    Slow {
        name: "serial-each",
        fields: "scope = \"executor\"",
        at_executors: true,
    },
    Slow {
        name: "places",
        fields: "block = { parallel = 2 }",
        at_executors: false,
    },
    Slow {
        name: "limited",
        fields: "block = { parallel = 50 }\nconcurrency = { key = \"db\", limit = 2 }",
        at_executors: false,
    },
    Slow {
        name: "unroutable",
        fields: "group = \"empty\"",
        at_executors: false,
    },
];

impl Slow {
    /// Its handlers end with the folder of the test, because the test kills workers without their children.
    fn job(&self, folder: &Path) -> String {
        format!(
            r#"
[[job]]
name = "{}"
schedule = {{ every = "1s" }}
misfire = {{ policy = "catch_up", catch_up_limit = {RUNS} }}
backlog = 100000
{}
handler = {{ shell = "while [ -d {} ]; do sleep 1; done" }}
"#,
            self.name,
            self.fields,
            folder.display()
        )
    }

    /// As if the schedulers had been away while the job fell due ten thousand times. Its next fire follows with all of
    /// these.
    fn make_due(&self) -> String {
        let ms = RUNS * 1_000;
        format!(
            "UPDATE job_due SET next_fire_at = next_fire_at - {ms} WHERE job_id = (SELECT id FROM job WHERE name = '{}')",
            self.name
        )
    }
}

/// Its fires are never too late, so each one that is not seen was held back.
const FAST: &str = r#"
[[job]]
name = "fast"
schedule = { every = "1s" }
misfire = { policy = "catch_up", grace = "1h" }
handler = { shell = "true" }

[[job]]
name = "by-hand"
schedule = { manual = true }
handler = { shell = "true" }
"#;

/// Schedulers, as the checks see them.
trait Server {
    async fn get(&self, path: &str) -> Result<Value>;
    async fn post(&self, path: &str, body: &Value) -> Result<Value>;
    async fn run(&self, args: &[&str]) -> Result<Finished>;
    async fn sql(&self, statement: String) -> Result<()>;
}

struct InCluster {
    cluster: Cluster,
    postgres: Arc<Postgres>,
    database: String,
}

impl Server for InCluster {
    async fn get(&self, path: &str) -> Result<Value> {
        self.cluster.client.get(path).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.cluster.client.post(path, body).await
    }

    async fn run(&self, args: &[&str]) -> Result<Finished> {
        self.cluster.run(args).await
    }

    async fn sql(&self, statement: String) -> Result<()> {
        self.postgres.sql(&self.database, &statement).map(drop)
    }
}

struct InOneProcess {
    server: Standalone,
    data: PathBuf,
}

impl Server for InOneProcess {
    async fn get(&self, path: &str) -> Result<Value> {
        self.server.get(path).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.server.post(path, body).await
    }

    async fn run(&self, args: &[&str]) -> Result<Finished> {
        self.server.run(args).await
    }

    async fn sql(&self, statement: String) -> Result<()> {
        let url = format!("sqlite://{}", self.data.join("store.db").display());
        let mut store = SqliteConnection::connect(&url).await?;
        let changed = sqlx::query(sqlx::AssertSqlSafe(statement));
        changed.execute(&mut store).await?;
        Ok(store.close().await?)
    }
}

/// The runs that have not ended.
async fn live(server: &impl Server) -> Result<u64> {
    let stats = server.get("/stats").await?;
    let live = stats["live"].as_object().context("counts")?;
    Ok(live.values().filter_map(Value::as_u64).sum())
}

/// The attempts that executors have accepted.
async fn held(server: &impl Server) -> Result<u64> {
    let list = server.get("/executors").await?;
    let list = list["executors"].as_array().context("a list")?;
    Ok(list.iter().filter_map(|e| e["held"].as_u64()).sum())
}

/// Waits until the runs of these jobs wait where they belong.
async fn wait_for_backlogs(server: &impl Server, slow: &[Slow]) -> Result<()> {
    let all = RUNS * slow.len() as u64;
    let at_executors = RUNS * slow.iter().filter(|slow| slow.at_executors).count() as u64;
    try_eventually("the backlogs are complete", WITHIN, async || {
        let (live, held) = (live(server).await?, held(server).await?);
        anyhow::Ok(if live >= all && held >= at_executors {
            Ok(())
        } else {
            Err(format!(
                "{live} of {all} live, {held} of {at_executors} held"
            ))
        })
    })
    .await
}

fn fire_at(run: &Value) -> i64 {
    run["fire_at"].as_i64().unwrap_or_default()
}

/// The runs of the fast job in the order of their fire times.
async fn fast_runs(server: &impl Server) -> Result<Vec<Value>> {
    let list = server.get("/runs?job=fast&limit=1000").await?;
    let mut runs = list["runs"].as_array().context("runs")?.clone();
    runs.sort_by_key(fire_at);
    Ok(runs)
}

/// Waits for the next fires of the fast job, and for a trigger by hand.
async fn others_go_on(server: &impl Server) -> Result<()> {
    let now = server.get("/stats").await?["now"]
        .as_i64()
        .context("a time")?;
    let by_hand = server.post("/jobs/by-hand/trigger", &json!({})).await?;
    let by_hand = format!("/runs/{}", by_hand["runs"][0]);
    try_eventually("a trigger by hand succeeds", WITHIN, async || {
        let run = server.get(&by_hand).await?;
        anyhow::Ok((run["state"] == "succeeded").then_some(()).ok_or(run))
    })
    .await?;
    try_eventually("the fast job fires", WITHIN, async || {
        let runs = fast_runs(server).await?;
        let new = runs.iter().filter(|run| fire_at(run) > now);
        let done = new.filter(|run| run["state"] == "succeeded").count();
        let last: Vec<String> = runs.iter().rev().take(3).map(Value::to_string).collect();
        anyhow::Ok(if done >= FIRES {
            Ok(())
        } else {
            Err(last.join("\n"))
        })
    })
    .await
}

/// No fire of the fast job is missing, each one succeeded, they started in order, and each executor had some. No slow run has
/// ended.
async fn check(server: &impl Server) -> Result<()> {
    let mut runs = fast_runs(server).await?;
    let done = runs.iter().rposition(|run| run["state"] == "succeeded");
    runs.truncate(done.context("a run")? + 1);
    for (run, next) in runs.iter().zip(&runs[1..]) {
        ensure!(fire_at(next) - fire_at(run) == 1_000, "{run} {next}");
        ensure!(run["state"] == "succeeded", "{run}");
        let started = [run, next].map(|run| run["started_at"].as_i64());
        ensure!(started[0] <= started[1], "{run} {next}");
    }
    let executors = server.get("/executors").await?;
    for executor in executors["executors"].as_array().context("a list")? {
        let name = &executor["name"];
        ensure!(runs.iter().any(|run| run["executor"] == *name), "{name}");
    }
    for slow in &SLOW {
        let ended = "/runs?state=succeeded&state=failed&state=lost&state=discarded&state=unroutable&limit=1&job=";
        let ended = server.get(&format!("{ended}{}", slow.name)).await?;
        ensure!(ended["runs"] == json!([]), "{ended}");
    }
    Ok(())
}

async fn apply(server: &impl Server, folder: &Path, jobs: &str) -> Result<()> {
    let file = folder.join("jobs.toml");
    std::fs::write(&file, jobs)?;
    let apply = ["job", "apply", "-f", &file.to_string_lossy()];
    server.run(&apply).await?.success()?;
    Ok(())
}

/// One backlog after the other. Each stays.
async fn no_backlog_holds_back_another_job(server: &impl Server, folder: &Path) -> Result<()> {
    apply(server, folder, FAST).await?;
    others_go_on(server).await?;
    for (number, slow) in SLOW.iter().enumerate() {
        apply(server, folder, &slow.job(folder)).await?;
        server.sql(slow.make_due()).await?;
        let backlogs = wait_for_backlogs(server, &SLOW[..=number]).await;
        backlogs.with_context(|| format!("the backlog of {}", slow.name))?;
        let beside = others_go_on(server).await;
        beside.with_context(|| format!("beside the backlog of {}", slow.name))?;
    }
    check(server).await
}

async fn in_a_cluster(broker: String) -> Result<()> {
    let (postgres, store) = database()?;
    let database = store.rsplit('/').next();
    let database = database.and_then(|name| name.split('?').next());
    let database = database.context("a database")?.to_owned();
    let cluster = Cluster::new(store, broker).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut workers = Vec::new();
    for name in WORKERS {
        workers.push(cluster.worker(name)?);
        cluster.wait_for_executor(name).await?;
    }
    let server = InCluster {
        cluster,
        postgres,
        database,
    };
    let folder = server.cluster.folder.path();
    let tested = no_backlog_holds_back_another_job(&server, folder).await;
    tested.with_context(|| {
        let database = server.postgres.log_of(&server.database);
        format!("{}PostgreSQL:\n{database}", server.cluster.logs())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nats_no_backlog_holds_back_another_job() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    in_a_cluster(nats.url()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_rabbitmq_no_backlog_holds_back_another_job() -> Result<()> {
    in_a_cluster(Rabbit::shared_vhost()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn in_one_process_no_backlog_holds_back_another_job() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Standalone::start(&data, &["--workers", "2"]).await?;
    let server = InOneProcess { server, data };
    let tested = no_backlog_holds_back_another_job(&server, folder.path()).await;
    tested.with_context(|| server.server.log())
}
