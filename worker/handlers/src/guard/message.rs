//! The lines that a worker writes to its guard.

use cueline_worker::LeaseDeadline;

/// Written when the worker has stopped all its processes.
const DISMISSED: &str = "done";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuardMessage {
    /// The lease was renewed.
    Lease(LeaseDeadline),
    /// The guard ends without killing anything.
    Dismissed,
}

impl GuardMessage {
    /// The line, including its line end.
    pub(super) fn line(self) -> String {
        match self {
            Self::Lease(lease) => format!("{} {}\n", lease.proven_ms, lease.end_by_ms),
            Self::Dismissed => format!("{DISMISSED}\n"),
        }
    }

    /// Parses a line without its line end. `None` if it is unknown.
    pub(super) fn parse(line: &str) -> Option<Self> {
        if line == DISMISSED {
            return Some(Self::Dismissed);
        }
        let (proven_ms, end_by_ms) = line.split_once(' ')?;
        Some(Self::Lease(LeaseDeadline {
            proven_ms: proven_ms.parse().ok()?,
            end_by_ms: end_by_ms.parse().ok()?,
        }))
    }
}
