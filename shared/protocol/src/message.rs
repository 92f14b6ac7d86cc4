//! The messages between schedulers and workers.

use std::sync::Arc;

use cueline_model::{
    AttemptEvent, AttemptId, Block, DurationMs, ExecutorName, Fence, GroupName, HandlerSpec,
    Heartbeat, JobId, JobName, OnLost, RunId, RunKind, Scope, Session, Shard, StoreId, Timestamp,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::origin::{EnrolmentClaim, RotationClaim, WorkerKeyId};
use crate::trigger_signature::TriggerSignature;

/// The version of the wire format.
pub const VERSION: u32 = 1;

/// The beginning of the reason for which an executor refuses a trigger whose run id it knows from another run. It holds
/// that run under the same id, not the trigger's.
pub const KNOWN_FROM_ANOTHER_RUN: &str = "failed to accept the trigger: this worker knows run ";

/// The beginning of the reason for which a receiver refuses a message that its build cannot read. Each [`DecodeError`]
/// begins with it.
pub const UNREADABLE: &str = "failed to read the message: ";

/// Why a message could not be read. The texts begin with [`UNREADABLE`].
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The payload is not JSON of the expected shape.
    #[error("failed to read the message: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The message has a version that this build does not know.
    #[error("failed to read the message: its version is {0}, this build reads version {VERSION}")]
    Version(u32),
}

/// What is left out of a trigger, because nearly all jobs have it. A trigger travels twice through the broker, and stands in
/// the worker's journal. These are values of the wire format: another default of jobs does not change them.
mod usual {
    use cueline_model::{Block, DurationMs, OnLost, Shard};

    pub(super) const BLOCK: Block = Block::Serial;
    pub(super) const BACKLOG: u32 = 1_000;
    pub(super) const KILL_GRACE: DurationMs = DurationMs(5_000);
    pub(super) const ON_LOST: OnLost = OnLost::Fail;
    pub(super) const PRIORITY: u8 = 5;

    pub(super) const fn block() -> Block {
        BLOCK
    }

    pub(super) const fn backlog() -> u32 {
        BACKLOG
    }

    pub(super) const fn kill_grace() -> DurationMs {
        KILL_GRACE
    }

    pub(super) const fn on_lost() -> OnLost {
        ON_LOST
    }

    pub(super) const fn priority() -> u8 {
        PRIORITY
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn is_block(block: &Block) -> bool {
        *block == BLOCK
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn is_backlog(backlog: &u32) -> bool {
        *backlog == BACKLOG
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn is_kill_grace(kill_grace: &DurationMs) -> bool {
        *kill_grace == KILL_GRACE
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn is_on_lost(on_lost: &OnLost) -> bool {
        *on_lost == ON_LOST
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn is_priority(priority: &u8) -> bool {
        *priority == PRIORITY
    }

    pub(super) fn is_whole(shard: &Shard) -> bool {
        *shard == Shard::whole()
    }
}

/// The part of a trigger that is the same for all runs of one version of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSnapshot {
    /// The job.
    pub id: JobId,
    /// The job's name.
    pub name: JobName,
    /// The version of the definition.
    pub version: i64,
    /// What to run.
    pub handler: HandlerSpec,
    /// The treatment of a trigger that meets a busy lane.
    #[serde(default = "usual::block", skip_serializing_if = "usual::is_block")]
    pub block: Block,
    /// Which triggers share a lane.
    pub scope: Scope,
    /// The most triggers that may wait in the lane.
    #[serde(default = "usual::backlog", skip_serializing_if = "usual::is_backlog")]
    pub backlog: u32,
    /// The longest time that an attempt may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationMs>,
    /// The time between SIGTERM and SIGKILL.
    #[serde(
        default = "usual::kill_grace",
        skip_serializing_if = "usual::is_kill_grace"
    )]
    pub kill_grace: DurationMs,
    /// The report for an attempt that was running when the worker crashed.
    #[serde(default = "usual::on_lost", skip_serializing_if = "usual::is_on_lost")]
    pub on_lost: OnLost,
    /// What happens to a running attempt when the executor cannot reach the schedulers.
    #[serde(default, skip_serializing_if = "Fence::is_default")]
    pub fence: Fence,
    /// 0–9. If several lanes wait for capacity, the highest goes first.
    #[serde(
        default = "usual::priority",
        skip_serializing_if = "usual::is_priority"
    )]
    pub priority: u8,
    /// Whether each shard has its own lane. One executor may hold several shards of one fire time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lane_per_shard: bool,
}

