//! Runs between their due time and their publication.

use std::fmt;
use std::sync::Arc;

use cueline_model::exclusion::Due;
use cueline_model::{
    Actor, AttemptId, Block, Exclusions, ExecutorName, Job, JobId, JobName, Namespace, Rate, Route,
    RunId, RunKind, RunState, Scope, Shard, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::limits::{DispatchLimits, LimitPlace, LimitWait, limits_of_job};
use crate::node::NodeId;
use crate::precondition::Precondition;

/// Decides which runs a due job gets.
///
/// ```
/// use cueline_model::{ExecutorName, Job, Shard, Timestamp};
/// use cueline_store::{Plan, PlannedRun, Planner};
///
/// /// One run for each fire time, however late.
/// struct EachFireTime;
///
/// impl Planner for EachFireTime {
///     fn plan(&self, job: &Job, due: Timestamp, _now: Timestamp, _live: &[ExecutorName]) -> Plan {
///         let run = PlannedRun {
///             fire_at: due,
///             due_at: due,
///             shard: Shard::whole(),
///             executor: None,
///             skipped: None,
///         };
///         Plan { runs: vec![run], next_fire: job.spec.next_fire(due) }
///     }
/// }
/// ```
pub trait Planner: Send + Sync {
    /// Plans `job`, which is due at its fire time `due`. `now` is the time of the database's clock. `live` are the live
    /// executors that can run the job, sorted by name.
    ///
    /// [`Store::fire_due`](crate::Store::fire_due) calls this inside its transaction, so it must be quick and pure.
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan;

    /// Like [`plan`](Self::plan), for a job with fire times that are excluded or not accounted for yet. Returns the first
    /// excluded fire time that the plan leaves unaccounted, too. By default nothing is excluded.
    fn plan_excluding(
        &self,
        job: &Job,
        due: Due,
        exclusions: &Exclusions,
        now: Timestamp,
        live: &[ExecutorName],
    ) -> (Plan, Option<Timestamp>) {
        let _ = exclusions;
        (self.plan(job, due.at, now, live), None)
    }

    /// Whether `job`, which is a broadcast job, stays due for now and is not planned. `silent` are the executors that
    /// could run it before they fell silent, sorted by name. By default no job is held.
    fn holds(&self, job: &Job, silent: &[ExecutorName]) -> bool {
        let _ = (job, silent);
        false
    }

    /// The quota of waiting runs in the job's namespace. By default there is none.
    ///
    /// Within one call of [`Store::fire_due`](crate::Store::fire_due), the runs that it plans for a namespace count as
    /// well. Fires beyond the quota are written as `skipped`.
    fn waiting_quota(&self, job: &Job) -> Option<WaitingQuota> {
        let _ = job;
        None
    }
}

/// How many runs of a namespace may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingQuota {
    /// The quota.
    pub limit: u64,
    /// The runs that wait already.
    pub waiting: u64,
}

/// Which due jobs to fire.
#[derive(Debug, Clone, Copy)]
pub struct FireDueRequest {
    /// The node that claims the runs.
    pub node: NodeId,
    /// How far in the future a fire time may be, in milliseconds by the database's clock.
    pub horizon_ms: u64,
    /// The most jobs to fire in one transaction.
    pub limit: usize,
    /// No further job is fired once the jobs before it have this many runs. At least one job is fired.
    pub max_runs: usize,
}

/// The planner's decision for one due job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Runs to write, in the order of dispatch.
    pub runs: Vec<PlannedRun>,
    /// The next fire time. `None` if the schedule is exhausted, or waits for the end of a run.
    pub next_fire: Option<Timestamp>,
}

/// A run that the planner decided on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRun {
    /// The fire time.
    pub fire_at: Timestamp,
    /// When the first attempt is due: the fire time and the jitter.
    pub due_at: Timestamp,
    /// The part of the work that the run does.
    pub shard: Shard,
    /// The executor that a broadcast run is pinned to.
    pub executor: Option<ExecutorName>,
    /// Set for a run that is written as `skipped` and never dispatched.
    pub skipped: Option<SkippedFires>,
}

/// Fire times that one `skipped` run accounts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedFires {
    /// Why they were skipped, for the user.
    pub reason: String,
    /// The number of fire times, including the run's own.
    pub count: u64,
    /// The first of them. The run's own fire time is the last.
    pub since: Timestamp,
    /// Whether they were found too late. If not, a rule, a pause or a quota excludes them.
    pub missed: bool,
}

