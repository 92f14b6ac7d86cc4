//! Lists the methods of the port, for adapters.

/// Calls the macro `$implement` with all methods of [`Store`](crate::Store): kind (`read` or `write`), name, arguments,
/// result, and the rest of its error message ("failed to …").
///
/// An adapter has an inherent method of the same name for each method of the port. Its `$implement` calls the inherent
/// method and adds what all methods have in common, such as the error message.
#[macro_export]
macro_rules! with_store_methods {
    ($implement:ident) => {
        $implement! {
            read now() -> Timestamp: "read the database's clock";
            read store_id() -> StoreId: "read the store's id";
            write register_node(name: &str, lease_ms: u64) -> RegisteredNode: "register a node";
            write rejoin_node(old: NodeId, name: &str, lease_ms: u64) -> NodeId: "register a node again";
            write renew_lease(node: NodeId, lease_ms: u64, reached_broker_at: Option<Timestamp>) -> Option<RenewedLease>: "renew a node's lease";
            write release_lease(node: NodeId) -> (): "release a node's lease";
            write apply_jobs_if(specs: &[JobSpec], conditions: &JobPreconditions, dry_run: bool, by: &Actor) -> Vec<AppliedJob>: "apply jobs";
            write set_job_enabled_if(job: &JobName, enabled: bool, condition: &Precondition, by: &Actor) -> Revision: "pause or resume a job";
            write delete_job_if(job: &JobName, condition: &Precondition, by: &Actor) -> JobId: "delete a job";
            read dispatching_attempts(jobs: &[JobId]) -> Vec<AttemptId>: "list attempts that are being published";
            read job(name: &JobName) -> JobSummary: "read a job";
            read definitions(ids: &[JobId]) -> Vec<Arc<Job>>: "read job definitions";
            read list_jobs(filter: &JobFilter) -> JobList: "list jobs";
            write fire_due(request: FireDueRequest, planner: &dyn Planner) -> FiredRuns: "fire due jobs";
            write claim_waiting(node: NodeId, horizon_ms: u64, limit: usize) -> Vec<ClaimedRun>: "claim waiting runs";
            read next_due_at() -> Option<Timestamp>: "find the next due time";
            write begin_dispatch_in_lanes(node: NodeId, requests: &[DispatchRequest]) -> BegunDispatch: "begin to dispatch runs";
            write confirm_dispatch(attempts: &[AttemptId]) -> (): "confirm published attempts";
            write release_claims(node: NodeId, attempts: &[AttemptId], due_at: Option<Timestamp>) -> (): "release runs";
            write reclaim_attempts(node: NodeId, attempts: &[AttemptId], reason: &str) -> Vec<ClaimedRun>: "reclaim attempts";
            write trigger_claimed(node: Option<NodeId>, request: &TriggerRequest) -> (TriggerOutcome, Vec<ClaimedRun>): "trigger a job";
            write ingest_reports(reports: &[AttemptReport]) -> IngestSummary: "ingest reports";
            write cancel_run(run: RunId, by: &Actor) -> CancelOutcome: "cancel a run";
            read pending_cancellations(limit: usize) -> Vec<PendingCancellation>: "list pending cancellations";
            read outstanding_attempts(older_than_ms: u64, executor: Option<&ExecutorId>, after: Option<RunId>, limit: usize) -> Vec<OutstandingAttempt>: "list outstanding attempts";
            read attempts_of_jobs(jobs: &[JobId], limit: usize) -> Vec<JobAttempt>: "list the attempts of jobs";
            read overdue_attempts(slack_ms: u64, limit: usize) -> Vec<AttemptId>: "list overdue attempts";
            write record_heartbeats(heartbeats: &[Heartbeat]) -> (): "store heartbeats";
            read executors() -> Vec<Executor>: "list executors";
            write forget_executors(executors: &[(ExecutorId, Timestamp)]) -> Vec<ExecutorId>: "forget executors";
            write insert_dead_letters(letters: &[NewDeadLetter]) -> u64: "store dead letters";
            read list_dead_letters(filter: &DeadLetterFilter) -> Vec<DeadLetter>: "list dead letters";
            read dead_letters_by_id(ids: &[i64]) -> Vec<DeadLetter>: "read dead letters";
            write delete_dead_letters(namespace: Option<&Namespace>, ids: &[i64], by: &Actor) -> u64: "delete dead letters";
            write create_enrolment_token(token: &NewEnrolmentToken) -> bool: "create an enrolment token";
            read enrolment_tokens() -> Vec<StoredEnrolmentToken>: "list enrolment tokens";
            write delete_enrolment_token(id: &str, by: &Actor) -> bool: "delete an enrolment token";
            read token_verifier(id: &str) -> Option<[u8; 32]>: "read an enrolment token";
            write enrol_workers(keys: &[NewWorkerKey]) -> Vec<EnrolOutcome>: "enrol workers";
            read worker_keys(changed_after: i64, limit: usize) -> WorkerKeysPage: "list the keys of workers";
            write set_worker_key(executor: &ExecutorId, key_id: &str, state: WorkerKeyState, by: &Actor) -> bool: "change the key of a worker";
            read run(run: RunId) -> RunDetail: "read a run";
            read list_runs(filter: &RunFilter) -> RunList: "list runs";
            read log_lines(run: RunId, after: i64, limit: usize) -> Vec<StoredLogLine>: "read a run's log";
            read ledger(job: &JobName, from: Timestamp, to: Timestamp, limit: usize) -> Vec<LedgerEntry>: "read the ledger";
            read stats() -> StoreStats: "count jobs and runs";
            read oldest_queued_attempts() -> Vec<OldestQueued>: "find the oldest queued attempts";
            read live_runs(limit: usize) -> LiveRuns: "list live runs";
            read new_runs(after: &RunCursor, limit: usize) -> NewRuns: "list new runs";
            read changed_runs(known: &[KnownRun]) -> ChangedRuns: "read changes of runs";
            read jobs_fingerprint() -> JobsFingerprint: "read whether jobs have changed";
            read job_briefs(after: Option<JobId>, limit: usize) -> Vec<JobBrief>: "list the versions of jobs";
            read group_rates() -> Vec<GroupRate>: "list the rate limits of groups";
            write set_group_rate(group: &GroupName, rate: Option<Rate>, by: &Actor) -> bool: "set the rate limit of a group";
            write prune_accounts(older_than_ms: u64, limit: usize) -> u64: "delete ended sessions and API tokens";
            write release_space() -> bool: "give space back to the file system";
            write repair_fixed_delay_jobs() -> u64: "repair fixed-delay jobs";
        }
    };
}

