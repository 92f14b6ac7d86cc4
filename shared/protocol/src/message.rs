//! The messages.

use std::sync::Arc;

use cueline_model::{
    AttemptEvent, AttemptId, Block, DurationMs, ExecutorName, Fence, GroupName, HandlerSpec,
    Heartbeat, JobId, JobName, OnLost, RunId, RunKind, Scope, Shard, StoreId, Timestamp,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the wire format.
pub const VERSION: u32 = 1;

/// Why a message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is not JSON of the right shape.
    #[error("failed to read the message: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It was written in a version that this build does not know.
    #[error("failed to read the message: its version is {0}, this build reads version {VERSION}")]
    Version(u32),
}

/// What a trigger says about its job: the same for all runs of one version of the definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSnapshot {
    /// The job.
    pub id: JobId,
    /// Its name.
    pub name: JobName,
    /// Version of its definition.
    pub version: i64,
    /// What to run.
    pub handler: HandlerSpec,
    /// What to do when the lane is busy.
    pub block: Block,
    /// Which triggers share a lane.
    pub scope: Scope,
    /// The most triggers that wait in the lane.
    pub backlog: u32,
    /// The longest an attempt may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationMs>,
    /// Time between the polite and the final stop.
    pub kill_grace: DurationMs,
    /// What to report of an attempt that was started before a crash of the worker.
    pub on_lost: OnLost,
    /// What becomes of a running attempt when the executor cannot reach the schedulers.
    #[serde(default, skip_serializing_if = "Fence::is_default")]
    pub fence: Fence,
    /// 0–9, the higher goes first where several lanes wait for room.
    pub priority: u8,
    /// Each shard is a lane of its own, because one executor may hold several shards of one fire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lane_per_shard: bool,
}

/// Orders one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trigger {
    /// [`VERSION`].
    pub v: u32,
    /// The store that the run is in.
    pub store: StoreId,
    /// The run.
    pub run: RunId,
    /// The attempt, from 1. (store, run, attempt) is the trigger's identity.
    pub attempt: u32,
    /// The group of the executor that it is for.
    pub group: GroupName,
    /// The executor that it is for.
    pub executor: ExecutorName,
    /// What made the run.
    pub kind: RunKind,
    /// The fire time.
    pub fire_at: Timestamp,
    /// Which part of the work.
    pub shard: Shard,
    /// Parameter text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// What is the same for all runs of the job.
    pub job: Arc<JobSnapshot>,
    /// An executor that does not know the attempt refuses it after this time, so that a copy of an old trigger is worthless once executors have
    /// forgotten the attempt. Schedulers publish a refused trigger again with a new deadline.
    pub deadline: Timestamp,
    /// Ed25519 signature, base64; see [`crate::sign`]. The last field, because it covers everything before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl Trigger {
    /// The attempt that it orders.
    pub const fn attempt_id(&self) -> AttemptId {
        AttemptId {
            run: self.run,
            attempt: self.attempt,
        }
    }
}

/// What an executor reports about one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportMessage {
    /// [`VERSION`].
    pub v: u32,
    /// The store that the run is in, as its trigger said.
    pub store: StoreId,
    /// The run.
    pub run: RunId,
    /// The attempt.
    pub attempt: u32,
    /// The executor that reports.
    pub executor: ExecutorName,
    /// What happened.
    pub event: AttemptEvent,
}

impl ReportMessage {
    /// The attempt that the report is about.
    pub const fn attempt_id(&self) -> AttemptId {
        AttemptId {
            run: self.run,
            attempt: self.attempt,
        }
    }
}

/// A heartbeat on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatMessage {
    /// [`VERSION`].
    pub v: u32,
    /// What it announces.
    #[serde(flatten)]
    pub heartbeat: Heartbeat,
}

/// A request to trigger a job, published by any client with the right to do so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerRequest {
    /// [`VERSION`].
    pub v: u32,
    /// The job.
    pub job: JobName,
    /// Parameter text in place of the job's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// A second request for the job with the same key makes no second run. A broker may deliver a request twice: without a key it then
    /// counts twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When to run; now by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Who asks, for the timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A control message to one executor. Schedulers send the first two kinds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Control {
    /// Ends this run, whatever its state at the executor.
    Cancel {
        /// [`VERSION`].
        v: u32,
        /// The store that the run is in.
        store: StoreId,
        /// The run.
        run: RunId,
    },
    /// Asks which of these attempts the executor has in its journal. Answered with [`HoldingsReply`].
    Holdings {
        /// [`VERSION`].
        v: u32,
        /// The store that the runs are in.
        store: StoreId,
        /// The attempts asked for.
        attempts: Vec<AttemptId>,
    },
    /// An executor sends it to itself right after a [`HeartbeatMessage`], on the same connection. When it returns, the heartbeat has reached the
    /// broker.
    Echo {
        /// [`VERSION`].
        v: u32,
        /// The start of the process that sent it; other incarnations ignore it.
        incarnation: String,
        /// Number of the heartbeat within that incarnation.
        number: u64,
    },
}

/// The answer to [`Control::Holdings`]: those of the attempts asked for that are in the executor's journal, ended or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingsReply {
    /// [`VERSION`].
    pub v: u32,
    /// The attempts that are in its journal.
    pub held: Vec<AttemptId>,
}

/// A message that says its version.
pub trait Versioned {
    /// The version it was written in.
    fn version(&self) -> u32;
}

macro_rules! versioned {
    ($($type:ty),*) => { $(impl Versioned for $type { fn version(&self) -> u32 { self.v } })* };
}
versioned!(
    Trigger,
    TriggerRequest,
    ReportMessage,
    HeartbeatMessage,
    HoldingsReply
);

impl Versioned for Control {
    fn version(&self) -> u32 {
        match self {
            Self::Cancel { v, .. } | Self::Holdings { v, .. } | Self::Echo { v, .. } => *v,
        }
    }
}

/// Reads a message and checks its version.
pub fn decode<T: DeserializeOwned + Versioned>(payload: &[u8]) -> Result<T, DecodeError> {
    #[derive(Deserialize)]
    struct Head {
        v: u32,
    }
    match serde_json::from_slice::<T>(payload) {
        Ok(message) if message.version() == VERSION => Ok(message),
        Ok(message) => Err(DecodeError::Version(message.version())),
        // A message of another version need not have this one's shape: then its version is what is wrong with it.
        Err(e) => match serde_json::from_slice::<Head>(payload) {
            Ok(head) if head.v != VERSION => Err(DecodeError::Version(head.v)),
            _ => Err(e.into()),
        },
    }
}

/// Writes a message.
#[expect(
    clippy::missing_panics_doc,
    reason = "messages have string keys only, so writing them cannot fail"
)]
pub fn encode<T: Serialize + Versioned>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message)
        .expect("messages have string keys only, so writing them cannot fail")
}

/// Reads a message of one or several [`ReportMessage`]s, one to a line, each by itself. JSON as [`encode`] writes it has no line feeds in it; one
/// at the very end means nothing.
pub fn decode_reports(payload: &[u8]) -> impl Iterator<Item = Result<ReportMessage, DecodeError>> {
    let lines = payload.strip_suffix(b"\n").unwrap_or(payload);
    lines.split(|byte| *byte == b'\n').map(decode)
}
