//! The faults and their schedule, which the seed and the servers determine completely.
//!
//! Faults come in waves. The faults of a wave hit different parts and overlap. Between two waves the cluster heals, so
//! that operators can cancel runs where the outcome is certain.

use std::time::Duration;

use cueline_test_servers::proxy::Link;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::cluster::{WORKER_WITH_DISK, failover_after};
use super::full_disk::FullDisk;
use super::servers::{BROKER_NODES, BrokerKind, Setup};

/// The component that a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Scheduler(usize),
    Worker(usize),
    /// All workers at once.
    Workers,
    /// All servers of the broker.
    Broker,
    /// One server of the broker's cluster.
    BrokerNode(usize),
    /// PostgreSQL: the server that accepts writes.
    Store,
}

impl Target {
    /// The kind of component, for tables.
    pub fn part(self) -> &'static str {
        match self {
            Self::Scheduler(_) => "scheduler",
            Self::Worker(_) => "worker",
            Self::Workers => "all workers",
            Self::Broker => "broker",
            Self::BrokerNode(_) => "broker node",
            Self::Store => "store",
        }
    }

    /// Whether this is one or all of the workers.
    pub fn is_worker(self) -> bool {
        matches!(self, Self::Worker(_) | Self::Workers)
    }

    /// Whether this is the broker or a part of it.
    pub fn is_broker(self) -> bool {
        matches!(self, Self::Broker | Self::BrokerNode(_))
    }
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
    /// No network between a server of a cluster and the others for this time. Its clients stay connected.
    Isolate(Duration),
    /// SIGKILL to the primary, and a promotion of its standby.
    Promote,
    /// For this time the process's wall clock differs from the machine's by this many milliseconds.
    StepClock(Duration, i64),
    /// No room on the disk of a worker's state directory, until the worker says so and for this time after that.
    Fill(Duration),
}

impl FaultKind {
    /// Its name, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Stop(_, false) => "stop",
            Self::Stop(_, true) => "freeze",
            Self::Disconnect(..) => "disconnect",
            Self::Terminate => "terminate",
            Self::Isolate(_) => "isolate",
            Self::Promote => "promote",
            Self::StepClock(..) => "step clock",
            Self::Fill(_) => "fill disk of",
        }
    }
}

/// A fault in the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub target: Target,
    pub kind: FaultKind,
    /// The pause between the beginning of the wave and the fault.
    pub after: Duration,
}

/// An injected fault. All times are in milliseconds.
#[derive(Debug, Clone)]
pub struct InjectedFault {
    pub fault: Fault,
    pub began: i64,
    /// Right before SIGCONT, for a process that was stopped.
    pub stopped_until: Option<i64>,
    /// For a disk that was filled.
    pub full: Option<FullDisk>,
    /// When the process was started again, resumed or reconnected, or could use its disk again.
    pub over: i64,
    /// When every scheduler received heartbeats of every worker again, after all faults of the wave.
    pub healed: i64,
}

impl InjectedFault {
    /// Whether it hits the process, the connections or the disk of this worker alone or with other workers.
    pub fn hits_worker(&self, name: &str) -> bool {
        match self.fault.target {
            Target::Worker(n) => name.strip_prefix("worker-") == Some(&(n + 1).to_string()),
            Target::Workers => name.starts_with("worker-"),
            _ => false,
        }
    }

    /// Whether it fills the disk of this worker.
    pub fn fills_disk_of(&self, name: &str) -> bool {
        matches!(self.fault.kind, FaultKind::Fill(_)) && self.hits_worker(name)
    }

    /// Whether some of the time until all parts had recovered is in this period.
    pub fn overlaps(&self, from: i64, to: i64) -> bool {
        self.began <= to && from <= self.healed
    }
}

/// A time longer than every lease. The time until failover is the longest one.
fn longer_than_leases() -> Duration {
    failover_after() + Duration::from_secs(3)
}

