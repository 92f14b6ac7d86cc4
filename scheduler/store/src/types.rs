//! What goes into and comes out of a store.

use std::sync::Arc;

use cueline_model::{
    AttemptEvent, AttemptId, ExecutorId, ExecutorName, GroupName, Heartbeat, Job, JobId, JobName,
    LogLine, RunId, RunKind, RunState, Shard, Timestamp,
};
use serde::{Deserialize, Serialize};

/// A scheduler process, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub i64);

/// The answer to [`Store::register_node`](crate::Store::register_node).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredNode {
    /// The identity of this process.
    pub node: NodeId,
    /// No other node was alive: `startup` jobs were given their runs.
    pub first: bool,
}

/// What an apply did, or would do, to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It did not exist.
    Created,
    /// Its definition differed.
    Updated,
    /// It was like that already.
    Unchanged,
}

/// What an apply did to one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedJob {
    /// The job.
    pub name: JobName,
    /// Its id; absent when it was a dry run and the job does not exist.
    pub id: Option<JobId>,
    /// What happened.
    pub change: Change,
}

/// Which due jobs to fire.
#[derive(Debug, Clone, Copy)]
pub struct FireDueRequest {
    /// Who fires them.
    pub node: NodeId,
    /// Jobs whose next fire time is at most this far in the future, by the database's clock.
    pub horizon_ms: u64,
    /// At most this many jobs in one transaction.
    pub limit: usize,
}

/// What the planner decided for one due job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Runs to write, in the order to publish them.
    pub runs: Vec<PlannedRun>,
    /// When it is next due; `None` when its schedule has no further fire time (or waits for a run to end).
    pub next_fire: Option<Timestamp>,
}

/// A run that the planner wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRun {
    /// The fire time.
    pub fire_at: Timestamp,
    /// When it is to start; later than the fire time by the jitter.
    pub due_at: Timestamp,
    /// Which part of the work.
    pub shard: Shard,
    /// The executor that it is pinned to.
    pub executor: Option<ExecutorName>,
    /// Not to be run: written as `skipped` with this reason.
    pub skipped: Option<SkippedFires>,
}

/// Why a fire time, or several, made no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedFires {
    /// For people.
    pub reason: String,
    /// How many fire times this one stands for, itself included.
    pub count: u64,
    /// The first of them; the run's own fire time is the last.
    pub since: Timestamp,
}

/// What one call of [`Store::fire_due`](crate::Store::fire_due) did.
#[derive(Debug, Clone, Default)]
pub struct FiredRuns {
    /// The runs written and now claimed by the calling node, skipped ones left out, ordered by due time, then
    /// priority (high first), then id.
    pub runs: Vec<ClaimedRun>,
    /// How many jobs were due.
    pub due_jobs: usize,
    /// The limit was reached: there may be more.
    pub limit_reached: bool,
}

/// A run that a node has to bring to an executor.
#[derive(Debug, Clone)]
pub struct ClaimedRun {
    /// The run.
    pub id: RunId,
    /// The attempt to make.
    pub attempt: u32,
    /// Its job, in the version current at the time of the claim.
    pub job: Arc<Job>,
    /// What made it.
    pub kind: RunKind,
    /// The fire time.
    pub fire_at: Timestamp,
    /// When to start.
    pub due_at: Timestamp,
    /// Which part of the work.
    pub shard: Shard,
    /// Parameter text in place of the job's own.
    pub params: Option<String>,
    /// The executor that it is pinned to (`broadcast`), or, with `maybe_published`, was routed to.
    pub executor: Option<ExecutorName>,
    /// Number of this run among all runs of its job, from 0, for `round`.
    pub sequence: u64,
    /// A node died while it published this attempt: it may be in the executor's queue already. It has to go to the same executor
    /// again, as the same attempt.
    pub maybe_published: bool,
}

impl ClaimedRun {
    /// The attempt to make.
    pub const fn attempt_id(&self) -> AttemptId {
        AttemptId {
            run: self.id,
            attempt: self.attempt,
        }
    }
}

/// An attempt that is about to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchRequest {
    /// The attempt.
    pub attempt: AttemptId,
    /// The version of the job that the trigger was made from.
    pub job_version: i64,
    /// The executor that it is routed to.
    pub executor: ExecutorName,
}

/// A line of a run's log, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLogLine {
    /// Position in the log of the whole run, ascending over its attempts. Pass the last one to read what follows.
    pub cursor: i64,
    /// The attempt that wrote the line.
    pub attempt: u32,
    /// The line.
    #[serde(flatten)]
    pub line: LogLine,
}

/// What an executor reported, or the scheduler found out, about one attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReport {
    /// The attempt.
    pub attempt: AttemptId,
    /// The executor that reports; `None` for the scheduler itself.
    pub executor: Option<ExecutorName>,
    /// What happened.
    pub event: AttemptEvent,
}

/// What became of a batch of reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IngestSummary {
    /// Runs that reached a terminal state.
    pub ended: usize,
    /// Runs that go on with another attempt.
    pub rescheduled: usize,
    /// Reports that changed nothing: late, repeated, or of an attempt that is over.
    pub ignored: usize,
    /// Child runs written.
    pub child_runs: usize,
    /// The earliest due time of what has to be dispatched because of this batch.
    pub next_due_at: Option<Timestamp>,
}

/// An executor as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executor {
    /// What its last heartbeat announced; capabilities are sorted.
    #[serde(flatten)]
    pub heartbeat: Heartbeat,
    /// When that heartbeat was stored, by the database's clock.
    pub last_heartbeat_at: Timestamp,
}

