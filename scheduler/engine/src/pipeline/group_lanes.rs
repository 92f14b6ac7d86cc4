//! Lanes that all executors of a group share (G6, G7, G8).
//!
//! While an attempt of a lane without places is at an executor, further runs of the lane go there too: the worker's own
//! lane keeps their order, and the next one starts within microseconds. The store decides whether the lane is free
//! ([`Store::begin_dispatch_in_lanes`]). Runs that the store refuses follow to the executor that it names, if that one
//! takes triggers. Otherwise, and if all places of a lane are used, they wait in memory ([`lane_waits`]):
//!
//! - A drain, a failover, a fence or a new definition may keep the holder from taking triggers. Its attempts still count
//!   until the store knows their ends. A returned attempt is `scheduled` again, and goes first by its fire time.
//! - A failed run that is tried again joins at the end of its lane: its due time counts, not its fire time.
//! - A waiting run that is cancelled, paused or edited is refused by its next probe and leaves.
//! - A node that ends leaves its waiting runs `scheduled` in the store. The next claim finds them, and no younger run of
//!   their lanes is dispatched before them.
//!
//! [`lane_waits`]: crate::claims

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cueline_model::{AttemptId, Block, ExecutorName, OutcomeKind, Rate, RunId};
use cueline_runtime::Activator;
use cueline_store::{
    AttemptReport, ClaimedRun, DispatchRequest, LaneKey, LanePlace, LaneWait, LaneWaitReason,
    NodeId, Store, StoreError,
};

use super::ended_runs::EndedRuns;
use crate::claims::NodeClaims;
use crate::database_clock::DatabaseClock;
use crate::liveness::registry::Registry;
use crate::route::Candidates;
use crate::scheduler_report::attempt_ended;

/// An attempt whose acceptance is unknown is looked at again after this time.
const UNDECIDED_WAIT_MS: u64 = 50;
/// A run beyond the memory limit stays in the store for this long before it is claimed again.
const IN_STORE_MS: u64 = 10_000;

/// Chooses executors for lanes, and holds the runs that wait for them.
pub(crate) struct GroupLanes {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) ends: EndedRuns,
    pub(crate) claim: Activator,
    /// The most runs held in memory.
    pub(crate) max_held: usize,
    /// The executors of busy lanes, for the next turn.
    pub(crate) following: HashMap<LaneKey, ExecutorName>,
}

/// The executors of the lanes of one batch.
#[derive(Debug, Default)]
pub(crate) struct BatchLanes {
    executors: HashMap<LaneKey, ExecutorName>,
    following: HashMap<LaneKey, ExecutorName>,
    followed: HashSet<LaneKey>,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub(crate) struct LaneResults {
    pub(crate) accepted: Vec<(LaneKey, Option<ExecutorName>)>,
    pub(crate) refused: Vec<LaneKey>,
    pub(crate) waits: Vec<(ClaimedRun, LaneWait)>,
}

impl BatchLanes {
    /// The executor of a run. All runs of a lane without places go to one executor.
    pub(crate) fn choose(
        &mut self,
        run: &ClaimedRun,
        candidates: &Candidates,
        route: impl FnOnce() -> Option<ExecutorName>,
    ) -> Option<ExecutorName> {
        let Some(lane) = lane_of(run).filter(|place| place.slots.is_none()) else {
            return route();
        };
        let lane = lane.lane;
        let is_candidate = |name: &&ExecutorName| is_among(candidates, name);
        if let Some(name) = self.executors.get(&lane).filter(is_candidate) {
            return Some(name.clone());
        }
        let chosen = match self.following.get(&lane).filter(is_candidate) {
            Some(name) => {
                self.followed.insert(lane);
                Some(name.clone())
            }
            None => route(),
        };
        self.executors
            .extend(chosen.clone().map(|name| (lane, name)));
        chosen
    }

    /// Notes an executor that cannot be chosen any more.
    pub(crate) fn note(&mut self, run: &ClaimedRun) {
        if let (Some(place), Some(name)) = (run.lane(), &run.executor)
            && place.slots.is_none()
        {
            self.executors.insert(place.lane, name.clone());
        }
    }
}

/// What the handling of waits has to write.
#[derive(Default)]
struct Decided {
    back: Vec<ClaimedRun>,
    ended: Vec<(ClaimedRun, AttemptReport)>,
    /// Taken back by the store. Their definition may be that of an earlier group.
    released: Vec<AttemptId>,
    /// Beyond the memory limit.
    beyond: Vec<AttemptId>,
}

impl GroupLanes {
    /// Adds the probes that are due to the runs of a batch, and removes those that have to wait behind others.
    pub(crate) fn take(&self, due: Vec<ClaimedRun>, max: usize) -> Vec<ClaimedRun> {
        let mut waits = self.claims.lane_waits();
        if waits.is_empty() {
            return due;
        }
        let now = self.clock.now();
        let mut runs = Vec::new();
        for run in due {
            let lane = run.lane().filter(|place| !place.maybe_published);
            let backlog = usize::try_from(run.job.spec.backlog).unwrap_or(usize::MAX);
            // The store refuses a run that has no room, and says how many are before it.
            let has_room = |lane| waits.contains(lane) && waits.len_of(lane) < backlog;
            match lane.filter(|place| has_room(place.lane)) {
                Some(place) if waits.len() < self.max_held => waits.join(place.lane, run, now),
                _ => runs.push(run),
            }
        }
        let mut all = waits.pop_probes(now, max);
        all.append(&mut runs);
        all
    }

