//! The messages.

use std::sync::Arc;

use cueline_model::{
    Block, DurationMs, ExecutorName, Fence, GroupName, HandlerSpec, JobId, JobName, OnLost,
    Outcome, RunId, RunKind, Scope, Shard, StoreId, Timestamp,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the wire format that this build writes and reads.
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

/// The part of a trigger that is the same for all runs of one version of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobPart {
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
    /// What the lane spans.
    #[serde(default)]
    pub scope: Scope,
    /// The most triggers that wait in the lane.
    pub backlog: u32,
    /// The longest an attempt may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationMs>,
    /// Time between the polite and the final stop.
    pub kill_grace: DurationMs,
    /// What to report of an attempt that was started before a crash of the worker.
    #[serde(default)]
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

/// The order to make one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trigger {
    /// [`VERSION`].
    pub v: u32,
    /// The store that the run is in; absent from schedulers that do not tell yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreId>,
    /// The run.
    pub run: RunId,
    /// The attempt, from 1. (store, run, attempt) is the trigger's identity.
    pub attempt: u32,
    /// The group of the executor that it is for; absent from schedulers that do not tell yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
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
    pub job: Arc<JobPart>,
    /// An executor that does not know the attempt does not take it after this time: a trigger that somebody kept is worth nothing once
    /// executors have forgotten the attempt. Schedulers publish again what was refused so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Ed25519 signature, base64; see [`crate::sign`]. The last field, because it covers everything before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// What an executor reports about one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// [`VERSION`].
    pub v: u32,
    /// The store that the run is in, as its trigger said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreId>,
    /// The run.
    pub run: RunId,
    /// The attempt.
    pub attempt: u32,
    /// Who reports.
    pub executor: ExecutorName,
    /// What.
    #[serde(rename = "event")]
    pub body: EventBody,
}

/// What an executor reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventBody {
    /// The handler runs; sent when it outlives 500 ms.
    Started {
        /// Since when.
        at: Timestamp,
    },
    /// How far it is.
    Progress {
        /// 0 to 1.
        fraction: f64,
    },
    /// Lines of its log, in order.
    Log {
        /// The lines.
        lines: Vec<LogLine>,
    },
    /// It ended.
    Ended {
        /// How.
        outcome: Outcome,
    },
}

/// Where a log line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
    /// The handler's logger, or the worker itself.
    Log,
}

impl Stream {
    /// The word in messages and stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
            Self::Log => "log",
        }
    }
}

/// A line of a run's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Number of the line within the attempt, from 0, without gaps but where lines were dropped.
    pub seq: u64,
    /// When it was written.
    pub at: Timestamp,
    /// Where it came from.
    pub stream: Stream,
    /// The line, without its end; lossily decoded where it was not UTF-8.
    pub text: String,
}

/// A sign of life of an executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// [`VERSION`].
    pub v: u32,
    /// Its group.
    pub group: GroupName,
    /// Its name.
    pub name: ExecutorName,
    /// Differs after each start of the process.
    pub incarnation: String,
    /// What it can run, see [`HandlerSpec::capability`].
    pub capabilities: Vec<String>,
    /// Handlers that it runs at once at the most.
    pub capacity: u32,
    /// Triggers that it holds and has not ended.
    pub held: u64,
    /// Of these, how many run.
    pub running: u64,
    /// It takes no more triggers: it is about to stop.
    #[serde(default)]
    pub draining: bool,
    /// The executor has stopped, in order; it is not to be waited for.
    #[serde(default)]
    pub gone: bool,
}

/// A request to trigger a job, as anybody who may publishes it.
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

/// An order to one executor. Of these, schedulers send the first two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Control {
    /// End this run, whatever its state here.
    Cancel {
        /// [`VERSION`].
        v: u32,
        /// The store that the run is in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<StoreId>,
        /// The run.
        run: RunId,
    },
    /// Which of these runs does it hold? Answered with [`ControlReply`].
    Holdings {
        /// [`VERSION`].
        v: u32,
        /// The store that the runs are in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<StoreId>,
        /// The attempts asked for.
        runs: Vec<Holding>,
    },
    /// What an executor sends to itself right after a [`Beat`], on the same way: when it comes back, the beat has reached the broker.
    Echo {
        /// [`VERSION`].
        v: u32,
        /// Which start of the process has sent it; others ignore it.
        incarnation: String,
        /// Counts the beats of that incarnation.
        number: u64,
    },
}

/// An attempt, by identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holding {
    /// The run.
    pub run: RunId,
    /// The attempt.
    pub attempt: u32,
}

/// The answer to [`Control::Holdings`]: those of the attempts asked for that are in the executor's journal, ended or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlReply {
    /// [`VERSION`].
    pub v: u32,
    /// What it holds.
    pub held: Vec<Holding>,
}

/// A message that says its version.
pub trait Versioned {
    /// The version it was written in.
    fn version(&self) -> u32;
}

macro_rules! versioned {
    ($($type:ty),*) => { $(impl Versioned for $type { fn version(&self) -> u32 { self.v } })* };
}
versioned!(Trigger, TriggerRequest, Event, Beat, ControlReply);

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

/// Reads a message of one or several [`Event`]s, one to a line, each by itself. JSON as [`encode`] writes it has no line feeds in it; one
/// at the very end means nothing.
pub fn decode_events(payload: &[u8]) -> impl Iterator<Item = Result<Event, DecodeError>> {
    let lines = payload.strip_suffix(b"\n").unwrap_or(payload);
    lines.split(|byte| *byte == b'\n').map(decode)
}