/// A disk stays full for this long after its worker has said so. The schedulers notice that in the first half.
const FULL_FOR: Duration = Duration::from_secs(5);

/// From less than a scheduler warns about to more than every lease.
const CLOCK_STEPS_MS: [i64; 8] = [300, -300, 1_000, -1_000, 5_000, -5_000, 20_000, -20_000];

/// The most faults that are present at once. With more, too little of the cluster is left to be wrong.
const MOST_AT_ONCE: usize = 3;

/// The first `count` faults of a seed, in waves. Each kind of target has one fault at the start, so that a short storm
/// covers all kinds. All faults of a seed are 15. A worker with a disk of its own, a cluster whose servers can be
/// isolated, a standby and clock steps add one each.
pub fn schedule(rng: &mut StdRng, count: usize, setup: Setup) -> Vec<Vec<Fault>> {
    let mut by_target: Vec<Vec<(Target, FaultKind)>> =
        (0..5).map(|kind| faults_of(kind, rng, setup)).collect();
    by_target.shuffle(rng);
    let mut all = Vec::new();
    while by_target.iter().any(|faults| !faults.is_empty()) {
        all.extend(by_target.iter_mut().filter_map(Vec::pop));
    }
    all.truncate(count);
    waves(all, rng)
}

/// Groups faults into waves of faults that may overlap. A fault that may not joins a later wave.
fn waves(mut left: Vec<(Target, FaultKind)>, rng: &mut StdRng) -> Vec<Vec<Fault>> {
    let mut waves = Vec::new();
    while !left.is_empty() {
        let size = rng.random_range(1..=MOST_AT_ONCE);
        let mut wave: Vec<Fault> = Vec::new();
        let mut later = Vec::new();
        for (target, kind) in left {
            let may_join = wave
                .iter()
                .all(|other| may_overlap((other.target, other.kind), (target, kind)));
            if wave.len() >= size || !may_join {
                later.push((target, kind));
                continue;
            }
            // Shorter than a stop, so that most faults of a wave overlap.
            let earliest_ms = if wave.is_empty() { 300 } else { 500 };
            let latest_ms = if wave.is_empty() { 2_000 } else { 5_000 };
            let after = Duration::from_millis(rng.random_range(earliest_ms..latest_ms));
            wave.push(Fault {
                target,
                kind,
                after,
            });
        }
        waves.push(wave);
        left = later;
    }
    waves
}

/// Whether two faults may be present at once. They must hit different parts. A process that gets SIGTERM must be able
/// to report its results, because the storm expects that it ends in time and with success.
fn may_overlap(one: (Target, FaultKind), other: (Target, FaultKind)) -> bool {
    let targets = [one.0, other.0];
    let all_workers = targets.contains(&Target::Workers) && targets.iter().all(|t| t.is_worker());
    // A cluster of three works on while one server is away.
    let both_broker = targets.iter().all(|t| t.is_broker());
    let same_part = one.0 == other.0 || all_workers || both_broker;
    let is_server = |target: Target| target.is_broker() || target == Target::Store;
    let terminated_without = |(_, kind): (Target, FaultKind), (target, _): (Target, FaultKind)| {
        kind == FaultKind::Terminate && is_server(target)
    };
    !same_part && !terminated_without(one, other) && !terminated_without(other, one)
}

