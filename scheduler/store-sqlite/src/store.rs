//! Connects the port's methods with the inherent methods of the same names.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{
    Actor, AttemptId, ExecutorId, GroupName, Heartbeat, Job, JobId, JobName, JobSpec, Namespace,
    Rate, RunId, StoreId, Timestamp,
};
use cueline_store::{
    AppliedJob, AttemptReport, BegunDispatch, CancelOutcome, ChangedRuns, ClaimedRun, DeadLetter,
    DeadLetterFilter, DispatchRequest, EnrolOutcome, Executor, FireDueRequest, FiredRuns,
    GroupRate, IngestSummary, JobAttempt, JobBrief, JobFilter, JobList, JobPreconditions,
    JobSummary, JobsFingerprint, KnownRun, LedgerEntry, LiveRuns, NewDeadLetter, NewEnrolmentToken,
    NewRuns, NewWorkerKey, NodeId, OldestQueued, OutstandingAttempt, PendingCancellation, Planner,
    PoolUse, Precondition, RegisteredNode, RenewedLease, Revision, RunCursor, RunDetail, RunFilter,
    RunList, Store, StoreError, StoreStats, StoredEnrolmentToken, StoredLogLine, TriggerOutcome,
    TriggerRequest, WorkerKeyState, WorkerKeysPage,
};

use crate::SqliteStore;

macro_rules! implement_store {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl Store for SqliteStore {
            fn pool_use(&self) -> Vec<PoolUse> {
                self.db.pool_use()
            }

            $(async fn $method(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                self.$method($($arg),*).await.map_err(|error| error.failed_to($what))
            })*
        }
    };
}

cueline_store::with_store_methods!(implement_store);
