//! The answers of the API, as types that servers and clients share.

mod accounts;
mod alarms;
mod audit;
mod backfills;
mod events;
mod explain;
mod fire_rules;
mod flows;
mod forecast;
mod limits;
mod namespaces;
mod retention;
mod scripts;
mod worker_keys;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cueline_model::{FireRules, Job, JobId, JobName, Namespace, RunId, RunState, Timestamp};
use cueline_store::admin::{QueueDepth, ReplayedDeadLetter, SinceStart};
use cueline_store::{
    AppliedJob, DeadLetter, Executor, JobSummary, LedgerEntry, OutstandingAttempt, Run, StoreStats,
    StoredLogLine,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

pub use accounts::{
    ApiTokenPage, ApiTokenRef, ApiTokenView, CallerKind, CreatedApiToken, LoginAnswer, LoginKind,
    PasswordSet, SessionView, UserPage, UserRef, UserView,
};
pub use alarms::{
    AlarmPage, AlarmRef, AlarmView, AppliedAlarmView, ChannelList, ChannelTest, ChannelView,
    DeliveryPage, DeliveryView, RuleList, RuleView, SilenceList, SilenceRef, SilenceView,
};
pub use audit::{AuditPage, AuditView, JobVersionView, JobVersions, Restored};
pub use backfills::{BackfillList, BackfillStarted, BackfillView};
pub use events::{
    EndOfLog, ExecutorChange, ExecutorEvent, ExecutorState, JobChange, JobEvent, Lagged, Overflow,
    Ready, RunChange, RunEvent,
};
pub use explain::Explanation;
pub use fire_rules::{
    AppliedCalendarView, CalendarList, CalendarRef, CalendarView, CalendarsApplied, LeftOutView,
    PauseList, PauseRef, PauseView, PausedBy, WindowList, WindowRef, WindowView,
};
pub use flows::{
    FlowCancelled, FlowJob, FlowJobState, FlowPage, FlowRef, FlowRetried, FlowState, FlowView,
};
pub use forecast::{Collision, Forecast, ForecastMinute, GroupForecast};
pub use limits::{GroupRateView, LimitsPage};
pub use namespaces::{NamespacePage, NamespaceView, QuotaPage, QuotasView};
pub use retention::{
    GroupRetentionView, JobRetention, KeptBy, KeptFor, KeptRuns, PrunedRuns, PrunedRunsOfJob,
    RetentionPage,
};
pub use scripts::{
    AppliedScriptView, ScriptList, ScriptRef, ScriptUserView, ScriptVersionView, ScriptVersions,
    ScriptView, ScriptsApplied,
};
pub use worker_keys::{
    CreatedToken, KeyState, TokenRef, TokenView, Tokens, WorkerKeyPage, WorkerKeyRef, WorkerKeyView,
};

/// The number of runs in each state.
pub type Counts = BTreeMap<RunState, u64>;

/// A job with the values that a list shows.
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
    /// The pause that it is in the scope of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PausedBy>,
}

impl JobView {
    /// A job at `now`, under these pauses.
    pub(crate) fn new(summary: JobSummary, rules: &FireRules, now: Timestamp) -> Self {
        let exclusions = rules.of(&summary.job.spec);
        Self {
            pause: exclusions.pause(now).and_then(PausedBy::new),
            job: summary.job,
            next_fire: summary.next_fire,
            last: summary.last,
            day: summary.day.into_iter().collect(),
        }
    }
}

/// A page of jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    /// The jobs.
    #[schema(value_type = Vec<openapi::JobView>)]
    pub jobs: Vec<JobView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// The result of an apply or of its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyAnswer {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// One entry for each job, in the order given.
    #[schema(value_type = Vec<openapi::AppliedJob>)]
    pub applied: Vec<AppliedJob>,
}

/// The job that a request was about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobRef {
    /// Its id.
    #[schema(value_type = i64)]
    pub id: JobId,
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: JobName,
}

/// Upcoming fire times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextTimes {
    /// The fire times, earliest first. There may be fewer than requested.
    #[schema(value_type = Vec<openapi::Instant>)]
    pub times: Vec<Timestamp>,
    /// Times that match the schedule and were left out, earliest first; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutView>,
    /// Why the list is empty or incomplete, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

/// What belongs to a namespace. Names in it are qualified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaced<T> {
    /// Its namespace; absent for `default`.
    #[serde(default, skip_serializing_if = "Namespace::is_default")]
    pub namespace: Namespace,
    /// What belongs to it.
    #[serde(flatten)]
    pub item: T,
}

impl<T> std::ops::Deref for Namespaced<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

/// A page of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunPage {
    /// The runs.
    #[schema(value_type = Vec<openapi::Run>)]
    pub runs: Vec<Namespaced<Run>>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// Lines of a run's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// The lines.
    #[schema(value_type = Vec<openapi::LogLine>)]
    pub lines: Vec<StoredLogLine>,
    /// `after` for the next lines.
    pub next: i64,
    /// The state of the run.
    #[schema(value_type = openapi::RunState)]
    pub state: RunState,
    /// Whether the run has ended and these are its last lines.
    pub ended: bool,
}

/// The result of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelAnswer {
    /// What the cancellation did.
    pub result: CancelResult,
    /// The state of a run that had already ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::RunState)]
    pub state: Option<RunState>,
}

