//! The store port: jobs and runs in a database, one method per use case.
//!
//! [`Store`] is the source of truth about jobs and runs. Each of its methods is one atomic transaction, and no
//! transaction type crosses the port. Some use cases need a decision inside their transaction. It is a pure function of
//! `cueline-model`, or a [`Planner`] that the caller passes. Due times and leases follow the database's clock, which
//! [`Store::now`] returns.
//!
//! Adapters are `cueline-store-sqlite` and `cueline-store-postgres`. They share the decisions and conversions in
//! [`adapter`], and pass the tests in `conformance`.
//!
//! # Examples
//!
//! Moves due runs to queued, without the broker:
//!
//! ```
//! use cueline_model::{AttemptId, ExecutorName};
//! use cueline_store::{DispatchRequest, NodeId, Store, StoreError};
//!
//! async fn dispatch(store: &dyn Store, node: NodeId, executor: ExecutorName) -> Result<usize, StoreError> {
//!     let claimed = store.claim_waiting(node, 1_500, 100).await?;
//!     let requests: Vec<DispatchRequest> = claimed
//!         .iter()
//!         .map(|run| DispatchRequest {
//!             attempt: run.attempt_id(),
//!             job_version: run.job.version,
//!             executor: executor.clone(),
//!             lane: run.lane(),
//!             limits: run.limits(None),
//!         })
//!         .collect();
//!     let accepted: Vec<AttemptId> = store.begin_dispatch(node, &requests).await?;
//!     // Publish the triggers of the accepted attempts here, and wait until the broker confirms them.
//!     store.confirm_dispatch(&accepted).await?;
//!     Ok(accepted.len())
//! }
//! ```

#![warn(clippy::missing_errors_doc)]

mod accounts;
pub mod adapter;
pub mod admin;
mod alarms;
mod audit;
mod backfill;
mod changes;
mod counts;
mod dead_letter;
mod dispatch;
mod error;
mod executor;
mod fire_rules;
mod flow;
mod job;
mod limits;
mod list;
mod load;
mod namespaces;
mod node;
mod port;
mod precondition;
mod report;
mod retention;
mod run;
mod scripts;
mod situation;
mod worker_keys;