/// Orders one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trigger {
    /// [`VERSION`].
    pub v: u32,
    /// The store that contains the run.
    pub store: StoreId,
    /// The run.
    pub run: RunId,
    /// The number of the attempt, from 1. The triple (store, run, attempt) identifies the trigger.
    pub attempt: u32,
    /// The group of the target executor.
    pub group: GroupName,
    /// The name of the target executor.
    pub executor: ExecutorName,
    /// What created the run.
    pub kind: RunKind,
    /// The fire time.
    pub fire_at: Timestamp,
    /// The place of the attempt in its lane, if it is not the fire time: a retry joins at the end of its lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_at: Option<Timestamp>,
    /// The part of the work.
    #[serde(default = "Shard::whole", skip_serializing_if = "usual::is_whole")]
    pub shard: Shard,
    /// The parameter text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// The part that is the same for all runs of the job.
    pub job: Arc<JobSnapshot>,
    /// The executor's session for which the trigger was written. Executors with a lease return triggers without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// After this time an executor refuses the trigger if it does not know the attempt. A copy of an old trigger is
    /// therefore worthless once executors have forgotten the attempt. Schedulers publish a refused trigger again with a
    /// new deadline.
    pub deadline: Timestamp,
    /// The signature of the schedulers; see [`crate::sign`]. It is the last field, because it covers everything before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<TriggerSignature>,
}

impl Trigger {
    /// The attempt that the trigger orders.
    pub const fn attempt_id(&self) -> AttemptId {
        AttemptId {
            run: self.run,
            attempt: self.attempt,
        }
    }
}

/// A report of an executor about one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportMessage {
    /// [`VERSION`].
    pub v: u32,
    /// The store that contains the run, as the trigger named it.
    pub store: StoreId,
    /// The run.
    pub run: RunId,
    /// The attempt.
    pub attempt: u32,
    /// The group of the executor that reports.
    pub group: GroupName,
    /// The name of the executor that reports.
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
    /// The announced state.
    #[serde(flatten)]
    pub heartbeat: Heartbeat,
    /// The sending process. Without it, schedulers cannot tell two processes under one name apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<HeartbeatSender>,
    /// The times of the worker's broker lease. `None` if it has none, because its schedulers run in the same process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseTimes>,
    /// Asks schedulers to admit the executor's key. It is repeated until [`Control::Enrolled`] arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrolment: Option<EnrolmentClaim>,
    /// Asks schedulers to admit another key in place of the one that seals this heartbeat. It is repeated until
    /// [`Control::Enrolled`] arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationClaim>,
    /// Asks schedulers to say whether they accept the key that seals this heartbeat, because they refused it earlier. It
    /// is repeated until [`Control::Enrolled`] arrives. A claim asks the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirm_key: bool,
}

/// The process that sent a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatSender {
    /// The process.
    #[serde(flatten)]
    pub process: WorkerProcess,
    /// When it sent the heartbeat, by its own clock.
    pub sent_at: Timestamp,
    /// The number of the heartbeat. It ascends within an incarnation, so schedulers know an old heartbeat again.
    pub number: u64,
}

/// A worker process, for operators who look for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerProcess {
    /// The name of its machine, if it knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its process id on that machine.
    pub pid: u32,
    /// When it started, by its own clock.
    pub started_at: Timestamp,
}

/// One start of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// [`Heartbeat::incarnation`].
    pub incarnation: String,
    /// Its process.
    #[serde(flatten)]
    pub process: WorkerProcess,
}

/// The times of a worker's broker lease, in milliseconds. Schedulers compare them with their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTimes {
    /// After this time without the broker, the worker stops its attempts.
    pub fence_after_ms: u64,
    /// The worker assumes that schedulers give its attempts to others after this silence.
    pub failover_after_ms: u64,
}

/// A request to trigger a job, which any client with the permission may publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerRequest {
    /// [`VERSION`].
    pub v: u32,
    /// The job.
    pub job: JobName,
    /// A parameter text that replaces the job's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// Two requests for the job with the same key create one run. A broker may deliver a request twice; without a key
    /// that creates two runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When the run is due; now by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The requester, for the timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A control message to one executor. Schedulers send all kinds but [`Echo`](Self::Echo).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Control {
    /// Cancels this run, whatever its state at the executor.
    Cancel {
        /// [`VERSION`].
        v: u32,
        /// The store that the run is in.
        store: StoreId,
        /// The run.
        run: RunId,
    },
    /// Asks which of these attempts are in the executor's journal. The answer is a [`HoldingsReply`].
    Holdings {
        /// [`VERSION`].
        v: u32,
        /// The store that the runs are in.
        store: StoreId,
        /// A random number in 16 hexadecimal digits. Answers with another one answer another question.
        nonce: String,
        /// The attempts in question.
        attempts: Vec<AttemptId>,
    },
    /// An executor sends it to itself right after a [`HeartbeatMessage`], on the same connection. Its return proves
    /// that the heartbeat has reached the broker.
    Echo {
        /// [`VERSION`].
        v: u32,
        /// Identifies the start of the sending process. Other incarnations ignore the message.
        incarnation: String,
        /// The number of the heartbeat within that incarnation.
        number: u64,
    },
    /// Two processes run under this executor's name. The refused one stops (G5).
    NameConflict {
        /// [`VERSION`].
        v: u32,
        /// The process that started first. It goes on.
        kept: Incarnation,
        /// The other one. Schedulers ignore its heartbeats.
        refused: Incarnation,
    },
    /// Schedulers accept what the executor seals with this key. The answer to a claim or a question in a heartbeat.
    Enrolled {
        /// [`VERSION`].
        v: u32,
        /// The key of the claim, or the one that has sealed the heartbeat.
        key: WorkerKeyId,
    },
    /// Schedulers accept nothing that is sealed with this key. They refused its claim, or a heartbeat without a claim.
    NotEnrolled {
        /// [`VERSION`].
        v: u32,
        /// The key of the claim, or the one that the heartbeat names.
        key: WorkerKeyId,
        /// What is wrong with the claim or the key.
        reason: String,
    },
}