/// The faults of one kind of target: 0 schedulers, 1 workers, 2 the broker, 3 the store, 4 all workers.
fn faults_of(kind: usize, rng: &mut StdRng, setup: Setup) -> Vec<(Target, FaultKind)> {
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
        // With no worker left, every run waits and every executor is failed over.
        4 => vec![(Target::Workers, FaultKind::Stop(longer_than_leases(), true))],
        2 if setup.broker != BrokerKind::Single => faults_of_broker_cluster(rng, setup.broker),
        _ => {
            let target = [Target::Broker, Target::Store][kind - 2];
            // Disconnects all members.
            let disconnected = shortly_disconnected(rng);
            vec![
                (target, FaultKind::Kill(Duration::ZERO)),
                (target, FaultKind::Stop(longer_than_leases(), false)),
                (target, FaultKind::Disconnect(disconnected, link(rng))),
            ]
        }
    };
    if kind == 3 && setup.standby {
        faults.push((Target::Store, FaultKind::Promote));
    }
    if kind == 0 && setup.clock_steps {
        let target = Target::Scheduler(rng.random_range(0..2));
        let step_ms = CLOCK_STEPS_MS[rng.random_range(0..CLOCK_STEPS_MS.len())];
        faults.push((target, FaultKind::StepClock(longer_than_leases(), step_ms)));
    }
    if kind == 1 && setup.worker_disk {
        let target = Target::Worker(WORKER_WITH_DISK);
        faults.push((target, FaultKind::Fill(FULL_FOR)));
    }
    faults.shuffle(rng);
    faults
}

/// Each hits one server, except that all members may be disconnected from all servers.
fn faults_of_broker_cluster(rng: &mut StdRng, broker: BrokerKind) -> Vec<(Target, FaultKind)> {
    let node = |rng: &mut StdRng| Target::BrokerNode(rng.random_range(0..BROKER_NODES));
    let mut faults = vec![
        (node(rng), FaultKind::Kill(away(rng))),
        (node(rng), FaultKind::Stop(longer_than_leases(), false)),
        (
            Target::Broker,
            FaultKind::Disconnect(shortly_disconnected(rng), link(rng)),
        ),
    ];
    if broker == BrokerKind::IsolableCluster {
        faults.push((node(rng), FaultKind::Isolate(longer_than_leases())));
    }
    faults
}

fn link(rng: &mut StdRng) -> Link {
    [Link::Cut, Link::HalfOpen][rng.random_range(0..2)]
}

/// Either back at once, or after others have taken over.
fn away(rng: &mut StdRng) -> Duration {
    [Duration::ZERO, longer_than_leases()][rng.random_range(0..2)]
}

