//! Identity of runs and attempts across stores.
//!
//! Run ids start again in each store. A worker may serve a second store, or a restored one with a new id. It therefore
//! compares runs only together with their store.

use std::fmt;
use std::hash::{Hash, Hasher};

use cueline_model::{AttemptId, RunId, StoreId};
use cueline_protocol::Trigger;

/// A run and its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunKey {
    pub(crate) store: StoreId,
    pub(crate) run: RunId,
}

/// Hashes the run alone. Each trigger is looked up several times, and a worker has runs of few stores.
impl Hash for RunKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.run.hash(state);
    }
}

/// Shows the run id alone: log lines and messages name a run as its store does.
impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}

/// An attempt and its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AttemptKey {
    pub(crate) run: RunKey,
    pub(crate) attempt: u32,
}

impl AttemptKey {
    pub(crate) const fn new(store: StoreId, id: AttemptId) -> Self {
        let run = RunKey { store, run: id.run };
        Self {
            run,
            attempt: id.attempt,
        }
    }

    pub(crate) fn of(trigger: &Trigger) -> Self {
        Self::new(trigger.store, trigger.attempt_id())
    }

    /// The identity within the store.
    pub(crate) const fn id(self) -> AttemptId {
        AttemptId {
            run: self.run.run,
            attempt: self.attempt,
        }
    }
}

/// What a run fires: its job, fire time and shard, in one number. Two triggers of a run have the same one.
///
/// A store that lost commits may give the id of a lost run to another run. The journal compares this number too, so the
/// other run does not get the outcome of the lost one. It is on disk, so it stays the same in all versions: FNV-1a over
/// the little-endian bytes (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>).
pub(crate) fn fire_of(trigger: &Trigger) -> i64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let parts = [
        trigger.job.id.0,
        trigger.fire_at.as_millis(),
        i64::from(trigger.shard.index),
    ];
    let hash = parts
        .iter()
        .flat_map(|part| part.to_le_bytes())
        .fold(OFFSET, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        });
    hash.cast_signed()
}