    /// Begins a batch.
    pub(crate) fn batch(&mut self) -> BatchLanes {
        BatchLanes {
            following: std::mem::take(&mut self.following),
            ..BatchLanes::default()
        }
    }

    /// Whether the results of a batch matter.
    pub(crate) fn is_idle(&self, waits: &[LaneWait]) -> bool {
        waits.is_empty() && self.claims.lane_waits().is_empty()
    }

    /// Holds the runs that wait, and lets those follow whose lane has become free.
    pub(crate) async fn settle(
        &mut self,
        node: NodeId,
        batch: &BatchLanes,
        results: LaneResults,
    ) -> Result<(), StoreError> {
        let mut decided = Decided::default();
        self.free_lanes(&results, &mut decided);
        for (run, wait) in results.waits {
            self.decide(batch, run, wait, &mut decided);
        }
        self.claims.schedule(decided.back);
        let ended = self.ends.write(decided.ended).await;
        let released = self.release(node, &decided.released, None).await;
        let due_at = Some(self.clock.now().plus_ms(IN_STORE_MS));
        let beyond = self.release(node, &decided.beyond, due_at).await;
        ended.and(released).and(beyond)
    }

    /// The runs behind a probe that was accepted, or is gone. All follow to the executor of a lane without places.
    fn free_lanes(&mut self, results: &LaneResults, decided: &mut Decided) {
        let now = self.clock.now();
        let mut waits = self.claims.lane_waits();
        let refused = results.refused.iter().map(|lane| (lane, None));
        let accepted = results
            .accepted
            .iter()
            .map(|(lane, name)| (lane, name.as_ref()));
        for (lane, executor) in accepted.chain(refused) {
            match executor {
                Some(executor) if waits.contains(*lane) => {
                    self.following.insert(*lane, executor.clone());
                    decided.back.extend(waits.release(*lane));
                }
                Some(_) => {}
                None => waits.probe_now(*lane, now),
            }
        }
    }

    fn decide(
        &mut self,
        batch: &BatchLanes,
        mut run: ClaimedRun,
        wait: LaneWait,
        decided: &mut Decided,
    ) {
        let Some(place) = run.lane() else { return };
        let (lane, now) = (place.lane, self.clock.now());
        if wait.undecided {
            let later = now.plus_ms(UNDECIDED_WAIT_MS);
            return self.claims.schedule_at(later, run);
        }
        if run.maybe_published {
            decided.released.push(wait.attempt);
            return;
        }
        run.executor = None;
        tracing::debug!(run_id = %run.id, reason = %wait.reason, "run waits for its lane");
        let spec = &run.job.spec;
        let backlog = spec.backlog;
        if wait.ahead >= u64::from(backlog) {
            let why = format!("the backlog of {backlog} is full");
            return decided.end(run, OutcomeKind::Discarded, now, why);
        }
        let candidates = self.registry.candidates(spec);
        let holder = wait.holder.filter(|name| is_among(&candidates, name));
        if let Some(holder) = holder.filter(|_| !batch.followed.contains(&lane)) {
            self.following.insert(lane, holder);
            decided.back.push(run);
            decided.back.extend(self.claims.lane_waits().release(lane));
            return;
        }
        let is_busy = matches!(wait.reason, LaneWaitReason::Busy(_));
        if spec.block == Block::Discard && is_busy {
            let why = format!("the lane is busy: {}", wait.reason);
            decided.back.extend(self.claims.lane_waits().release(lane));
            return decided.end(run, OutcomeKind::Discarded, now, why);
        }
        let mut waits = self.claims.lane_waits();
        if waits.len() >= self.max_held {
            decided.beyond.push(wait.attempt);
            return;
        }
        let is_cover = spec.block == Block::Cover && is_busy;
        waits.hold(lane, run, now);
        if is_cover {
            let newest = waits.last(lane);
            for older in waits.pop_older(lane) {
                let why = covered_by(newest);
                decided.end(older, OutcomeKind::Covered, now, why);
            }
        }
    }

    async fn release(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        due_at: Option<cueline_model::Timestamp>,
    ) -> Result<(), StoreError> {
        if attempts.is_empty() {
            return Ok(());
        }
        let released = self.store.release_claims(node, attempts, due_at).await;
        if released.is_err() {
            self.claims.set_uncertain();
        }
        self.claim.wake();
        released
    }
}

impl Decided {
    fn end(
        &mut self,
        run: ClaimedRun,
        kind: OutcomeKind,
        now: cueline_model::Timestamp,
        why: String,
    ) {
        let report = attempt_ended(run.attempt_id(), kind, now, why);
        self.ended.push((run, report));
    }
}

fn is_among(candidates: &Candidates, name: &ExecutorName) -> bool {
    candidates.iter().any(|candidate| candidate.name == *name)
}

fn covered_by(newest: Option<RunId>) -> String {
    match newest {
        Some(run) => format!("run {run} replaced it"),
        None => "a newer run replaced it before it started".to_owned(),
    }
}

/// The request for a run.
pub(crate) fn request(
    run: &ClaimedRun,
    executor: ExecutorName,
    group_rate: Option<Rate>,
) -> DispatchRequest {
    DispatchRequest {
        attempt: run.attempt_id(),
        job_version: run.job.version,
        executor,
        lane: lane_of(run),
        limits: run.limits(group_rate),
    }
}

/// The place of a run in the lane of its group.
pub(crate) fn lane_of(run: &ClaimedRun) -> Option<LanePlace> {
    if cueline_runtime::planted!("lane_per_executor") {
        return None;
    }
    run.lane()
}