/// The answer to [`Store::fire_due`](crate::Store::fire_due).
#[derive(Debug, Clone, Default)]
pub struct FiredRuns {
    /// The written runs without skipped ones, claimed by the calling node. Sorted by due time, priority (high first)
    /// and id.
    pub runs: Vec<ClaimedRun>,
    /// How many due jobs were fired.
    pub due_jobs: usize,
    /// Whether the limit was reached. If so, more jobs may be due.
    pub limit_reached: bool,
    /// Namespaces with fires that were skipped because of their [quota of waiting runs](Planner::waiting_quota), and the
    /// numbers of those fires.
    pub skipped_by_quota: Vec<(Namespace, u64)>,
}

/// A run that a node has claimed, with everything that its dispatch needs.
#[derive(Debug, Clone)]
pub struct ClaimedRun {
    /// Identity of the run.
    pub id: RunId,
    /// Number of the attempt to dispatch, from 1.
    pub attempt: u32,
    /// The job in its current version. The group is the one that a [maybe published](Self::maybe_published) attempt
    /// went to.
    pub job: Arc<Job>,
    /// What created the run.
    pub kind: RunKind,
    /// The fire time.
    pub fire_at: Timestamp,
    /// When the attempt is due.
    pub due_at: Timestamp,
    /// The part of the work that the run does.
    pub shard: Shard,
    /// Parameter text in place of the job's own.
    pub params: Option<String>,
    /// The executor that the run is pinned to (`broadcast`), or that a [maybe published](Self::maybe_published) attempt
    /// went to.
    pub executor: Option<ExecutorName>,
    /// Number of the run among all runs of its job, from 0. Round robin chooses the executor by it.
    pub sequence: u64,
    /// The attempt may already be in the executor's queue, because a node ended between its publication and its
    /// confirmation. It must be published again to the same executor, as the same attempt.
    pub maybe_published: bool,
    /// The place of the run in its lane: the fire time. A retry, and a run of a backfill, join at the end of their lane, so
    /// this is their due time. A run that an executor returned or lost keeps its place.
    pub lane_at: Timestamp,
}

impl ClaimedRun {
    /// Its limits. `group` is the rate of its group, if that has one. `None` if it has no limits, or if the attempt [may be
    /// published](Self::maybe_published) already.
    pub fn limits(&self, group: Option<Rate>) -> Option<Box<DispatchLimits>> {
        let spec = &self.job.spec;
        let is_limited = spec.rate_limit.is_some() || spec.concurrency.is_some() || group.is_some();
        if !is_limited || self.maybe_published {
            return None;
        }
        Some(Box::new(DispatchLimits {
            uses: limits_of_job(self.job.id, spec, group),
            place: self.limit_place(),
            due_at: self.due_at,
        }))
    }

    /// Its place among the runs that wait for one limit.
    pub fn limit_place(&self) -> LimitPlace {
        let rank = 9_u8.saturating_sub(self.priority());
        LimitPlace(self.lane_at.as_millis(), rank, self.id)
    }

    /// The attempt to dispatch.
    pub const fn attempt_id(&self) -> AttemptId {
        AttemptId {
            run: self.id,
            attempt: self.attempt,
        }
    }

    /// Its priority among runs that are due at the same time. Runs of a backfill have the lowest.
    pub fn priority(&self) -> u8 {
        match self.kind {
            RunKind::Backfill => 0,
            _ => self.job.spec.priority,
        }
    }

    /// The place of the run in the lane that it shares with all executors of its group. `None` if each executor has a
    /// lane of its own.
    pub fn lane(&self) -> Option<LanePlace> {
        let spec = &self.job.spec;
        if spec.scope == Scope::Executor || spec.route == Route::Broadcast {
            return None;
        }
        Some(LanePlace {
            lane: LaneKey {
                job: self.job.id,
                shard: self.shard.index,
            },
            slots: match spec.block {
                Block::Parallel(n) => Some(n.max(1)),
                Block::Serial | Block::Discard | Block::Cover => None,
            },
            at: self.lane_at,
            due_at: self.due_at,
            maybe_published: self.maybe_published,
        })
    }
}

