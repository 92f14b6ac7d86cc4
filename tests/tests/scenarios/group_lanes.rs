//! G6 over a group: two schedulers, three workers, a slow serial job with the default route. A worker and a scheduler are
//! killed in the middle. No two runs are at work at once, and all attempts start in the order of their fire times.

use anyhow::{Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};

/// Starts on other workers after the kills.
const STARTS: usize = 15;
const TIMES: [&str; 2] = ["--failover-after", "6s"];

#[derive(Debug)]
struct Line {
    event: String,
    fire_at: i64,
    worker: String,
}

/// The lines that the handlers wrote. Each is one write, so they are in the order of the events.
fn lines(text: &str) -> Result<Vec<Line>> {
    text.lines()
        .map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            let mut word = || words.next().unwrap_or_default();
            let (event, fire_at, worker) = (word(), word(), word());
            Ok(Line {
                event,
                fire_at: fire_at.parse()?,
                worker,
            })
        })
        .collect()
}

async fn a_serial_job_keeps_its_lane_through_kills(broker: String) -> Result<()> {
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, broker).await?;
    let mut one = cluster.scheduler(&TIMES)?;
    cluster.wait_until_ready(&mut one).await?;
    let mut two = cluster.scheduler_beside(&TIMES)?;
    let mut workers = Vec::new();
    for name in ["w1", "w2", "w3"] {
        let worker = cluster.worker_with(name, "signing.key.public", &TIMES)?;
        workers.push((name, worker));
    }
    for (name, _) in &workers {
        cluster.wait_for_executor(name).await?;
    }
    let log = cluster.path("log");
    let said = |event: &str| {
        format!(
            "echo {event} $CUELINE_FIRE_TIME_MS $CUELINE_EXECUTOR >> {}",
            log.display()
        )
    };
    cluster
        .apply(&format!(
            r#"
[[job]]
name = "job"
schedule = {{ every = "400ms" }}
misfire = {{ policy = "catch_up", grace = "1h", catch_up_limit = 1000 }}
on_lost = "rerun"
handler = {{ shell = "{}; sleep 0.25; {}" }}
"#,
            said("start"),
            said("end")
        ))
        .await?;
    let read = || lines(&std::fs::read_to_string(&log).unwrap_or_default());
    let holder = try_eventually("some runs have started", WITHIN, async || {
        let seen = read()?;
        anyhow::Ok(match seen.last() {
            Some(last) if seen.len() > 8 => Ok(last.worker.clone()),
            _ => Err(format!("{seen:?}")),
        })
    });
    let killed = holder.await?;
    for (name, worker) in &mut workers {
        if *name == killed {
            worker.kill().await?;
        }
    }
    two.kill().await?;
    let moved = try_eventually("other workers have the lane", WITHIN, async || {
        let seen = read()?;
        let starts = seen.iter().filter(|line| line.event == "start");
        let elsewhere = starts.filter(|line| line.worker != killed).count();
        let lives_on = seen.last().is_some_and(|line| line.worker != killed);
        anyhow::Ok(if elsewhere >= STARTS && lives_on {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        })
    });
    moved.await.map_err(|e| e.context(cluster.logs()))?;
    check(&read()?, &killed).map_err(|e| e.context(cluster.logs()))?;
    for (name, worker) in &mut workers {
        if *name != killed {
            worker.terminate().await?;
        }
    }
    one.terminate().await
}

/// The guard of the killed worker ends its handler, so its last start has no end.
fn check(lines: &[Line], killed: &str) -> Result<()> {
    let mut working: Option<&Line> = None;
    let mut started: Vec<i64> = Vec::new();
    for line in lines {
        if line.event == "end" {
            working = None;
            continue;
        }
        let overlapped = working.filter(|other| other.worker != killed);
        ensure!(overlapped.is_none(), "{line:?} overlaps {overlapped:?}");
        // The one that was lost runs again, before all newer ones.
        started.push(line.fire_at);
        working = Some(line);
    }
    ensure!(started.is_sorted(), "out of order: {started:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nats_a_serial_job_keeps_its_lane_through_kills() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    a_serial_job_keeps_its_lane_through_kills(nats.url()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_rabbitmq_a_serial_job_keeps_its_lane_through_kills() -> Result<()> {
    let rabbit = Rabbit::start()?;
    a_serial_job_keeps_its_lane_through_kills(rabbit.url("/")).await
}
