//! The rows of the journal.

use bytes::Bytes;
use cueline_model::{JobName, Session};

use super::error::JournalError;
use crate::identity::AttemptKey;

/// How far an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum EntryState {
    /// It waits in its lane.
    Accepted = 0,
    /// Its handler was started.
    Started = 1,
    /// It has an outcome.
    Ended = 2,
    /// The broker has confirmed the outcome.
    Reported = 3,
}

impl TryFrom<i64> for EntryState {
    type Error = JournalError;

    fn try_from(code: i64) -> Result<Self, JournalError> {
        match code {
            0 => Ok(Self::Accepted),
            1 => Ok(Self::Started),
            2 => Ok(Self::Ended),
            3 => Ok(Self::Reported),
            other => Err(JournalError::Corrupt(format!("state {other}"))),
        }
    }
}

/// The newest attempt of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: AttemptKey,
    pub(crate) state: EntryState,
    /// Order of acceptance.
    pub(crate) seq: i64,
    /// When the attempt came into this state, by the wall clock.
    pub(crate) at_ms: i64,
    /// Reports are published under the job's name. A write without it keeps the one that is there.
    pub(crate) job: Option<JobName>,
    /// What the run fires, see [`fire_of`](crate::identity::fire_of). `None` if the entry was written without its
    /// trigger. A write without it keeps the one that is there.
    pub(crate) fire: Option<i64>,
    /// The trigger, verified, and without its signature. Kept in a table of its own while the attempt waits, and ignored in
    /// later states.
    pub(crate) trigger: Option<Bytes>,
    /// The outcome as JSON. A write without it keeps the one that is there.
    pub(crate) outcome: Option<String>,
}

/// The last proof of the worker's broker lease, for the next start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// By the wall clock.
    pub(crate) wall_ms: i64,
    /// By the boot clock.
    pub(crate) boot_ms: i64,
    /// The boot that `boot_ms` belongs to.
    pub(crate) boot_id: String,
    /// The session that goes on if the lease is resumed.
    pub(crate) session: Session,
}
