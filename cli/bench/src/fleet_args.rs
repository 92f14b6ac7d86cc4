//! The arguments of `fleet`, and the fleet that follows from them.

use std::time::Duration;

use crate::BadInput;

/// The most executors that one process hosts. Each one has a thread and about four open files for its journal, and
/// many systems allow a process 1,024 open files.
pub(crate) const EXECUTORS_PER_PROCESS: u32 = 100;
/// The longest time over which the jobs of the load fall due.
const MAX_LOAD_SECONDS: u32 = 3_600;

/// Arguments of `fleet`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FleetArgs {
    /// Executors of `fleet`, 100 in each process
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..=5_000), requires = "store")]
    executors: u32,
    /// With `fleet`: executors of a process that share a connection to the broker
    #[arg(long, value_name = "N", default_value_t = EXECUTORS_PER_PROCESS, value_parser = clap::value_parser!(u32).range(1..=i64::from(EXECUTORS_PER_PROCESS)), requires = "store")]
    executors_per_connection: u32,
    /// With `fleet`: seconds without jobs
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3_600), requires = "store")]
    idle_seconds: u64,
    /// With `fleet`: delays each answer of PostgreSQL to the schedulers while there are no jobs
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=5_000), requires = "store")]
    slow_store: Option<u64>,
    /// With `fleet`: executors that are frozen, all in one process; by default a tenth, at most 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(EXECUTORS_PER_PROCESS)), requires = "store")]
    frozen: Option<u32>,
    /// With `fleet`: triggers queued at each frozen executor
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000), requires = "store")]
    queued: u32,
}

/// What `fleet` measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fleet {
    pub(crate) executors: u32,
    pub(crate) idle_seconds: u64,
    /// The delay of each answer of the store while there are no jobs.
    pub(crate) slow_store: Option<Duration>,
    /// Jobs of the load, each due once.
    pub(crate) jobs: u32,
    /// Jobs of the load that fall due in a second.
    pub(crate) rate: u32,
    /// Executors that are frozen.
    pub(crate) frozen: u32,
    /// Triggers queued at each of them.
    pub(crate) queued: u32,
    executors_per_connection: u32,
}

/// A process of the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FleetProcess {
    /// Its executors are called `NAME-1`, `NAME-2` and so on.
    pub(crate) name: String,
    pub(crate) executors: u32,
    /// Connections to the broker.
    pub(crate) connections: u32,
}

impl FleetArgs {
    /// The fleet, with the load of `jobs` jobs of which `rate` fall due in a second.
    pub(crate) fn fleet(&self, jobs: u32, rate: u32) -> Result<Fleet, BadInput> {
        let a_tenth = (self.executors / 10).clamp(1, EXECUTORS_PER_PROCESS);
        let frozen = self.frozen.unwrap_or(a_tenth);
        if frozen >= self.executors {
            return Err(BadInput(format!(
                "--frozen: {frozen} of {} executors given; at least one must be left to take over, so give at most {}",
                self.executors,
                self.executors - 1
            )));
        }
        if jobs.div_ceil(rate) > MAX_LOAD_SECONDS {
            return Err(BadInput(format!(
                "--rate: {jobs} jobs take longer than {MAX_LOAD_SECONDS} s at {rate} a second; give at least {}, or fewer --jobs",
                jobs.div_ceil(MAX_LOAD_SECONDS)
            )));
        }
        Ok(Fleet {
            executors: self.executors,
            idle_seconds: self.idle_seconds,
            slow_store: self.slow_store.map(Duration::from_millis),
            jobs,
            rate,
            frozen,
            queued: self.queued,
            executors_per_connection: self.executors_per_connection,
        })
    }
}

impl Fleet {
    /// The name of the process that is frozen. It sorts before those of the others, so that the shards of a job go to
    /// its executors first.
    pub(crate) const FROZEN: &str = "frozen";

    /// All processes. The first one hosts exactly the executors that are frozen.
    pub(crate) fn processes(&self) -> Vec<FleetProcess> {
        let mut processes = vec![self.process(Self::FROZEN.to_owned(), self.frozen)];
        let mut left = self.executors - self.frozen;
        while left > 0 {
            let executors = left.min(EXECUTORS_PER_PROCESS);
            let name = format!("worker-{}", processes.len());
            processes.push(self.process(name, executors));
            left -= executors;
        }
        processes
    }

    fn process(&self, name: String, executors: u32) -> FleetProcess {
        FleetProcess {
            name,
            executors,
            connections: executors.div_ceil(self.executors_per_connection),
        }
    }
}

impl FleetProcess {
    /// The names of its executors.
    pub(crate) fn executor_names(&self) -> impl Iterator<Item = String> {
        (1..=self.executors).map(|n| format!("{}-{n}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(executors: u32, frozen: Option<u32>) -> FleetArgs {
        FleetArgs {
            executors,
            executors_per_connection: 40,
            idle_seconds: 30,
            slow_store: None,
            frozen,
            queued: 100,
        }
    }

    #[test]
    fn the_first_process_hosts_the_frozen_executors_and_the_others_at_most_a_hundred_each() {
        let fleet = args(1_030, Some(30)).fleet(1_000, 100).unwrap();
        let processes = fleet.processes();
        let of = |n: usize| {
            let process = &processes[n];
            (
                process.name.as_str(),
                process.executors,
                process.connections,
            )
        };
        assert_eq!(processes.len(), 11);
        assert_eq!(of(0), ("frozen", 30, 1));
        assert_eq!(of(1), ("worker-1", 100, 3));
        assert_eq!(of(10), ("worker-10", 100, 3));
        let all: u32 = processes.iter().map(|process| process.executors).sum();
        assert_eq!(all, 1_030);
        let first = processes[1].executor_names().next();
        assert_eq!(first.as_deref(), Some("worker-1-1"));
    }

    #[test]
    fn a_tenth_of_the_executors_is_frozen_and_at_most_a_hundred() {
        let frozen = |executors| args(executors, None).fleet(1, 1).unwrap().frozen;
        assert_eq!([2, 50, 1_000, 5_000].map(frozen), [1, 5, 100, 100]);
    }

    #[test]
    fn a_fleet_without_survivors_and_a_load_of_hours_are_refused() {
        let refused = args(10, Some(10)).fleet(1_000, 100).unwrap_err();
        assert!(refused.0.contains("give at most 9"), "{refused}");
        let refused = args(10, None).fleet(36_001, 10).unwrap_err();
        assert!(refused.0.contains("give at least 11"), "{refused}");
        args(10, None).fleet(36_000, 10).unwrap();
    }
}
