//! Jobs of every route over three workers, one of which dies.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use serde_json::{Value, json};

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];
const RUNS: usize = 12;
/// The runs of a dead worker are moved soon.
const FAILOVER: [&str; 2] = ["--failover-after", "5s"];

/// The routes, each with the runs that w1, w2 and w3 get of twelve. For the last ones that depends on times or on chance.
const ROUTES: [(&str, &str, Option<[usize; 3]>); 13] = [
    ("first", "\"first\"", Some([12, 0, 0])),
    ("last", "\"last\"", Some([0, 0, 12])),
    ("round", "\"round\"", Some([4, 4, 4])),
    ("named", "{ executor = \"w2\" }", Some([0, 12, 0])),
    ("lfu", "\"lfu\"", Some([4, 4, 4])),
    ("lru", "\"lru\"", Some([4, 4, 4])),
    ("weighted", "\"weighted\"", Some([3, 3, 6])),
    ("failover", "\"failover\"", Some([12, 0, 0])),
    ("busyover", "\"busyover\"", None),
    ("least-loaded", "\"least_loaded\"", None),
    ("random", "\"random\"", None),
    ("hash", "\"consistent_hash\"", None),
    ("any", "\"any\"", None),
];

fn jobs() -> String {
    let routes = ROUTES.map(|(name, route, _)| (name, format!("route = {route}")));
    let selected = ("zone", "selector = \"zone=a\"".to_owned());
    let jobs = routes.into_iter().chain([selected]).map(|(name, choice)| {
        let rest = "block = { parallel = 100 }\nscope = \"executor\"\nschedule = { manual = true }\nhandler = { shell = \"true\" }";
        format!("[[job]]\nname = \"{name}\"\n{choice}\n{rest}\n")
    });
    jobs.collect::<Vec<_>>().concat()
}

/// Triggers each of the jobs `runs` times and waits for all runs of them. Returns how many each worker got of each job.
async fn run_all(
    cluster: &Cluster,
    jobs: &[&'static str],
    runs: usize,
) -> Result<BTreeMap<&'static str, [usize; 3]>> {
    let mut counts = BTreeMap::new();
    let mut triggered = BTreeMap::new();
    for job in jobs {
        let mut ids = Vec::new();
        for _ in 0..runs {
            let path = format!("/jobs/{job}/trigger");
            let answer = cluster.client.post(&path, &json!({})).await?;
            ids.push(answer["runs"][0].clone());
        }
        triggered.insert(*job, ids);
    }
    for (job, ids) in triggered {
        let path = format!("/runs?job={job}&limit=100");
        let given = try_eventually(format!("the runs of {job} succeed"), WITHIN, async || {
            let list = cluster.client.get(&path).await?;
            let found = list["runs"].as_array().context("runs")?;
            let mut given = Vec::new();
            for run in found.iter().filter(|run| ids.contains(&run["id"])) {
                if run["state"] == "succeeded" {
                    given.push(run["executor"].as_str().context("executor")?.to_owned());
                }
            }
            anyhow::Ok((given.len() == runs).then_some(given).ok_or(list))
        })
        .await?;
        let of = |name| given.iter().filter(|by| *by == name).count();
        counts.insert(job, WORKERS.map(of));
    }
    Ok(counts)
}

async fn each_route_chooses_its_workers(store: String, broker: String) -> Result<()> {
    let cluster = Cluster::new(store, broker).await?;
    check(&cluster).await.with_context(|| cluster.logs())
}

async fn check(cluster: &Cluster) -> Result<()> {
    let mut scheduler = cluster.scheduler(&FAILOVER)?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut workers = Vec::new();
    for (name, extra) in WORKERS.into_iter().zip([
        ["--label", "zone=a", "--weight", "1"],
        ["--label", "zone=b", "--weight", "1"],
        ["--label", "zone=a", "--weight", "2"],
    ]) {
        workers.push(cluster.worker_with(
            name,
            "signing.key.public",
            &[&extra[..], &FAILOVER].concat(),
        )?);
        cluster.wait_for_executor(name).await?;
    }
    cluster.apply(&jobs()).await?;
    let list = cluster.client.get("/executors?label=zone%3Da").await?;
    let names: Vec<&Value> = list["executors"]
        .as_array()
        .context("executors")?
        .iter()
        .map(|executor| &executor["name"])
        .collect();
    ensure!(names == ["w1", "w3"], "{list}");

    let names = ROUTES.map(|(name, ..)| name);
    let counts = run_all(cluster, &names, RUNS).await?;
    for (job, _, expected) in ROUTES {
        let given = counts[job];
        ensure!(
            expected.is_none_or(|expected| expected == given),
            "{job}: {given:?}"
        );
    }
    ensure!(counts["hash"].contains(&RUNS), "{counts:?}");
    let counts = run_all(cluster, &["zone"], 4).await?;
    ensure!(counts["zone"] == [2, 0, 2], "{counts:?}");

    // Its runs go elsewhere: those of `failover` before it counts as dead, because it does not answer.
    workers[0].kill().await?;
    try_eventually("failover passes over the dead worker", WITHIN, async || {
        let answer = cluster
            .client
            .post("/jobs/failover/trigger", &json!({}))
            .await?;
        let path = format!("/runs/{}", answer["runs"][0]);
        let given = try_eventually("the run is routed", WITHIN, async || {
            let run = cluster.client.get(&path).await?;
            let executor = run["executor"].as_str().map(str::to_owned);
            anyhow::Ok(executor.ok_or(run))
        })
        .await?;
        anyhow::Ok((given == "w2").then_some(()).ok_or(given))
    })
    .await?;
    let others = [
        "first",
        "round",
        "lfu",
        "lru",
        "weighted",
        "least-loaded",
        "busyover",
        "random",
        "hash",
        "zone",
    ];
    for (job, given) in run_all(cluster, &others, 3).await? {
        ensure!(given[0] == 0, "{job}: {given:?}");
    }
    Ok(())
}

#[tokio::test]
async fn each_route_chooses_its_workers_on_nats() -> Result<()> {
    let (_server, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    each_route_chooses_its_workers(store, nats.url()).await
}

#[tokio::test]
async fn each_route_chooses_its_workers_on_rabbitmq() -> Result<()> {
    let (_server, store) = database()?;
    each_route_chooses_its_workers(store, Rabbit::shared_vhost()?).await
}
