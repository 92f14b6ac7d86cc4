//! Errors of ending processes.

use std::fmt;

/// Why processes could not be ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrphanError {
    /// The processes could not be listed.
    #[error("failed to list the running processes")]
    List(#[source] std::io::Error),
    /// Some processes did not end, or kept starting new ones.
    #[error(
        "failed to end the processes of an earlier start of this worker within 5 s; still running: {0}"
    )]
    Survivors(Pids),
}

/// Process ids, separated by spaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pids(pub Vec<i32>);

impl fmt::Display for Pids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pid")?;
        self.0.iter().try_for_each(|pid| write!(f, " {pid}"))
    }
}

/// The result of [`kill_orphans`](crate::kill_orphans).
pub type Result<T> = std::result::Result<T, OrphanError>;
