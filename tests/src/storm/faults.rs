//! The schedule of faults, which the seed determines completely, and the injection of each fault.

use std::time::Duration;

use anyhow::{Result, ensure};
use cueline_runtime::{Clock as _, SystemClock};
use cueline_test_servers::proxy::Link;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tokio::time::sleep;

use super::cluster::{DRAIN, StormCluster, failover_after};

/// The component that a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Scheduler(usize),
    Worker(usize),
    Broker,
    /// PostgreSQL.
    Store,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// SIGKILL, and a new start after this time.
    Kill(Duration),
    /// SIGSTOP for this time. If `true`, the processes that it started are stopped too.
    Stop(Duration, bool),
    /// No connection for this time, or connections that transmit nothing.
    Disconnect(Duration, Link),
    /// SIGTERM, and a new start after the process has ended.
    Terminate,
}

/// A fault in the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub target: Target,
    pub kind: FaultKind,
    /// The pause before the fault.
    pub after: Duration,
}

/// An injected fault. All times are in milliseconds.
#[derive(Debug, Clone)]
pub struct InjectedFault {
    pub fault: Fault,
    pub began: i64,
    /// Right before SIGCONT, for a process that was stopped.
    pub stopped_until: Option<i64>,
    /// When the process was started again, resumed or reconnected.
    pub over: i64,
    /// When every scheduler received heartbeats of every worker again.
    pub healed: i64,
}

/// A time longer than every lease. The time until failover is the longest one.
fn longer_than_leases() -> Duration {
    failover_after() + Duration::from_secs(3)
}

/// All faults of a seed. Each kind of target has one fault at the start, so that a short storm covers all kinds.
pub fn schedule(rng: &mut StdRng) -> Vec<Fault> {
    let mut by_target: Vec<Vec<(Target, FaultKind)>> =
        (0..4).map(|kind| faults_of(kind, rng)).collect();
    by_target.shuffle(rng);
    let mut all = Vec::new();
    while by_target.iter().any(|faults| !faults.is_empty()) {
        for faults in &mut by_target {
            if let Some((target, kind)) = faults.pop() {
                let after = Duration::from_millis(rng.random_range(300..2_000));
                all.push(Fault {
                    target,
                    kind,
                    after,
                });
            }
        }
    }
    all
}

/// The faults of one kind of target: 0 schedulers, 1 workers, 2 the broker, 3 the store.
fn faults_of(kind: usize, rng: &mut StdRng) -> Vec<(Target, FaultKind)> {
    let link = |rng: &mut StdRng| [Link::Cut, Link::HalfOpen][rng.random_range(0..2)];
    // Either back at once, or after others have taken over.
    let away = |rng: &mut StdRng| [Duration::ZERO, longer_than_leases()][rng.random_range(0..2)];
    let mut faults = match kind {
        0 | 1 => {
            let mut target = || match kind {
                0 => Target::Scheduler(rng.random_range(0..2)),
                _ => Target::Worker(rng.random_range(0..3)),
            };
            let targets = [target(), target(), target(), target()];
            vec![
                (targets[0], FaultKind::Kill(away(rng))),
                (
                    targets[1],
                    FaultKind::Stop(longer_than_leases(), rng.random()),
                ),
                (
                    targets[2],
                    FaultKind::Disconnect(longer_than_leases(), link(rng)),
                ),
                (targets[3], FaultKind::Terminate),
            ]
        }
        _ => {
            let target = [Target::Broker, Target::Store][kind - 2];
            // Disconnects all members, sometimes for less than the leases of those that wait for the server.
            let disconnected = Duration::from_millis(rng.random_range(500..8_000));
            vec![
                (target, FaultKind::Kill(Duration::ZERO)),
                (target, FaultKind::Stop(longer_than_leases(), false)),
                (target, FaultKind::Disconnect(disconnected, link(rng))),
            ]
        }
    };
    faults.shuffle(rng);
    faults
}

/// Injects a fault and ends it. Starts killed or terminated members again.
pub async fn inject(cluster: &mut StormCluster, fault: Fault) -> Result<InjectedFault> {
    sleep(fault.after).await;
    let began = SystemClock.now_ms();
    let stopped_until = match fault.target {
        Target::Scheduler(n) => on_member(cluster, Role::Scheduler, n, fault.kind).await?,
        Target::Worker(n) => on_member(cluster, Role::Worker, n, fault.kind).await?,
        Target::Broker | Target::Store => {
            on_server(cluster, fault).await?;
            None
        }
    };
    cluster.start_stopped()?;
    let over = SystemClock.now_ms();
    cluster.wait_for_heartbeats().await?;
    Ok(InjectedFault {
        fault,
        began,
        stopped_until,
        over,
        healed: SystemClock.now_ms(),
    })
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Scheduler,
    Worker,
}

/// A process must end within this time after SIGTERM, in addition to the time for its attempts.
const TERMINATION_SLACK: Duration = Duration::from_secs(26);

/// Injects a fault into one member. Returns the end of its stop, if it was stopped.
async fn on_member(
    cluster: &mut StormCluster,
    role: Role,
    n: usize,
    kind: FaultKind,
) -> Result<Option<i64>> {
    let member = match role {
        Role::Scheduler => &mut cluster.schedulers[n],
        Role::Worker => &mut cluster.workers[n],
    };
    match kind {
        FaultKind::Kill(away) => {
            member.process.kill().await?;
            sleep(away).await;
        }
        FaultKind::Stop(duration, true) => {
            let groups = member.process.freeze()?;
            sleep(duration).await;
            let stopped_until = SystemClock.now_ms();
            member.process.thaw(&groups)?;
            return Ok(Some(stopped_until));
        }
        FaultKind::Stop(duration, false) => {
            member.process.pause()?;
            sleep(duration).await;
            let stopped_until = SystemClock.now_ms();
            member.process.resume()?;
            return Ok(Some(stopped_until));
        }
        FaultKind::Disconnect(duration, link) => {
            member.set_links(link);
            sleep(duration).await;
            member.set_links(Link::Whole);
        }
        FaultKind::Terminate => {
            let status = member.process.stop(DRAIN + TERMINATION_SLACK).await?;
            ensure!(
                status.success(),
                "G12: {} ended with {status} after SIGTERM",
                member.process.name
            );
        }
    }
    Ok(None)
}

async fn on_server(cluster: &mut StormCluster, fault: Fault) -> Result<()> {
    let broker = fault.target == Target::Broker;
    match fault.kind {
        FaultKind::Kill(_) | FaultKind::Terminate if broker => cluster.broker.kill_and_start()?,
        FaultKind::Kill(_) | FaultKind::Terminate => {
            cluster.postgres.kill()?;
            cluster.postgres.start_again()?;
        }
        FaultKind::Stop(duration, _) if broker => {
            cluster.broker.pause()?;
            sleep(duration).await;
            cluster.broker.resume()?;
        }
        FaultKind::Stop(duration, _) => {
            cluster.postgres.pause()?;
            sleep(duration).await;
            cluster.postgres.resume()?;
        }
        FaultKind::Disconnect(duration, link) => {
            set_all_links(cluster, broker, link);
            sleep(duration).await;
            set_all_links(cluster, broker, Link::Whole);
        }
    }
    Ok(())
}

fn set_all_links(cluster: &StormCluster, to_broker: bool, link: Link) {
    for member in cluster.members() {
        if to_broker {
            member.set_broker_link(link);
        } else {
            member.set_store_link(link);
        }
    }
}
