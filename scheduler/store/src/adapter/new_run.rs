//! Runs that are about to be written.

use std::sync::Arc;

use cueline_model::{ExecutorName, Job, Route, RunId, RunKind, Shard, Timestamp, expand};

use super::convert::to_u64;
use super::live_executors::LiveExecutors;
use crate::{ClaimedRun, NodeId, PlannedRun, SkippedFires, TriggerRequest};

/// A run that is about to be written.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// 0 until the adapter allocates an id.
    pub id: i64,
    /// The job in the version that the run was planned from.
    pub job: Arc<Job>,
    /// What created the run.
    pub kind: RunKind,
    /// Identifies the fire; all its shards have the same key. It is the fire time (schedule, startup) or the first run
    /// of the flow run (child). `None` for a manual trigger: the adapter sets the id of the first run of the request.
    pub fire_key: Option<i64>,
    /// The fire time.
    pub fire_at: Timestamp,
    /// When the first attempt is due.
    pub due_at: Timestamp,
    /// The part of the work that the run does.
    pub shard: Shard,
    /// The executor that a broadcast run is pinned to.
    pub executor: Option<ExecutorName>,
    /// Number of the run among all runs of its job, from 0.
    pub sequence: i64,
    /// The node that dispatches it. If `None`, any node may claim it.
    pub claimed_by: Option<NodeId>,
    /// The run whose end created it.
    pub parent: Option<RunId>,
    /// Parameter text in place of the job's own.
    pub params: Option<String>,
    /// Set when the run only records fire times that were skipped.
    pub skipped: Option<SkippedFires>,
    /// For the timeline: the silent executors that got no shard of this broadcast fire, and outputs of parents that did not
    /// fit into the parameter. Set for the first run of a fire.
    pub left_out: Option<String>,
}

/// The most executors that one note names.
const MAX_NAMED: usize = 20;

/// A fire outside of the schedule: the values that all its runs share.
#[derive(Debug, Clone)]
pub struct Fire {
    /// What created the runs.
    pub kind: RunKind,
    /// See [`NewRun::fire_key`].
    pub key: Option<i64>,
    /// The fire time.
    pub fire_at: Timestamp,
    /// When the first attempts are due.
    pub due_at: Timestamp,
    /// The node that dispatches the runs. If `None`, any node may claim them.
    pub claimed_by: Option<NodeId>,
    /// The run whose end created them.
    pub parent: Option<RunId>,
    /// Parameter text in place of the job's own.
    pub params: Option<String>,
}

impl Fire {
    /// The fire of a startup job.
    pub const fn at_startup(now: Timestamp) -> Self {
        Self {
            kind: RunKind::Startup,
            key: Some(now.as_millis()),
            fire_at: now,
            due_at: now,
            claimed_by: None,
            parent: None,
            params: None,
        }
    }

    /// The fire of a trigger request. Runs that are due by `now` are claimed by `node`.
    pub fn of_request(request: &TriggerRequest, node: Option<NodeId>, now: Timestamp) -> Self {
        let at = request.run_at.unwrap_or(now);
        Self {
            kind: RunKind::Manual,
            key: None,
            fire_at: at,
            due_at: at,
            claimed_by: node.filter(|_| at <= now),
            parent: None,
            params: request.params.clone(),
        }
    }
}

impl NewRun {
    /// A run of the schedule.
    pub fn planned(job: &Arc<Job>, sequence: i64, node: NodeId, plan: PlannedRun) -> Self {
        Self {
            id: 0,
            job: Arc::clone(job),
            kind: RunKind::Schedule,
            fire_key: Some(plan.fire_at.as_millis()),
            fire_at: plan.fire_at,
            due_at: plan.due_at,
            shard: plan.shard,
            executor: plan.executor,
            sequence,
            claimed_by: plan.skipped.is_none().then_some(node),
            parent: None,
            params: None,
            skipped: plan.skipped,
            left_out: None,
        }
    }

    /// The runs of a fire outside of the schedule, one for each shard.
    pub fn of_fire(
        job: &Arc<Job>,
        first_sequence: i64,
        live: &mut LiveExecutors,
        fire: &Fire,
    ) -> Vec<Self> {
        let mut runs: Vec<Self> = expand(&job.spec.route, &live.candidates(&job.spec))
            .into_iter()
            .zip(first_sequence..)
            .map(|(shard, sequence)| Self {
                id: 0,
                job: Arc::clone(job),
                kind: fire.kind,
                fire_key: fire.key,
                fire_at: fire.fire_at,
                due_at: fire.due_at,
                shard: shard.shard,
                executor: shard.executor,
                sequence,
                claimed_by: fire.claimed_by,
                parent: fire.parent,
                params: fire.params.clone(),
                skipped: None,
                left_out: None,
            })
            .collect();
        if let Some(first) = runs.first_mut() {
            first.left_out = silent_note(job, live);
        }
        runs
    }

    /// Adds what else was left out.
    pub(super) fn add_left_out(&mut self, more: Option<String>) {
        self.left_out = match (self.left_out.take(), more) {
            (Some(known), Some(more)) => Some(format!("{known}; {more}")),
            (known, more) => known.or(more),
        };
    }

    /// Whether the run uses no rare column. Nearly all runs are plain, and adapters write those faster.
    pub fn is_plain(&self) -> bool {
        self.kind == RunKind::Schedule
            && self.shard.total == 1
            && self.shard.item.is_none()
            && self.executor.is_none()
            && self.skipped.is_none()
            && self.left_out.is_none()
            && self.params.is_none()
    }
}

/// Names the silent executors that get no shard of a broadcast fire (G1). `None` if there are none.
pub(super) fn silent_note(job: &Job, live: &mut LiveExecutors) -> Option<String> {
    if job.spec.route != Route::Broadcast {
        return None;
    }
    let silent = live.silent(&job.spec);
    let named: Vec<&str> = silent
        .iter()
        .take(MAX_NAMED)
        .map(ExecutorName::as_str)
        .collect();
    let more = silent.len() - named.len();
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty())
        .then(|| format!("silent executors got no shard: {}{more}", named.join(", ")))
}

impl From<NewRun> for ClaimedRun {
    /// A new run is at its first attempt, and nothing has been published.
    fn from(run: NewRun) -> Self {
        Self {
            id: RunId(run.id),
            attempt: 1,
            job: run.job,
            kind: run.kind,
            fire_at: run.fire_at,
            due_at: run.due_at,
            shard: run.shard,
            params: run.params,
            executor: run.executor,
            sequence: to_u64(run.sequence),
            maybe_published: false,
            lane_at: run.fire_at,
        }
    }
}
