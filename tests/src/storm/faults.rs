//! What happens to a cluster: the schedule of faults, all of it drawn from the seed beforehand, and how each is inflicted.

use std::time::Duration;

use anyhow::{Result, ensure};
use cueline_runtime::{Clock as _, SystemClock};
use cueline_test_servers::proxy::Link;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tokio::time::sleep;

use crate::cluster::{Cluster, DRAIN, failover_after};

/// Whom it befalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One of the schedulers.
    Scheduler(usize),
    /// One of the workers.
    Worker(usize),
    /// The broker.
    Broker,
    /// PostgreSQL.
    Store,
}

/// What it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// SIGKILL; back after this.
    Kill(Duration),
    /// SIGSTOP for this long; or the processes that it has started as well.
    Stop(Duration, bool),
    /// No connection for this long; or connections that stay and carry nothing.
    CutOff(Duration, Link),
    /// SIGTERM; back when it has ended.
    End,
}

/// One of the things that happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Whom.
    pub target: Target,
    /// What.
    pub how: How,
    /// How long nothing happens before it.
    pub after: Duration,
}

/// One that has happened, with its times in milliseconds.
#[derive(Debug, Clone)]
pub struct Past {
    /// What it was.
    pub fault: Fault,
    /// When it began.
    pub began: i64,
    /// When what was stopped was about to be set going.
    pub stood_until: Option<i64>,
    /// When it was over: the process started again, or set going, or connected.
    pub over: i64,
    /// When everybody heard everybody again.
    pub healed: i64,
}

/// Longer than every lease, of which the time until failover is the longest.
fn long() -> Duration {
    failover_after() + Duration::from_secs(3)
}

/// All faults of a seed. One of each target first, so that a short run has them all.
pub fn faults(rng: &mut StdRng) -> Vec<Fault> {
    let mut by_target: Vec<Vec<(Target, How)>> = (0..4).map(|kind| all_of(kind, rng)).collect();
    by_target.shuffle(rng);
    let mut all = Vec::new();
    while by_target.iter().any(|some| !some.is_empty()) {
        for some in &mut by_target {
            if let Some((target, how)) = some.pop() {
                let after = Duration::from_millis(rng.random_range(300..2_000));
                all.push(Fault { target, how, after });
            }
        }
    }
    all
}

fn all_of(kind: usize, rng: &mut StdRng) -> Vec<(Target, How)> {
    let link = |rng: &mut StdRng| [Link::Cut, Link::HalfOpen][rng.random_range(0..2)];
    // At once, or after others have taken over.
    let away = |rng: &mut StdRng| [Duration::ZERO, long()][rng.random_range(0..2)];
    let mut some = match kind {
        0 | 1 => {
            let mut who = || match kind {
                0 => Target::Scheduler(rng.random_range(0..2)),
                _ => Target::Worker(rng.random_range(0..3)),
            };
            let who = [who(), who(), who(), who()];
            vec![
                (who[0], How::Kill(away(rng))),
                (who[1], How::Stop(long(), rng.random())),
                (who[2], How::CutOff(long(), link(rng))),
                (who[3], How::End),
            ]
        }
        _ => {
            let who = [Target::Broker, Target::Store][kind - 2];
            // From everybody; sometimes for a while that is shorter than the leases of those who wait for it.
            let cut = Duration::from_millis(rng.random_range(500..8_000));
            vec![
                (who, How::Kill(Duration::ZERO)),
                (who, How::Stop(long(), false)),
                (who, How::CutOff(cut, link(rng))),
            ]
        }
    };
    some.shuffle(rng);
    some
}

/// Inflicts one, and sees to it that it is over. Whoever was killed or asked to end is started again.
pub async fn inflict(cluster: &mut Cluster, fault: Fault) -> Result<Past> {
    sleep(fault.after).await;
    let began = SystemClock.now_ms();
    let stood_until = match fault.target {
        Target::Scheduler(n) => on_member(cluster, Role::Scheduler, n, fault.how).await?,
        Target::Worker(n) => on_member(cluster, Role::Worker, n, fault.how).await?,
        Target::Broker | Target::Store => {
            on_server(cluster, fault).await?;
            None
        }
    };
    cluster.start_again()?;
    let over = SystemClock.now_ms();
    cluster.all_heard().await?;
    Ok(Past {
        fault,
        began,
        stood_until,
        over,
        healed: SystemClock.now_ms(),
    })
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Scheduler,
    Worker,
}

/// A process that was asked to end has this long beyond what it gives to what runs.
const END_SLACK: Duration = Duration::from_secs(26);

/// When it was about to be set going, if it was stopped.
async fn on_member(cluster: &mut Cluster, role: Role, n: usize, how: How) -> Result<Option<i64>> {
    let member = match role {
        Role::Scheduler => &mut cluster.schedulers[n],
        Role::Worker => &mut cluster.workers[n],
    };
    match how {
        How::Kill(away) => {
            member.kill().await?;
            sleep(away).await;
        }
        How::Stop(long, true) => {
            let groups = member.freeze()?;
            sleep(long).await;
            let stood_until = SystemClock.now_ms();
            member.thaw(&groups)?;
            return Ok(Some(stood_until));
        }
        How::Stop(long, false) => {
            member.pause()?;
            sleep(long).await;
            let stood_until = SystemClock.now_ms();
            member.resume()?;
            return Ok(Some(stood_until));
        }
        How::CutOff(long, link) => {
            member.link(link);
            sleep(long).await;
            member.link(Link::Whole);
        }
        How::End => {
            let status = member.end(DRAIN + END_SLACK).await?;
            ensure!(
                status.success(),
                "G12: {} ended with {status} after SIGTERM",
                member.name
            );
        }
    }
    Ok(None)
}

async fn on_server(cluster: &mut Cluster, fault: Fault) -> Result<()> {
    let broker = fault.target == Target::Broker;
    match fault.how {
        How::Kill(_) | How::End if broker => cluster.broker.kill_and_start()?,
        How::Kill(_) | How::End => {
            cluster.postgres.kill()?;
            cluster.postgres.start_again()?;
        }
        How::Stop(long, _) if broker => {
            cluster.broker.pause()?;
            sleep(long).await;
            cluster.broker.resume()?;
        }
        How::Stop(long, _) => {
            cluster.postgres.pause()?;
            sleep(long).await;
            cluster.postgres.resume()?;
        }
        How::CutOff(long, link) => {
            for member in cluster.schedulers.iter().chain(&cluster.workers) {
                member.link_to(broker, link);
            }
            sleep(long).await;
            for member in cluster.schedulers.iter().chain(&cluster.workers) {
                member.link_to(broker, Link::Whole);
            }
        }
    }
    Ok(())
}
