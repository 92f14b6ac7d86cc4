//! Connects the port's methods with the inherent methods of the same names.
//!
//! Each call is bounded in time. A writing call is repeated in three cases. The server rolled it back because of
//! another transaction. Another node has dropped its partition. The database was promoted or restored.

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

use crate::PgStore;
use crate::error;

/// How often a rolled-back call is repeated.
const MAX_REPEATS: u32 = 5;

impl PgStore {
    pub(crate) async fn read<T, F>(
        &self,
        what: &str,
        call: impl FnOnce() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = error::Result<T>>,
    {
        let answer = self.db.bounded(call()).await;
        answer.map_err(|error| error.failed_to(what))
    }

    pub(crate) async fn write<T, F>(
        &self,
        what: &str,
        call: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = error::Result<T>>,
    {
        let mut repeats = 0;
        loop {
            let error = match self.db.bounded(call()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.is_missing_partition() {
                self.db.forget_partitions();
            } else if error.is_unknown_history() {
                let watched = self.db.bounded(self.watch_history()).await;
                watched.map_err(|error| error.failed_to(what))?;
            } else if !error.is_conflict() {
                return Err(error.failed_to(what));
            }
            if repeats == MAX_REPEATS {
                return Err(error.failed_to(what));
            }
            repeats += 1;
        }
    }
}

macro_rules! implement_store {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl Store for PgStore {
            fn pool_use(&self) -> Vec<PoolUse> {
                self.db.pool_use()
            }

            $(async fn $method(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                self.$kind($what, || self.$method($($arg),*)).await
            })*
        }
    };
}

cueline_store::with_store_methods!(implement_store);