/// A lane that all executors of a group share: a job, or one shard of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    /// The job.
    pub job: JobId,
    /// The index of the shard; 0 without shards.
    pub shard: u32,
}

/// The place of a run in a lane that all executors of its group share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanePlace {
    /// The lane.
    pub lane: LaneKey,
    /// How many attempts may be at executors at the same time, at any of them. `None` if all of them have to be at one
    /// executor, which then keeps their order.
    pub slots: Option<u32>,
    /// See [`ClaimedRun::lane_at`].
    pub at: Timestamp,
    /// When the attempt is due. Runs before it that are due by then, or by now, are dispatched first.
    pub due_at: Timestamp,
    /// The attempt may be in its executor's queue already.
    pub maybe_published: bool,
}

/// Why an attempt has to wait for its lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneWait {
    /// The attempt. It is `scheduled` and still claimed by the node, unless it [may be
    /// published](LanePlace::maybe_published) and [`undecided`](Self::undecided) says so.
    pub attempt: AttemptId,
    /// The only executor with attempts of this lane. The attempt may go there. `None` if there are several such
    /// executors, if it belongs to another group, or if the executor does not matter.
    pub holder: Option<ExecutorName>,
    /// What it waits for.
    pub reason: LaneWaitReason,
    /// Runs of the lane that are due and wait before it.
    pub ahead: u64,
    /// It is still `dispatching`. The caller asks again soon, and neither publishes nor releases it meanwhile.
    pub undecided: bool,
}

/// What an attempt waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneWaitReason {
    /// An attempt of this run is at another executor.
    Busy(RunId),
    /// This run comes first. It is due, and is not published yet.
    Behind(RunId),
    /// As many attempts as the lane may have are at executors; one of them is of this run.
    Full(RunId),
}

impl LaneWaitReason {
    /// The run that it waits for.
    pub const fn run(self) -> RunId {
        match self {
            Self::Busy(run) | Self::Behind(run) | Self::Full(run) => run,
        }
    }
}

impl fmt::Display for LaneWaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(run) => write!(f, "run {run} of its lane is at another executor"),
            Self::Behind(run) => write!(f, "run {run} of its lane comes first"),
            Self::Full(run) => write!(f, "run {run} and others use all places of its lane"),
        }
    }
}

/// The answer to [`Store::begin_dispatch_in_lanes`](crate::Store::begin_dispatch_in_lanes). Attempts in neither list need
/// no further call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BegunDispatch {
    /// The attempts that the node may publish, in the order of the requests.
    pub accepted: Vec<AttemptId>,
    /// The attempts that wait for their lane.
    pub waits: Vec<LaneWait>,
    /// The attempts that wait for a limit.
    pub limit_waits: Vec<LimitWait>,
}

/// An attempt that is about to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchRequest {
    /// The attempt.
    pub attempt: AttemptId,
    /// The version of the job in the trigger.
    pub job_version: i64,
    /// The executor that it is routed to.
    pub executor: ExecutorName,
    /// Its place in the lane of its group. `None` if each executor has a lane of its own.
    pub lane: Option<LanePlace>,
    /// Its limits, if it has any.
    pub limits: Option<Box<DispatchLimits>>,
}

/// A request to run a job outside of its schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerRequest {
    /// The name of the job.
    pub job: JobName,
    /// Parameter text in place of the job's own.
    pub params: Option<String>,
    /// A second request with the same key for the same job creates no run, as long as the runs of the first one are
    /// kept. It has to have the same `params` and `run_at`.
    pub idempotency_key: Option<String>,
    /// When to run; now by default.
    pub run_at: Option<Timestamp>,
    /// What must hold for the job. It is not checked for a second request with the same key: the runs exist.
    pub condition: Precondition,
    /// Who made the request, for the timeline and the audit log.
    pub by: Actor,
}

/// The answer to a [`TriggerRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerOutcome {
    /// The runs, one for each shard.
    pub runs: Vec<RunId>,
    /// Whether an earlier request with the same idempotency key created them.
    pub duplicate: bool,
}

/// The answer to [`Store::cancel_run`](crate::Store::cancel_run).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The run had not been published and is cancelled.
    Cancelled,
    /// The request is recorded. The scheduler sends it to the executor, which ends the run.
    Requested,
    /// The run had ended before, in this state.
    AlreadyEnded(RunState),
}