pub use accounts::{
    Accounts, ChangedUser, Login, MAX_API_TOKENS, MAX_DISPLAY_NAME_BYTES, MAX_GRANTS,
    MAX_IDEMPOTENCY_KEY_BYTES, MAX_ISSUER_BYTES, MAX_LOGIN_NAME_BYTES, MAX_PASSWORD_HASH_BYTES,
    MAX_PROGRAM_TOKENS, MAX_SESSIONS, MAX_SUBJECT_BYTES, MAX_TOKEN_NAME_BYTES, MAX_USERS,
    NewApiToken, NewUser, PasswordHash, Principal, SecretHash, StoredApiToken, StoredUser,
    UserChange, UserId,
};
pub use adapter::accounts::name_key;
pub use adapter::clock::ClockOverride;
pub use alarms::{
    AfterSend, AlarmDefinition, AlarmDelivery, AlarmEvent, AlarmFate, AlarmFilter, AlarmName,
    AlarmStore, AppliedAlarm, ClaimedDelivery, CollectedAlarms, CountedJob, DeliveryState,
    LEVEL_ENDS_AFTER, MAX_ANSWER_BYTES, MAX_CHANNELS_OF_NAMESPACE, MAX_CLAIMED_OF_CHANNEL,
    MAX_COUNTED_WAITING, MAX_DELIVERY_AGE_MS, MAX_FAILING, MAX_FAILING_OF_NAMESPACE,
    MAX_MORE_TESTS, MAX_RULES_OF_NAMESPACE, MAX_SENDING_OF_NAMESPACE, MAX_SILENCES_OF_NAMESPACE,
    MAX_WAITING_EVENTS, MAX_WAITING_OF_CHANNEL, NotedLevels, SendInProgress, SendOutcome,
};
pub use audit::{
    Audit, AuditEntry, AuditFilter, AuditResult, JobVersion, MAX_AUDIT_VALUE_BYTES,
    MAX_JOB_VERSIONS, NewAuditEntry,
};
pub use backfill::{
    AdvancedBackfills, Backfill, BackfillChange, BackfillDetail, BackfillFilter, BackfillState,
    BackfillStore, MAX_ACTIVE_BACKFILLS, MAX_ADVANCED_RUNS, MAX_ENDED_BACKFILLS, NewBackfill,
};
pub use changes::{
    ChangedRuns, JobBrief, JobsFingerprint, KnownRun, LiveRuns, MissingNumbers, NewRuns, RunBrief,
    RunCursor,
};
pub use counts::{HeldClaims, LiveExecutors, QuotaRefusals, SchedulerCounts, TimeDistribution};
pub use dead_letter::{DeadLetter, DeadLetterFilter, MAX_DEAD_LETTERS, NewDeadLetter};
pub use dispatch::{
    BegunDispatch, CancelOutcome, ClaimedRun, DispatchRequest, FireDueRequest, FiredRuns, LaneKey,
    LanePlace, LaneWait, LaneWaitReason, Plan, PlannedRun, Planner, SkippedFires, TriggerOutcome,
    TriggerRequest, WaitingQuota,
};
pub use error::{ErrorKind, RefusedObject, StoreError};
pub use executor::{Executor, JobAttempt, OutstandingAttempt, PendingCancellation};
pub use fire_rules::{
    AppliedCalendar, FireRuleStore, MAX_CALENDARS_OF_NAMESPACE, MAX_REPLANNED, MAX_WINDOWS,
    REPLAN_ABANDONED_MS, StoredCalendar, WindowReplan,
};
pub use flow::{
    CancelledFlow, FlowCounts, FlowPart, FlowRun, FlowStore, MAX_FLOW_JOBS, MAX_FLOW_RUNS,
    MAX_SHOWN_RUNS, RetriedFlow,
};
pub use job::{
    AppliedJob, Change, JobFilter, JobList, JobPosition, JobSort, JobSummary, LedgerEntry,
};
pub use limits::{
    DispatchLimits, GroupRate, LIMIT_ASKED_WITHIN_MS, LimitKey, LimitPlace, LimitRule, LimitState,
    LimitTurn, LimitUsage, LimitUse, LimitWait, LimitWaitReason, MAX_GROUP_RATES, limits_of_job,
};
pub use list::{LabelFilter, MAX_SCANNED, NameFilter, Order, is_within};
pub use load::{OldestQueued, PoolUse};
pub use namespaces::{
    MAX_NAMESPACES_WITH_QUOTAS, MAX_QUOTA, NamespaceFilter, NamespaceSummary, Namespaces,
    QuotaLoad, Quotas,
};
pub use node::{NodeId, RegisteredNode, RenewedLease};
pub use port::Store;
pub use precondition::{JobPreconditions, Precondition, Revision, require_jobs};
pub use report::{AttemptReport, IngestSummary};
pub use retention::{
    ExpireRequest, Expired, GroupRetention, MAX_GROUP_RULES, MAX_PRUNED_AT_ONCE, PruneRequest,
    Pruned, PrunedOfJob, RetentionStore,
};
pub use run::{Run, RunDetail, RunFilter, RunList, StoreStats, StoredLogLine, TimelineEntry};
pub use scripts::{
    AppliedScript, MAX_JOBS_OF_SCRIPT, MAX_SCRIPT_VERSIONS, MAX_SCRIPTS_OF_NAMESPACE, ScriptStore,
    ScriptVersion, StoredScript,
};
pub use situation::{
    MAX_SITUATION_RUNS, MAX_SITUATION_VERSIONS, Situation, Situations, Subject, waiting_run,
};
pub use worker_keys::{
    EnrolOutcome, EnrolRefusal, KeyOrigin, MAX_ENROLMENT_TOKENS, MAX_REVOKED_KEYS, MAX_WORKER_KEYS,
    NewEnrolmentToken, NewWorkerKey, StoredEnrolmentToken, StoredWorkerKey, WorkerKeyState,
    WorkerKeysPage,
};

#[cfg(feature = "conformance")]
#[expect(
    clippy::missing_panics_doc,
    reason = "a case panics when the adapter fails it"
)]
pub mod conformance;
