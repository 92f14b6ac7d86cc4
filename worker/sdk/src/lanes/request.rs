//! The input and the output of the lanes.

use std::hash::{Hash, Hasher};

use cueline_model::{Block, JobId, RunId, StoreId, Timestamp};
use cueline_protocol::Trigger;

use crate::context::StopReason;
use crate::identity::{AttemptKey, RunKey};

/// Identity of a lane: a job, or one shard of a job whose shards do not wait for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneKey {
    /// Job ids start again in each store.
    pub(crate) store: StoreId,
    pub(crate) job: JobId,
    pub(crate) shard: Option<u32>,
}

/// Hashes the job and the shard alone. Each trigger is looked up several times, and a worker has jobs of few stores.
impl Hash for LaneKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.job, self.shard).hash(state);
    }
}

/// The place of a request in its lane. Schedulers order the runs of a lane in the same way.
pub(super) type Place = (Timestamp, RunId);

/// The part of a trigger that decides where and when the attempt starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneRequest {
    pub(crate) key: AttemptKey,
    pub(crate) lane: LaneKey,
    /// Version of the job. A lane follows the policy of the newest version that it has seen.
    pub(crate) version: i64,
    pub(crate) block: Block,
    pub(crate) backlog: u32,
    pub(crate) priority: u8,
    /// The fire time, and of a retry its due time.
    pub(crate) at: Timestamp,
}

impl LaneRequest {
    pub(super) fn place(&self) -> Place {
        (self.at, self.key.run.run)
    }

    pub(crate) fn of(trigger: &Trigger) -> Self {
        let job = &trigger.job;
        Self {
            key: AttemptKey::of(trigger),
            lane: LaneKey {
                store: trigger.store,
                job: job.id,
                shard: job.lane_per_shard.then_some(trigger.shard.index),
            },
            version: job.version,
            block: job.block,
            backlog: job.backlog,
            priority: job.priority,
            at: trigger.lane_at.unwrap_or(trigger.fire_at),
        }
    }
}

/// Why an attempt ended without having been started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotStarted {
    /// It met a busy `discard` lane.
    LaneBusy,
    /// The lane's backlog, which is this large, was full.
    BacklogFull(u32),
    /// A trigger of another run, given here, replaced it (`cover` policy).
    CoveredBy(RunKey),
    /// A trigger of another run replaced it while its start was being recorded.
    Covered,
    /// Its run was cancelled.
    Cancelled,
    /// This newer attempt of the same run replaced it.
    SupersededBy(u32),
    /// The worker drains.
    Draining,
    /// The worker's broker lease has ended.
    Fenced,
    /// The worker cannot record starts.
    Unrecorded,
    /// Its trigger was written for an earlier session of the worker.
    EarlierSession,
}

/// An action that the caller must carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start the handler.
    Start(AttemptKey),
    /// Ask the running handler to stop. The attempt stays in its lane until
    /// [`Lanes::finished`](super::Lanes::finished).
    Stop(AttemptKey, StopReason),
    /// Report the end of an attempt that was never started.
    End(AttemptKey, NotStarted),
}
