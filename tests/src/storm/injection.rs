//! Injects faults, and ends them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_runtime::{Clock as _, SystemClock};
use futures_util::future::try_join_all;
use tokio::time::sleep;

use super::cluster::{DRAIN, Member, StormCluster};
use super::connection::{Connection, disconnect};
use super::faults::{Fault, FaultKind, InjectedFault, Target};
use super::full_disk::FullDisk;
use super::servers::{BrokerNodes, BrokerServer, StoreServer};

/// Injects the faults of a wave and ends them. Starts killed or terminated members again. Returns when all parts have
/// recovered.
pub async fn inject(cluster: &mut StormCluster, wave: &[Fault]) -> Result<Vec<InjectedFault>> {
    let mut injected = inject_all(cluster, wave).await?;
    let of_node = |fault: &Fault| matches!(fault.target, Target::BrokerNode(_));
    if wave.iter().any(of_node) {
        cluster.broker.nodes()?.wait_until_whole()?;
    }
    cluster.wait_for_heartbeats().await?;
    let healed = SystemClock.now_ms();
    for fault in &mut injected {
        fault.healed = healed;
    }
    Ok(injected)
}

/// What a fault acts on. No two faults of a wave share a part.
enum Part<'a> {
    Members(Vec<&'a mut Member>),
    Broker(&'a mut BrokerServer, Vec<Arc<Connection>>),
    BrokerNode(&'a mut dyn BrokerNodes, usize),
    Store(&'a StoreServer, Vec<Arc<Connection>>),
}

async fn inject_all(cluster: &mut StormCluster, wave: &[Fault]) -> Result<Vec<InjectedFault>> {
    let to_broker = cluster.broker_connections();
    let to_store = cluster.store_connections();
    let mut schedulers: Vec<Option<&mut Member>> =
        cluster.schedulers.iter_mut().map(Some).collect();
    let mut workers: Vec<Option<&mut Member>> = cluster.workers.iter_mut().map(Some).collect();
    let mut broker = Some(&mut cluster.broker);
    let mut injecting = Vec::new();
    for fault in wave {
        let taken = || format!("two faults of a wave hit {:?}", fault.target);
        let part = match fault.target {
            Target::Scheduler(n) => Part::Members(vec![schedulers[n].take().with_context(taken)?]),
            Target::Worker(n) => Part::Members(vec![workers[n].take().with_context(taken)?]),
            Target::Workers => Part::Members(workers.iter_mut().filter_map(Option::take).collect()),
            Target::Broker => Part::Broker(broker.take().with_context(taken)?, to_broker.clone()),
            Target::BrokerNode(n) => {
                Part::BrokerNode(broker.take().with_context(taken)?.nodes()?, n)
            }
            Target::Store => Part::Store(&cluster.store, to_store.clone()),
        };
        injecting.push(inject_one(*fault, part));
    }
    try_join_all(injecting).await
}

/// Starting a server blocks the other faults of the wave, which then last longer. The recorded times are the real ones.
async fn inject_one(fault: Fault, part: Part<'_>) -> Result<InjectedFault> {
    sleep(fault.after).await;
    let began = SystemClock.now_ms();
    let mut course = Course::default();
    match part {
        Part::Members(mut members) => course = on_members(&mut members, fault.kind).await?,
        Part::Broker(server, connections) => on_broker(server, &connections, fault.kind).await?,
        Part::BrokerNode(nodes, node) => on_broker_node(nodes, node, fault.kind).await?,
        Part::Store(server, connections) => on_store(server, &connections, fault.kind).await?,
    }
    let over = SystemClock.now_ms();
    Ok(InjectedFault {
        fault,
        began,
        stopped_until: course.stopped_until,
        full: course.full,
        over,
        healed: over,
    })
}

/// A process must end within this time after SIGTERM, in addition to the time for its attempts.
const TERMINATION_SLACK: Duration = Duration::from_secs(26);

/// Times in the course of a fault that the checker needs.
#[derive(Debug, Default)]
struct Course {
    stopped_until: Option<i64>,
    full: Option<FullDisk>,
}

impl Course {
    /// A process is about to continue.
    fn stopped_until_now() -> Self {
        Self {
            stopped_until: Some(SystemClock.now_ms()),
            ..Self::default()
        }
    }
}

/// Injects a fault into members.
async fn on_members(members: &mut [&mut Member], kind: FaultKind) -> Result<Course> {
    match kind {
        FaultKind::Kill(away) => {
            for member in members.iter_mut() {
                member.process.kill().await?;
            }
            sleep(away).await;
            for member in members.iter_mut() {
                member.process.start()?;
            }
        }
        FaultKind::Stop(duration, true) => {
            let mut frozen = Vec::new();
            for member in members.iter() {
                frozen.push((&member.process, member.process.freeze()?));
            }
            sleep(duration).await;
            let course = Course::stopped_until_now();
            for (process, groups) in frozen {
                process.thaw(&groups)?;
            }
            return Ok(course);
        }
        FaultKind::Stop(duration, false) => {
            members.iter().try_for_each(|m| m.process.pause())?;
            sleep(duration).await;
            let course = Course::stopped_until_now();
            members.iter().try_for_each(|m| m.process.resume())?;
            return Ok(course);
        }
        FaultKind::Disconnect(duration, link) => {
            let connections: Vec<_> = members.iter().flat_map(|m| m.connections()).collect();
            disconnect(&connections, duration, link).await;
        }
        FaultKind::Terminate => {
            for member in members.iter_mut() {
                terminate_and_start(member).await?;
            }
        }
        FaultKind::StepClock(duration, step_ms) => {
            members.iter().try_for_each(|m| m.set_clock(step_ms))?;
            sleep(duration).await;
            members.iter().try_for_each(|m| m.set_clock(0))?;
        }
        FaultKind::Fill(more) => {
            let member = members.first().context("a disk has a worker")?;
            let full = member.disk()?.fill_for(more).await?;
            return Ok(Course {
                full: Some(full),
                ..Course::default()
            });
        }
        FaultKind::Isolate(_) | FaultKind::Promote => bail!("no fault of a member: {kind:?}"),
    }
    Ok(Course::default())
}

async fn terminate_and_start(member: &mut Member) -> Result<()> {
    let status = member.process.stop(DRAIN + TERMINATION_SLACK).await?;
    ensure!(
        status.success(),
        "G12: {} ended with {status} after SIGTERM",
        member.process.name
    );
    member.process.start()
}

async fn on_broker(
    server: &mut BrokerServer,
    connections: &[Arc<Connection>],
    kind: FaultKind,
) -> Result<()> {
    match kind {
        FaultKind::Kill(_) | FaultKind::Terminate => server.kill_and_start()?,
        FaultKind::Stop(duration, _) => {
            server.pause()?;
            sleep(duration).await;
            server.resume()?;
        }
        FaultKind::Disconnect(duration, link) => disconnect(connections, duration, link).await,
        FaultKind::Isolate(_)
        | FaultKind::Promote
        | FaultKind::StepClock(..)
        | FaultKind::Fill(_) => {
            bail!("no fault of a whole broker: {kind:?}")
        }
    }
    Ok(())
}

async fn on_broker_node(nodes: &mut dyn BrokerNodes, node: usize, kind: FaultKind) -> Result<()> {
    match kind {
        FaultKind::Kill(away) => {
            nodes.kill(node)?;
            sleep(away).await;
            nodes.restart(node)
        }
        FaultKind::Stop(duration, _) => {
            nodes.freeze(node)?;
            sleep(duration).await;
            nodes.thaw(node)
        }
        FaultKind::Isolate(duration) => {
            nodes.isolate(node)?;
            sleep(duration).await;
            nodes.rejoin(node)
        }
        FaultKind::Disconnect(..)
        | FaultKind::Terminate
        | FaultKind::Promote
        | FaultKind::StepClock(..)
        | FaultKind::Fill(_) => bail!("no fault of one server of a broker: {kind:?}"),
    }
}

async fn on_store(
    server: &StoreServer,
    connections: &[Arc<Connection>],
    kind: FaultKind,
) -> Result<()> {
    match kind {
        FaultKind::Kill(_) | FaultKind::Terminate => server.kill_and_start()?,
        FaultKind::Promote => server.promote()?,
        FaultKind::Stop(duration, _) => {
            server.pause()?;
            sleep(duration).await;
            server.resume()?;
        }
        FaultKind::Disconnect(duration, link) => disconnect(connections, duration, link).await,
        FaultKind::Isolate(_) | FaultKind::StepClock(..) | FaultKind::Fill(_) => {
            bail!("no fault of PostgreSQL: {kind:?}")
        }
    }
    Ok(())
}