/// The effect of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelResult {
    /// The run was not published and never will be.
    Done,
    /// The executor was asked to stop the run.
    Asked,
    /// The run had already ended.
    Ended,
}

/// The fire times of a job with their runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerPage {
    /// Start of the window, inclusive.
    #[schema(value_type = openapi::Instant)]
    pub from: Timestamp,
    /// End of the window, exclusive.
    #[schema(value_type = openapi::Instant)]
    pub to: Timestamp,
    /// Each expected fire time, earliest first.
    #[schema(value_type = Vec<openapi::LedgerEntry>)]
    pub entries: Vec<LedgerEntry>,
    /// Whether the limit was reached. If so, continue from the last fire time.
    pub more: bool,
}

/// An executor with the time since its last heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorView {
    /// The namespace of its group; absent for `default`.
    #[serde(default, skip_serializing_if = "Namespace::is_default")]
    pub namespace: Namespace,
    /// The executor.
    #[serde(flatten)]
    pub executor: Executor,
    /// Time since its last heartbeat, in milliseconds.
    pub silent_ms: u64,
}

/// A page of executors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Executors {
    /// The executors.
    #[schema(value_type = Vec<openapi::ExecutorView>)]
    pub executors: Vec<ExecutorView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// Statistics of the store and of this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// The server's version.
    pub version: String,
    /// Time since the start of the server, in milliseconds.
    pub uptime_ms: u64,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
    /// Jobs that exist.
    pub jobs: u64,
    /// Runs that have not ended.
    #[schema(value_type = openapi::RunCounts)]
    pub live: Counts,
    /// Age of the oldest run that is due and still `scheduled`, in milliseconds.
    #[schema(required)]
    pub oldest_due_ms: Option<u64>,
    /// Why the answering server declares no executor dead now; `None` if it may. Each scheduler has its own.
    #[serde(default)]
    #[schema(required)]
    pub executor_timeouts_paused: Option<String>,
    /// Why the answering server claims no runs now: it does not reach the broker, and another scheduler does. `None` if it
    /// claims. Each scheduler has its own.
    #[serde(default)]
    #[schema(required)]
    pub claims_paused: Option<String>,
    /// Counters of the answering server since its start. Each scheduler has its own.
    #[serde(default)]
    #[schema(value_type = openapi::SinceStart, required)]
    pub since_start: SinceStart,
}

impl Stats {
    pub(crate) fn new(
        stats: StoreStats,
        uptime_ms: u64,
        now: Timestamp,
        executor_timeouts_paused: Option<String>,
        claims_paused: Option<String>,
        since_start: SinceStart,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms,
            now,
            jobs: stats.jobs,
            live: stats.live.into_iter().collect(),
            oldest_due_ms: stats.oldest_due_ms,
            executor_timeouts_paused,
            claims_paused,
            since_start,
        }
    }
}

/// A page of queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Queues {
    /// The queues.
    #[schema(value_type = Vec<openapi::QueueDepth>)]
    pub queues: Vec<QueueDepth>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// An attempt that was published to an executor and has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutstandingView {
    /// The run.
    #[schema(value_type = openapi::RunNumber)]
    pub run: RunId,
    /// The attempt.
    pub attempt: u32,
    /// `queued` or `running`.
    #[schema(value_type = openapi::RunState)]
    pub state: RunState,
    /// When the broker confirmed its trigger.
    #[schema(value_type = openapi::Instant)]
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

/// An executor's queue and its outstanding attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePage {
    /// Its queue, if it exists.
    #[schema(value_type = Option<openapi::QueueDepth>, required)]
    pub queue: Option<QueueDepth>,
    /// The number of outstanding attempts, in the queue or held by the executor.
    pub outstanding: u64,
    /// The oldest outstanding attempts.
    pub runs: Vec<OutstandingView>,
}

/// The number of affected items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Count {
    /// The number.
    pub count: u64,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadView {
    /// Its number.
    pub id: i64,
    /// The queue it was in.
    pub queue: String,
    /// Its topic; for a trigger the name of its job.
    pub topic: String,
    /// Why it was refused.
    pub reason: String,
    /// When it became a dead letter.
    #[schema(value_type = openapi::Instant)]
    pub at: Timestamp,
    /// Who refused it: `scheduler`, or `executor <group>/<name>`. `None` if that is not verified; then it cannot be
    /// replayed.
    #[serde(default)]
    #[schema(required)]
    pub origin: Option<String>,
    /// The namespace of its verified origin. `None` if that is not known; then it is seen in the list of all namespaces only.
    #[serde(default)]
    #[schema(value_type = Option<openapi::GivenNamespace>, required)]
    pub namespace: Option<Namespace>,
    /// The payload, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub text: Option<String>,
    /// The payload in base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
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
            origin: letter.origin,
            namespace: letter.namespace,
            text,
            base64,
        }
    }
}

/// A page of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadPage {
    /// The dead letters.
    pub letters: Vec<DeadView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The database's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayedDead {
    /// The number of letters that are back in their queues.
    pub count: u64,
    /// The result for each letter.
    #[schema(value_type = Vec<openapi::ReplayedDeadLetter>)]
    pub letters: Vec<ReplayedDeadLetter>,
}