/// The answer to [`Control::Holdings`]: the requested attempts that are in the executor's journal, ended or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingsReply {
    /// [`VERSION`].
    pub v: u32,
    /// The nonce of the question.
    pub nonce: String,
    /// The attempts in the journal.
    pub held: Vec<AttemptId>,
    /// How far the executor has read its queue: the deadline of the last trigger of this store that it has taken from
    /// there and handled. Queues are in order of publication. So a trigger that was published well before that one was
    /// written is in the journal or lost, unless the broker delivers it again. `None` if the executor has taken no
    /// trigger since its start, or does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_until: Option<Timestamp>,
    /// The executor has forgotten attempts of this store whose ends it reported until then, by its clock. An attempt
    /// that was published earlier and that is not in `held` may be one of them. `None` if it has forgotten none, or does
    /// not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten_until: Option<Timestamp>,
    /// Whether the executor may have received triggers that it has not handled yet, such as after its disk was full. An
    /// empty queue then proves nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
}

/// A record of an executor's start log. The log tells the failover which attempts may have started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum StartRecord {
    /// A scheduler writes it before each mark. Its confirmation shows that the log exists.
    Declaration {
        /// [`VERSION`].
        v: u32,
        /// Identifies it among all declarations.
        id: String,
    },
    /// A scheduler writes it when it has declared the log of an executor that is new to it, or one without records. It
    /// counts only in the log that has its declaration: that log has existed since before `at`.
    Mark {
        /// [`VERSION`].
        v: u32,
        /// The id of its declaration.
        declaration: String,
        /// The database's time after the declaration was confirmed. The log has the starts of all attempts that were
        /// marked `dispatching` later.
        at: Timestamp,
    },
    /// Attempts whose handlers run as soon as the broker has confirmed this record.
    Starts {
        /// [`VERSION`].
        v: u32,
        /// Identifies the start of the executor's process.
        incarnation: String,
        /// The executor's session.
        session: Session,
        /// The number of the record within the incarnation and session, from 0. A record that the broker did not
        /// confirm is written again with the same number.
        number: u64,
        /// The time of the executor's clock.
        at: Timestamp,
        /// The store of the attempts.
        store: StoreId,
        /// The attempts.
        attempts: Vec<AttemptId>,
    },
}

/// A message that states its version.
pub trait Versioned {
    /// The version of the message's format.
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

impl Versioned for StartRecord {
    fn version(&self) -> u32 {
        match self {
            Self::Declaration { v, .. } | Self::Mark { v, .. } | Self::Starts { v, .. } => *v,
        }
    }
}

impl Versioned for Control {
    fn version(&self) -> u32 {
        match self {
            Self::Cancel { v, .. }
            | Self::Holdings { v, .. }
            | Self::Echo { v, .. }
            | Self::NameConflict { v, .. }
            | Self::Enrolled { v, .. }
            | Self::NotEnrolled { v, .. } => *v,
        }
    }
}

/// Decodes a message and checks its version.
pub fn decode<T: DeserializeOwned + Versioned>(payload: &[u8]) -> Result<T, DecodeError> {
    #[derive(Deserialize)]
    struct Head {
        v: u32,
    }
    match serde_json::from_slice::<T>(payload) {
        Ok(message) if message.version() == VERSION => Ok(message),
        Ok(message) => Err(DecodeError::Version(message.version())),
        // A message of another version may have another shape. The error then names its version.
        Err(e) => match serde_json::from_slice::<Head>(payload) {
            Ok(head) if head.v != VERSION => Err(DecodeError::Version(head.v)),
            _ => Err(e.into()),
        },
    }
}

/// Encodes a message.
pub fn encode<T: Serialize + Versioned>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    encode_to(message, &mut bytes);
    bytes
}

/// Appends a message in its encoded form.
pub(crate) fn encode_to<T: Serialize + Versioned>(message: &T, bytes: &mut Vec<u8>) {
    serde_json::to_writer(bytes, message)
        .expect("messages have string keys only, so writing them cannot fail");
}
