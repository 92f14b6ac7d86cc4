//! What the API answers with, as types, for servers and clients alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cueline_model::{Job, JobId, JobName, RunId, RunState, Timestamp};
use cueline_store::{
    AppliedJob, DeadLetter, Executor, JobSummary, LedgerEntry, OutstandingAttempt, Run, StoreStats,
    StoredLogLine,
};
use serde::{Deserialize, Serialize};

use crate::desk::{QueueDepth, Replayed, SinceStart};

/// How many runs are in which state.
pub type Counts = BTreeMap<RunState, u64>;

/// A job with what a list shows of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// The job.
    #[serde(flatten)]
    pub job: Arc<Job>,
    /// When it is next due.
    pub next_fire: Option<Timestamp>,
    /// Its newest run that has started or ended.
    pub last: Option<Run>,
    /// The runs of the last 24 hours.
    pub day: Counts,
}

impl From<JobSummary> for JobView {
    fn from(summary: JobSummary) -> Self {
        Self {
            job: summary.job,
            next_fire: summary.next_fire,
            last: summary.last,
            day: summary.day.into_iter().collect(),
        }
    }
}

/// A page of jobs, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Ask with `after` = this for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<JobName>,
    /// The store's clock.
    pub now: Timestamp,
}

/// What an apply did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyAnswer {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Job by job, in the order given.
    pub applied: Vec<AppliedJob>,
}

/// The job that a request was about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRef {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: JobName,
}

/// Fire times to come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextTimes {
    /// The fire times, earliest first; fewer than asked for when there are no more.
    pub times: Vec<Timestamp>,
    /// Why there are none or what they leave out, if something is to be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<Run>,
    /// Ask with `before` = this for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
    /// The store's clock.
    pub now: Timestamp,
}

/// Lines of a run's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPage {
    /// The lines.
    pub lines: Vec<StoredLogLine>,
    /// Ask with `after` = this for what comes next.
    pub next: i64,
    /// Where the run is.
    pub state: RunState,
    /// The run has ended and these are its last lines: there is nothing more to follow.
    pub ended: bool,
}

/// What became of a wish to cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAnswer {
    /// `done`: it had not been published, and never will be. `asked`: its executor is told, it ends soon. `ended`: it had ended already.
    pub result: CancelResult,
    /// The state in which it had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
}

/// See [`CancelAnswer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelResult {
    /// It had not been published, and never will be.
    Done,
    /// Its executor is told; it ends soon.
    Asked,
    /// It had ended already.
    Ended,
}

/// What became of a job's fire times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerPage {
    /// The window, from here on.
    pub from: Timestamp,
    /// The window, up to here, exclusive.
    pub to: Timestamp,
    /// Each expected fire time, earliest first.
    pub entries: Vec<LedgerEntry>,
    /// The limit was reached: ask again from the last fire time on.
    pub more: bool,
}

/// An executor and how long it has been silent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorView {
    /// The executor.
    #[serde(flatten)]
    pub executor: Executor,
    /// How long it has not been heard.
    pub silent_ms: u64,
}

/// All executors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executors {
    /// By group and name.
    pub executors: Vec<ExecutorView>,
    /// The store's clock.
    pub now: Timestamp,
}

/// Numbers about the whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// The server's version.
    pub version: String,
    /// How long the server has been running.
    pub uptime_ms: u64,
    /// The store's clock.
    pub now: Timestamp,
    /// Jobs that exist.
    pub jobs: u64,
    /// Runs that have not ended.
    pub live: Counts,
    /// How far the oldest run that is due and still `scheduled` is behind.
    pub oldest_due_ms: Option<u64>,
    /// What the server that answers has done since it started; other schedulers count for themselves.
    #[serde(default)]
    pub since_start: SinceStart,
}

impl Stats {
    pub(crate) fn new(
        stats: StoreStats,
        uptime_ms: u64,
        now: Timestamp,
        since_start: SinceStart,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms,
            now,
            jobs: stats.jobs,
            live: stats.live.into_iter().collect(),
            oldest_due_ms: stats.oldest_due_ms,
            since_start,
        }
    }
}

/// A queue and how full it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// Its name: `x.<group>.<executor>`, `results`, `requests`, `dead`.
    pub queue: String,
    /// Group of the executor whose queue it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The executor whose queue it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Messages that wait to be handed out.
    pub ready: u64,
    /// Messages that were handed out and are not settled.
    pub unsettled: u64,
}

impl From<QueueDepth> for QueueView {
    fn from(depth: QueueDepth) -> Self {
        let (group, executor) = depth.owner.unzip();
        Self {
            queue: depth.queue,
            group,
            executor,
            ready: depth.ready,
            unsettled: depth.unsettled,
        }
    }
}

/// All queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// The queues, by name.
    pub queues: Vec<QueueView>,
}

/// An attempt that an executor was given and has not reported an end of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutstandingView {
    /// The run.
    pub run: RunId,
    /// The attempt.
    pub attempt: u32,
    /// `queued` or `running`.
    pub state: RunState,
    /// When the broker confirmed its trigger.
    pub queued_at: Timestamp,
}

impl From<OutstandingAttempt> for OutstandingView {
    fn from(o: OutstandingAttempt) -> Self {
        Self {
            run: o.attempt.run,
            attempt: o.attempt.attempt,
            state: o.state,
            queued_at: o.queued_at,
        }
    }
}

/// An executor's queue and what the executor still has to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePage {
    /// Its queue; absent if there is none.
    pub queue: Option<QueueView>,
    /// How many attempts it was given and has not reported an end of, in its queue or taken.
    pub outstanding: u64,
    /// The oldest of them.
    pub runs: Vec<OutstandingView>,
}

/// How many were treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// How many.
    pub count: u64,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadView {
    /// Its number.
    pub id: i64,
    /// The queue it was in.
    pub queue: String,
    /// Its topic: the job's name, where it was a trigger.
    pub topic: String,
    /// Why it could not be taken.
    pub reason: String,
    /// When it was put aside.
    pub at: Timestamp,
    /// The message, where it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The message, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

impl From<DeadLetter> for DeadView {
    fn from(letter: DeadLetter) -> Self {
        let (text, base64) = match String::from_utf8(letter.payload) {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(STANDARD.encode(error.into_bytes()))),
        };
        Self {
            id: letter.id,
            queue: letter.queue,
            topic: letter.topic,
            reason: letter.reason,
            at: letter.at,
            text,
            base64,
        }
    }
}

/// Dead letters, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadPage {
    /// The dead letters.
    pub letters: Vec<DeadView>,
    /// `before` for the next page, if there may be one.
    pub next: Option<i64>,
    /// The database's clock.
    pub now: Timestamp,
}

/// What became of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayedDead {
    /// How many are back in their queues.
    pub count: u64,
    /// Each one.
    pub letters: Vec<Replayed>,
}