/// As [`with_store_methods`](crate::with_store_methods), with the methods of [`RetentionStore`](crate::RetentionStore) that
/// an adapter implements.
#[macro_export]
macro_rules! with_retention_methods {
    ($implement:ident) => {
        $implement! {
            read retention_rules(group: Option<&GroupName>) -> Vec<GroupRetention>: "read the retention of groups";
            write set_retention(group: &GroupName, rule: &Retention, by: &Actor) -> bool: "set the retention of a group";
            write expire_runs(request: ExpireRequest) -> Expired: "delete expired runs";
            write prune_runs(request: &PruneRequest, by: &Actor) -> Pruned: "prune runs";
            write prune_dead_letters(older_than_ms: u64, limit: usize) -> u64: "delete expired dead letters";
        }
    };
}

/// As [`with_store_methods`](crate::with_store_methods), with the methods of [`AlarmStore`](crate::AlarmStore).
#[macro_export]
macro_rules! with_alarm_methods {
    ($implement:ident) => {
        $implement! {
            read alarm_book() -> std::sync::Arc<cueline_model::AlarmBook>: "read alarm definitions";
            write put_alarm(definition: &$crate::AlarmDefinition, condition: &$crate::Precondition, by: &cueline_model::Actor) -> $crate::AppliedAlarm: "change an alarm definition";
            write delete_alarm(name: &$crate::AlarmName, condition: &$crate::Precondition, by: &cueline_model::Actor) -> (): "delete an alarm definition";
            write add_silence(spec: &cueline_model::AlarmSilence, by: &cueline_model::Actor) -> i64: "begin a silence";
            write end_silence(namespace: &cueline_model::Namespace, id: i64, by: &cueline_model::Actor) -> (): "end a silence";
            write test_channel(channel: &cueline_model::ChannelName, by: &cueline_model::Actor) -> i64: "test an alarm channel";
            write collect_alarms(limit: usize) -> $crate::CollectedAlarms: "collect alarms";
            write claim_alarm_deliveries(lease_ms: u64, sending: &[$crate::SendInProgress], limit: usize) -> Vec<$crate::ClaimedDelivery>: "claim deliveries of alarms";
            write settle_alarm_delivery(id: i64, attempt: u32, outcome: &$crate::SendOutcome) -> bool: "write the answer to an alarm";
            read next_alarm_at() -> Option<cueline_model::Timestamp>: "find the next alarm";
            write hold_alarm_checks(holder: &str, lease_ms: u64) -> bool: "hold the checks of alarms";
            read job_loads(jobs: &[$crate::CountedJob]) -> std::collections::BTreeMap<i64, cueline_model::alarm::JobLoad>: "read the runs that wait";
            write note_alarm_levels(found: &[cueline_model::alarm::LevelFound]) -> $crate::NotedLevels: "note the conditions of alarms";
            read alarm_events(filter: &$crate::AlarmFilter) -> Vec<$crate::AlarmEvent>: "list alarms";
            read alarm_deliveries(filter: &$crate::AlarmFilter) -> Vec<$crate::AlarmDelivery>: "list deliveries of alarms";
            write prune_alarms(older_than_ms: u64, limit: usize) -> u64: "delete old alarms";
        }
    };
}