/// An attempt that an executor should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutstandingAttempt {
    /// The attempt.
    pub attempt: AttemptId,
    /// `queued` or `running`.
    pub state: RunState,
    /// When the broker confirmed its trigger.
    pub queued_at: Timestamp,
    /// The executor that its trigger was published to.
    pub executor: ExecutorId,
}

/// A cancellation that has been asked for and has not taken effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCancellation {
    /// The run.
    pub run: RunId,
    /// The executor that its trigger was published to.
    pub executor: ExecutorId,
}

/// What became of a wish to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelOutcome {
    /// It is cancelled: it had not been published.
    Cancelled,
    /// Its executor has to be told; the run ends soon.
    Requested,
    /// It had ended already, in this state.
    AlreadyEnded(RunState),
}

/// A wish to run a job now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerRequest {
    /// The job.
    pub job: JobName,
    /// Parameter text in place of the job's own.
    pub params: Option<String>,
    /// A second request with the same key for the same job makes no second run.
    pub idempotency_key: Option<String>,
    /// When to run; now by default.
    pub run_at: Option<Timestamp>,
    /// Who asks, for the timeline.
    pub by: String,
}

/// What a trigger request made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerOutcome {
    /// The runs, one for each shard.
    pub runs: Vec<RunId>,
    /// They existed already: the idempotency key had been used.
    pub duplicate: bool,
}

/// A run, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The run.
    pub id: RunId,
    /// Its job.
    pub job_id: JobId,
    /// Its job's name.
    pub job: JobName,
    /// Its job's group.
    pub group: GroupName,
    /// What made it.
    pub kind: RunKind,
    /// Where it is.
    pub state: RunState,
    /// The current or last attempt.
    pub attempt: u32,
    /// Retries used up.
    pub retries: u32,
    /// The fire time.
    pub fire_at: Timestamp,
    /// When the current attempt is due.
    pub due_at: Timestamp,
    /// Which part of the work.
    pub shard: Shard,
    /// The executor of the current or last attempt.
    pub executor: Option<ExecutorName>,
    /// Parameter text in place of the job's own.
    pub params: Option<String>,
    /// When it was written down.
    pub created_at: Timestamp,
    /// When the broker confirmed the current or last trigger.
    pub queued_at: Option<Timestamp>,
    /// When the handler of the current or last attempt started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Exit status of the last attempt.
    pub exit_status: Option<i32>,
    /// Why it ended as it did.
    pub message: Option<String>,
    /// What it returned.
    pub output: Option<String>,
    /// How far it is, 0 to 1.
    pub progress: Option<f64>,
    /// Its cancellation has been asked for.
    pub cancel_requested: bool,
    /// The run whose success made it.
    pub parent: Option<RunId>,
}

/// Something out of the ordinary that happened to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// When.
    pub at: Timestamp,
    /// The attempt.
    pub attempt: u32,
    /// What: `retry`, `rerun`, `returned`, `republished`, `cancel`, `refused`, `skipped`, …
    pub event: String,
    /// Details, for people.
    pub detail: String,
}

/// A run with its timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDetail {
    /// The run.
    #[serde(flatten)]
    pub run: Run,
    /// What was out of the ordinary, oldest first.
    pub timeline: Vec<TimelineEntry>,
}

/// Which runs to list; newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Of this job.
    pub job: Option<JobName>,
    /// In one of these states; empty means any.
    pub states: Vec<RunState>,
    /// With an id below this one: for the next page.
    pub before: Option<RunId>,
    /// At most so many.
    pub limit: usize,
}

/// A job with what a list shows of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// The job.
    #[serde(flatten)]
    pub job: Arc<Job>,
    /// When it is next due.
    pub next_fire: Option<Timestamp>,
    /// Its newest run that has started or ended.
    pub last: Option<Run>,
    /// How many runs of the last 24 hours are in which state; states without runs are left out.
    pub day: Vec<(RunState, u64)>,
}

/// One expected fire time of a past window and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The fire time.
    pub fire_at: Timestamp,
    /// The run that stands for it; `None` means that it is missing, which must not happen to an enabled job.
    pub run: Option<RunId>,
    /// The run's shard.
    pub shard: Option<u32>,
    /// The run's state.
    pub state: Option<RunState>,
}

/// Numbers about the whole store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// Jobs that exist.
    pub jobs: u64,
    /// Runs that have not ended, by state.
    pub live: Vec<(RunState, u64)>,
    /// How far the oldest run that is due and still `scheduled` is behind.
    pub oldest_due_ms: Option<u64>,
}

/// A message that nobody could take, on its way into the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The same for each delivery of the same dead letter: a second one is not kept.
    pub key: String,
    /// The queue it was in, as the broker displays it.
    pub queue: String,
    /// Its topic: the job's name, where it was a trigger.
    pub topic: String,
    /// Why it could not be taken.
    pub reason: String,
    /// When it was put aside, by the broker's clock.
    pub at: Timestamp,
    /// The message as it was.
    pub payload: Vec<u8>,
}

/// A message that nobody could take, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Its number here, growing.
    pub id: i64,
    /// The queue it was in, as the broker displays it.
    pub queue: String,
    /// Its topic.
    pub topic: String,
    /// Why it could not be taken.
    pub reason: String,
    /// When it was put aside.
    pub at: Timestamp,
    /// The message as it was.
    pub payload: Vec<u8>,
}

/// So many dead letters are kept; past it the oldest make room.
pub const MAX_DEAD_LETTERS: usize = 100_000;
