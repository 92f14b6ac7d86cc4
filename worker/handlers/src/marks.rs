//! Marks in the environment of processes, by which the next start of a worker and its guard find them.

/// The variable by which the next start of a worker finds the processes of this one.
pub(crate) const WORKER_VARIABLE: &str = "CUELINE_WORKER_STATE";

/// The variable by which a worker's guard finds the processes to kill.
pub(crate) const GUARD_VARIABLE: &str = "CUELINE_WORKER_GUARD";

/// The guard's mark of a process that does not depend on a lease.
const NO_LEASE: &str = "keep";

/// The marks of a worker's processes.
#[derive(Debug, Clone)]
pub(crate) struct ProcessMarks {
    /// Value of [`WORKER_VARIABLE`].
    pub(crate) worker: String,
    pub(crate) guard: Option<GuardId>,
}

/// Identifies one start of a worker to its processes and its guard. Unique on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardId(String);

impl GuardId {
    /// The id of the worker with this state directory, in this start of its process.
    pub fn of(state_dir: &str, incarnation: &str) -> Self {
        Self(format!("{incarnation} {state_dir}"))
    }

    /// The id with this [text](Self::as_str).
    pub fn parse(text: String) -> Self {
        Self(text)
    }

    /// The id as text, for the guard's command line.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The mark of a process that starts under the lease that was proven at `proven_ms`. `None` marks a process that
    /// does not depend on a lease: it is killed only when the worker has ended.
    pub(crate) fn mark(&self, proven_ms: Option<i64>) -> String {
        match proven_ms {
            Some(proven_ms) => format!("{proven_ms} {}", self.0),
            None => format!("{NO_LEASE} {}", self.0),
        }
    }

    /// Parses a mark. `None` if it is of another start of the worker. An unreadable lease counts as the oldest one, so
    /// that the process is killed rather than spared.
    #[cfg(target_os = "linux")]
    pub(crate) fn parse_mark(&self, mark: &[u8]) -> Option<StartedUnder> {
        let (lease, id) = std::str::from_utf8(mark).ok()?.split_once(' ')?;
        if id != self.0 {
            return None;
        }
        Some(match lease {
            NO_LEASE => StartedUnder::NoLease,
            proven_ms => StartedUnder::Lease(proven_ms.parse().unwrap_or(i64::MIN)),
        })
    }
}

/// The lease under which a process was started.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartedUnder {
    /// The lease that was proven at this time, in milliseconds on the boot clock.
    Lease(i64),
    NoLease,
}
