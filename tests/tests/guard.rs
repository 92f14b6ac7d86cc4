//! What a worker runs when it cannot end it itself, because it was killed or stands still: it has ended before the schedulers give the work to
//! others (G10).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_tests::roles::{Cluster, Process, WITHIN, database};
use cueline_tests::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// As short as a worker allows: its heartbeats come each 5 s.
const FENCE: &str = "11s";
const FAILOVER: &str = "16s";

/// Each start notes its process id, and that of its own child in a session of its own; one that finds an earlier process of its job that is not dead notes an
/// overlap. (A dead one stays in the list until its parent collects it, and that one stands still.)
fn jobs(cluster: &Cluster) -> String {
    let job = |name: &str, more: &str| {
        format!(
            r#"
[[job]]
name = "{name}"
schedule = {{ manual = true }}
route = "first"
on_lost = "rerun"
{more}
handler = {{ shell = """
for pid in $(cat {folder}/{name}.pids 2>/dev/null); do grep -qs '^State:.[RSDT]' /proc/$pid/status && echo $pid >> {folder}/{name}.overlap; done
setsid sleep 600 &
echo $! $$ >> {folder}/{name}.pids
wait""" }}
"#,
            folder = cluster.folder.path().display()
        )
    };
    job("serial", "") + &job("keeps", "fence = \"keep\"")
}

/// The processes of each start of the job.
async fn started(cluster: &Cluster, job: &str, times: usize) -> Result<Vec<Vec<i32>>> {
    let file = cluster.path(&format!("{job}.pids"));
    until(&format!("start {times} of {job}"), WITHIN, async || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let pids = text.lines().map(|line| {
            let pids = line.split(' ').filter_map(|pid| pid.parse().ok());
            pids.collect::<Vec<i32>>()
        });
        let pids: Vec<Vec<i32>> = pids.collect();
        Ok((pids.len() >= times).then_some(pids))
    })
    .await
}

/// It runs: neither gone nor dead and not yet collected.
fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        !matches!(state, Some('Z' | 'X'))
    })
}

fn end(pids: &[Vec<i32>]) {
    for pid in pids.iter().flatten() {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

struct Scene {
    cluster: Cluster,
    scheduler: Process,
    one: Process,
    two: Process,
    _nats: Nats,
    _postgres: std::sync::Arc<cueline_test_servers::postgres::Postgres>,
}

/// A scheduler and two workers; what is triggered goes to the first.
async fn scene() -> Result<Scene> {
    let (postgres, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut scheduler = cluster.scheduler(&["--failover-after", FAILOVER])?;
    cluster.ready(&mut scheduler).await?;
    let times = ["--fence-after", FENCE, "--failover-after", FAILOVER];
    let one = cluster.worker_with("one", "signing.key.public", "shell", &times)?;
    let two = cluster.worker_with("two", "signing.key.public", "shell", &times)?;
    for name in ["default/one", "default/two"] {
        cluster.heard(name).await?;
    }
    cluster.apply(&jobs(&cluster)).await?;
    Ok(Scene {
        cluster,
        scheduler,
        one,
        two,
        _nats: nats,
        _postgres: postgres,
    })
}

/// All processes of the first start have ended.
async fn gone(what: &str, pids: &[i32], within: Duration) -> Result<()> {
    let dead = async || Ok((!pids.iter().any(|pid| alive(*pid))).then_some(()));
    until(what, within, dead).await
}

fn no_overlap(cluster: &Cluster) -> Result<()> {
    let overlap = std::fs::read_to_string(cluster.path("serial.overlap")).unwrap_or_default();
    ensure!(overlap.is_empty(), "it ran twice at once: {overlap}");
    Ok(())
}

#[tokio::test]
async fn what_a_stopped_worker_runs_has_ended_before_another_runs_it() -> Result<()> {
    let mut scene = scene().await?;
    let cluster = &scene.cluster;
    let run = cluster.trigger("serial").await?;
    cluster.trigger("keeps").await?;
    let first = started(cluster, "serial", 1).await?;
    let kept = started(cluster, "keeps", 1).await?;
    ensure!(first[0].iter().all(|pid| alive(*pid)), "{first:?}");
    scene.one.signal(Signal::SIGSTOP)?;
    let again = started(cluster, "serial", 2).await;
    let done = async {
        let again = again.with_context(|| cluster.logs())?;
        ensure!(!first[0].iter().any(|pid| alive(*pid)), "it goes on");
        ensure!(again[1].iter().all(|pid| alive(*pid)), "{again:?}");
        no_overlap(cluster)?;
        // That one accepts to run twice.
        ensure!(kept[0].iter().all(|pid| alive(*pid)), "{kept:?}");
        // It comes to, and does not disturb what the other one does.
        scene.one.signal(Signal::SIGCONT)?;
        cluster.run(&["run", "cancel", &run]).await?.good()?;
        cluster.comes_to(&run, "cancelled").await?;
        // What it had put into a session of its own is out of reach of a cancellation.
        let (out_of_reach, own) = again[1].split_at(1);
        let stopped = gone("the second attempt", own, WITHIN).await;
        end(&[out_of_reach.to_vec()]);
        stopped
    };
    let done = done.await;
    end(&kept);
    end(&started(cluster, "keeps", 1).await?);
    done?;
    scene.one.signal(Signal::SIGKILL)?;
    scene.two.terminate().await?;
    scene.scheduler.terminate().await
}

#[tokio::test]
async fn what_a_killed_worker_runs_ends_with_it() -> Result<()> {
    let mut scene = scene().await?;
    let cluster = &scene.cluster;
    cluster.trigger("serial").await?;
    cluster.trigger("keeps").await?;
    let mut all = started(cluster, "serial", 1).await?.concat();
    all.extend(started(cluster, "keeps", 1).await?.concat());
    scene.one.signal(Signal::SIGKILL)?;
    scene.one.end().await?;
    // Long before anybody takes over, and without a next start.
    let ended = gone("all processes", &all, Duration::from_secs(8)).await;
    end(&[all]);
    ended?;
    no_overlap(cluster)?;
    scene.two.terminate().await?;
    scene.scheduler.terminate().await
}

/// What a job left in the background is its own business as long as the worker ends in order.
#[tokio::test]
async fn a_graceful_stop_ends_nothing_that_was_left_behind() -> Result<()> {
    let mut scene = scene().await?;
    let cluster = &scene.cluster;
    cluster
        .apply(&format!(
            "[[job]]\nname = \"leaves\"\nroute = \"first\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"setsid sleep 600 >/dev/null 2>&1 & echo $! > {}\" }}\n",
            cluster.path("left").display()
        ))
        .await?;
    cluster
        .run(&["trigger", "leaves", "--wait"])
        .await?
        .good()?;
    let left: i32 = std::fs::read_to_string(cluster.path("left"))?
        .trim()
        .parse()?;
    scene.one.terminate().await?;
    let goes_on = alive(left);
    end(&[vec![left]]);
    ensure!(goes_on, "it was ended");
    scene.two.terminate().await?;
    scene.scheduler.terminate().await
}
