//! The guard ends a worker's processes when the worker was killed or stopped. They have ended before the work goes to
//! another executor (G10).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::eventually;
use cueline_tests::Process;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A worker sends a heartbeat every 5 s. It must keep its lease on a machine that stands still for some seconds.
const FENCE: &str = "16s";
const FAILOVER: &str = "22s";

/// Each attempt records its process id and that of a child in a session of its own. An attempt that finds a live
/// process of an earlier one records an overlap. (A dead process stays in the process list until its parent reaps it,
/// and that parent may be stopped.)
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

/// Waits for this many starts of the job, and returns the processes of each.
async fn starts(cluster: &Cluster, job: &str, times: usize) -> Result<Vec<Vec<i32>>> {
    let file = cluster.path(&format!("{job}.pids"));
    let pids = eventually(format!("start {times} of {job}"), WITHIN, async || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let pids = text.lines().map(|line| {
            let pids = line.split(' ').filter_map(|pid| pid.parse().ok());
            pids.collect::<Vec<i32>>()
        });
        let pids: Vec<Vec<i32>> = pids.collect();
        if pids.len() >= times {
            Ok(pids)
        } else {
            Err(text)
        }
    });
    Ok(pids.await?)
}

/// Whether the process is alive. A dead process that its parent has not reaped is not.
fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        !matches!(state, Some('Z' | 'X'))
    })
}

fn kill_all(pids: &[Vec<i32>]) {
    for pid in pids.iter().flatten() {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

/// A scheduler and two workers. Runs go to the first of them.
struct Fixture {
    cluster: Cluster,
    scheduler: Process,
    one: Process,
    two: Process,
    _nats: Nats,
    _postgres: std::sync::Arc<cueline_test_servers::postgres::Postgres>,
}

async fn fixture() -> Result<Fixture> {
    let (postgres, store) = database()?;
    let nats = Nats::start(Version::V2_12)?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut scheduler = cluster.scheduler(&["--failover-after", FAILOVER])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let times = ["--fence-after", FENCE, "--failover-after", FAILOVER];
    let one = cluster.worker_with("one", "signing.key.public", &times)?;
    let two = cluster.worker_with("two", "signing.key.public", &times)?;
    for name in ["one", "two"] {
        cluster.wait_for_executor(name).await?;
    }
    cluster.apply(&jobs(&cluster)).await?;
    Ok(Fixture {
        cluster,
        scheduler,
        one,
        two,
        _nats: nats,
        _postgres: postgres,
    })
}

async fn wait_until_ended(what: &str, pids: &[i32], within: Duration) -> Result<()> {
    let ended = eventually(format!("{what} has ended"), within, async || {
        match pids.iter().find(|pid| alive(**pid)) {
            None => Ok(()),
            Some(pid) => Err(format!("process {pid} is alive")),
        }
    });
    Ok(ended.await?)
}

fn check_no_overlap(cluster: &Cluster) -> Result<()> {
    let overlap = std::fs::read_to_string(cluster.path("serial.overlap")).unwrap_or_default();
    ensure!(overlap.is_empty(), "it ran twice at once: {overlap}");
    Ok(())
}

#[tokio::test]
async fn processes_of_a_stopped_worker_end_before_another_worker_runs_them() -> Result<()> {
    let mut fixture = fixture().await?;
    let cluster = &fixture.cluster;
    let run = cluster.trigger("serial").await?;
    cluster.trigger("keeps").await?;
    let first = starts(cluster, "serial", 1).await?;
    let kept = starts(cluster, "keeps", 1).await?;
    ensure!(first[0].iter().all(|pid| alive(*pid)), "{first:?}");
    fixture.one.pause()?;
    let again = starts(cluster, "serial", 2).await;
    let done = async {
        let again = again.with_context(|| cluster.logs())?;
        ensure!(
            !first[0].iter().any(|pid| alive(*pid)),
            "the first attempt is alive"
        );
        ensure!(again[1].iter().all(|pid| alive(*pid)), "{again:?}");
        check_no_overlap(cluster)?;
        // A job with `fence = "keep"` may run twice.
        ensure!(kept[0].iter().all(|pid| alive(*pid)), "{kept:?}");
        // The worker continues, and does not disturb the attempt on the other one.
        fixture.one.resume()?;
        cluster.run(&["run", "cancel", &run]).await?.success()?;
        cluster.wait_for_state(&run, "cancelled").await?;
        // A cancellation does not reach the child in a session of its own.
        let (out_of_reach, own) = again[1].split_at(1);
        let stopped = wait_until_ended("the second attempt", own, WITHIN).await;
        kill_all(&[out_of_reach.to_vec()]);
        stopped
    };
    let done = done.await;
    kill_all(&kept);
    kill_all(&starts(cluster, "keeps", 1).await?);
    done?;
    fixture.one.kill().await?;
    fixture.two.terminate().await?;
    fixture.scheduler.terminate().await
}

#[tokio::test]
async fn processes_of_a_killed_worker_end_with_it() -> Result<()> {
    let mut fixture = fixture().await?;
    let cluster = &fixture.cluster;
    cluster.trigger("serial").await?;
    cluster.trigger("keeps").await?;
    let mut all = starts(cluster, "serial", 1).await?.concat();
    all.extend(starts(cluster, "keeps", 1).await?.concat());
    fixture.one.kill().await?;
    // Long before a failover, and without a next start of the worker.
    let ended = wait_until_ended("every process", &all, Duration::from_secs(15)).await;
    kill_all(&[all]);
    ended?;
    check_no_overlap(cluster)?;
    fixture.two.terminate().await?;
    fixture.scheduler.terminate().await
}

/// A background process of a job survives a graceful stop of the worker.
#[tokio::test]
async fn a_graceful_stop_leaves_background_processes_alone() -> Result<()> {
    let mut fixture = fixture().await?;
    let cluster = &fixture.cluster;
    cluster
        .apply(&format!(
            "[[job]]\nname = \"leaves\"\nroute = \"first\"\nschedule = {{ manual = true }}\nhandler = {{ shell = \"setsid sleep 600 >/dev/null 2>&1 & echo $! > {}\" }}\n",
            cluster.path("left").display()
        ))
        .await?;
    cluster
        .run(&["trigger", "leaves", "--wait"])
        .await?
        .success()?;
    let left: i32 = std::fs::read_to_string(cluster.path("left"))?
        .trim()
        .parse()?;
    fixture.one.terminate().await?;
    let survived = alive(left);
    kill_all(&[vec![left]]);
    ensure!(survived, "the background process was ended");
    fixture.two.terminate().await?;
    fixture.scheduler.terminate().await
}