/// Sometimes less than the leases of those that wait for the server.
fn shortly_disconnected(rng: &mut StdRng) -> Duration {
    Duration::from_millis(rng.random_range(500..8_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;

    const ALL: usize = 99;
    const SINGLE: Setup = Setup {
        broker: BrokerKind::Single,
        standby: false,
        clock_steps: false,
        worker_disk: false,
    };
    const WITH_DISK: Setup = Setup {
        worker_disk: true,
        ..SINGLE
    };
    const REDUNDANT: Setup = Setup {
        broker: BrokerKind::IsolableCluster,
        standby: true,
        clock_steps: true,
        worker_disk: true,
    };

    fn flat(waves: &[Vec<Fault>]) -> Vec<Fault> {
        waves.concat()
    }

    #[test]
    fn a_schedule_has_all_faults_in_waves_of_different_parts() {
        for seed in 0..200 {
            for (setup, count) in [(SINGLE, 15), (WITH_DISK, 16), (REDUNDANT, 19)] {
                let waves = schedule(&mut Seed(seed).rng(), ALL, setup);
                assert_eq!(flat(&waves).len(), count, "seed {seed}");
                for wave in &waves {
                    assert_fits(wave, seed);
                }
                assert!(waves.iter().any(|wave| wave.len() > 1), "seed {seed}");
            }
        }
    }

    fn assert_fits(wave: &[Fault], seed: u64) {
        assert!((1..=MOST_AT_ONCE).contains(&wave.len()), "seed {seed}");
        for (n, one) in wave.iter().enumerate() {
            for other in &wave[n + 1..] {
                let pair = ((one.target, one.kind), (other.target, other.kind));
                assert!(may_overlap(pair.0, pair.1), "seed {seed}: {wave:?}");
            }
        }
    }

    #[test]
    fn one_server_of_a_cluster_fails_at_a_time_and_a_standby_is_promoted_once() {
        for seed in 0..50 {
            let waves = schedule(&mut Seed(seed).rng(), ALL, REDUNDANT);
            for wave in &waves {
                let of_broker = wave.iter().filter(|fault| fault.target.is_broker());
                assert!(of_broker.count() <= 1, "seed {seed}: {wave:?}");
            }
            let faults = flat(&waves);
            let count = |target: fn(Target) -> bool, name: &str| {
                let found = faults
                    .iter()
                    .filter(|f| target(f.target) && f.kind.name() == name);
                found.count()
            };
            let node = |target: Target| matches!(target, Target::BrokerNode(0..BROKER_NODES));
            for kind in ["kill", "stop", "isolate"] {
                assert_eq!(count(node, kind), 1, "seed {seed}: {kind}");
            }
            let store = |target: Target| target == Target::Store;
            assert_eq!(count(store, "promote"), 1, "seed {seed}");
            assert_eq!(count(|_: Target| true, "promote"), 1, "seed {seed}");
        }
    }

    #[test]
    fn only_the_disk_of_the_worker_that_has_one_is_filled() {
        let filled = |seed, setup| {
            let faults = flat(&schedule(&mut Seed(seed).rng(), ALL, setup));
            let fills = faults
                .into_iter()
                .filter(|f| matches!(f.kind, FaultKind::Fill(_)));
            fills.map(|fault| fault.target).collect::<Vec<_>>()
        };
        for seed in 0..50 {
            let with_disk = filled(seed, WITH_DISK);
            assert_eq!(with_disk, [Target::Worker(WORKER_WITH_DISK)], "seed {seed}");
            assert_eq!(filled(seed, SINGLE), [], "seed {seed}");
        }
    }

    #[test]
    fn a_short_schedule_has_each_kind_of_target() {
        for seed in 0..50 {
            let faults = flat(&schedule(&mut Seed(seed).rng(), 5, WITH_DISK));
            let parts: std::collections::BTreeSet<_> =
                faults.iter().map(|f| f.target.part()).collect();
            assert_eq!(parts.len(), 5, "seed {seed}: {faults:?}");
        }
    }

    #[test]
    fn a_seed_repeats_its_schedule() {
        let of = |seed| schedule(&mut Seed(seed).rng(), ALL, SINGLE);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn faults_of_one_part_do_not_overlap() {
        let kill = FaultKind::Kill(Duration::ZERO);
        let two = |one, other| may_overlap((one, kill), (other, kill));
        assert!(!two(Target::Worker(1), Target::Worker(1)));
        assert!(!two(Target::Workers, Target::Worker(1)));
        assert!(two(Target::Worker(0), Target::Worker(1)));
        assert!(two(Target::Scheduler(0), Target::Store));
        let terminated = (Target::Worker(0), FaultKind::Terminate);
        assert!(!may_overlap(terminated, (Target::Broker, kill)));
        assert!(!may_overlap(terminated, (Target::BrokerNode(2), kill)));
        assert!(may_overlap(terminated, (Target::Scheduler(0), kill)));
        assert!(!two(Target::BrokerNode(0), Target::BrokerNode(1)));
        assert!(!two(Target::BrokerNode(0), Target::Broker));
    }

    #[test]
    fn a_fault_of_all_workers_hits_each() {
        let injected = |target| InjectedFault {
            fault: Fault {
                target,
                kind: FaultKind::Terminate,
                after: Duration::ZERO,
            },
            began: 0,
            stopped_until: None,
            full: None,
            over: 0,
            healed: 0,
        };
        assert!(injected(Target::Workers).hits_worker("worker-3"));
        assert!(injected(Target::Worker(2)).hits_worker("worker-3"));
        assert!(!injected(Target::Worker(1)).hits_worker("worker-3"));
        assert!(!injected(Target::Store).hits_worker("worker-3"));
    }
}
