//! Prepare: takes runs off the wheel shortly before they are due, routes them, marks them `dispatching` in the store,
//! and writes their triggers.
//!
//! Prepare and publish are two stages, so that no slow call delays the publication of a due trigger. The store refuses
//! to mark a run that was cancelled, paused or edited since its claim. This refusal enforces G3.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::{AttemptId, ExecutorId, ExecutorName, Route, Timestamp};
use cueline_runtime::{Duty, Next};
use cueline_store::{
    BegunDispatch, ClaimedRun, DispatchRequest, LaneWait, LimitWait, NodeId, Store, StoreError,
};

use super::burst::{self, MAX_COUNTED};
use super::earlier_runs::EarlierRuns;
use super::group_lanes::{BatchLanes, GroupLanes, LaneResults, request};
use super::limited_runs::LimitedRuns;
use super::room::RoomQueue;
use super::trigger_writer::{TriggerWriter, WrittenTrigger};
use super::unroutable_runs::UnroutableRuns;
use crate::claims::wheel::Wheel;
use crate::claims::{NodeClaims, PendingPublish};
use crate::counters::Counters;
use crate::database_clock::DatabaseClock;
use crate::liveness::registry::Registry;
use crate::route::{Choice, Router};
use crate::times::elapsed_ms;

/// Takes runs off the wheel and writes their triggers.
pub(crate) struct Prepare {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) unroutable: UnroutableRuns,
    pub(crate) lanes: GroupLanes,
    pub(crate) limits: LimitedRuns,
    pub(crate) room: RoomQueue,
    pub(crate) router: Router,
    pub(crate) earlier_runs: EarlierRuns,
    pub(crate) triggers: TriggerWriter,
    pub(crate) ahead_ms: u64,
    pub(crate) batch: usize,
}

/// The clock is read again after this time, because it may have been set back.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The triggers of so few runs are written while the store marks them. With more, the store answers when a core is free.
const WRITTEN_AHEAD: usize = 4;
/// The wait while the node is not registered.
const NO_NODE_WAIT: Duration = Duration::from_millis(20);

impl Duty for Prepare {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "prepare"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let Some(node) = self.claims.node() else {
            return Ok(Next::After(NO_NODE_WAIT));
        };
        let due = {
            let mut wheel = self.claims.wheel();
            let until = self.clock.now().plus_ms(self.lead_ms(&wheel));
            wheel.pop_due(until, self.batch)
        };
        self.claims.forget_waiting(&due);
        let runs = self.lanes.take(due, self.batch);
        let runs = self.limits.take(runs, self.batch);
        self.router.begin_batch();
        let runs = self.room.take(runs, self.batch, &mut self.router);
        if runs.is_empty() {
            // What the limits let pass may wait for room now.
            self.limits.settle(node, Vec::new()).await?;
            return Ok(self.next_turn());
        }
        self.earlier_runs.read_for(&mut self.router, &runs).await;
        let changes = self.registry.changes();
        let mut batch = self.lanes.batch();
        let routed = self.route(runs, &mut batch);
        let written = self.write_ahead(&routed);
        let (begun, ahead) = tokio::join!(
            self.store.begin_dispatch_in_lanes(node, &routed.dispatches),
            async { self.triggers.sign(written) }
        );
        let begun = match begun {
            Ok(mut begun) => {
                if cueline_runtime::planted!("no_version_check") {
                    begun.accepted = routed.dispatches.iter().map(|d| d.attempt).collect();
                }
                begun
            }
            Err(e) => {
                // The runs may have been marked. Then a new claim finds them `dispatching`, with their executor.
                self.claims.set_uncertain();
                let others = routed.unroutable.into_iter().chain(routed.without_room);
                self.claims
                    .schedule(routed.runs.into_iter().chain(others).collect());
                return Err(e);
            }
        };
        let mut limited = Vec::new();
        let dispatches = routed.runs.into_iter().zip(routed.dispatches).collect();
        let results = self.add_triggers(node, dispatches, begun, ahead, &mut limited);
        // The runs that wait are in memory only, so an error with some of them must not lose the others.
        let limits = self.limits.settle(node, limited).await;
        let lanes = match results {
            Some(results) => self.lanes.settle(node, &batch, results).await,
            None => Ok(()),
        };
        let room = self.room.hold(node, routed.without_room).await;
        let unroutable = if routed.unroutable.is_empty() {
            Ok(())
        } else {
            let held = self.unroutable.hold(routed.unroutable).await;
            // An executor that appeared between routing and holding did not wake these runs.
            if self.registry.changes() != changes {
                self.claims.retry_unroutable();
            }
            held
        };
        limits.and(lanes).and(room).and(unroutable)?;
        Ok(self.next_turn())
    }
}

fn executor_of(run: &ClaimedRun, dispatch: &DispatchRequest) -> ExecutorId {
    ExecutorId {
        group: run.job.spec.group.clone(),
        name: dispatch.executor.clone(),
    }
}

/// `runs` and `dispatches` have the same length and order.
struct Routed {
    runs: Vec<ClaimedRun>,
    dispatches: Vec<DispatchRequest>,
    unroutable: Vec<ClaimedRun>,
    /// All executors that could run them are full.
    without_room: Vec<ClaimedRun>,
}

/// Why a run gets no executor now.
enum Unrouted {
    NoExecutor,
    NoRoom,
}

impl Prepare {
    fn route(&mut self, runs: Vec<ClaimedRun>, lanes: &mut BatchLanes) -> Routed {
        let now = self.clock.now();
        let rates = self.limits.group_rates.present();
        let mut routed = Routed {
            runs: Vec::with_capacity(runs.len()),
            dispatches: Vec::with_capacity(runs.len()),
            unroutable: Vec::new(),
            without_room: Vec::new(),
        };
        for run in runs {
            let executor = if run.maybe_published {
                // The trigger may be in that executor's queue. Another executor would run the attempt a second time.
                lanes.note(&run);
                run.executor.clone().ok_or(Unrouted::NoExecutor)
            } else {
                self.choose(&run, lanes, now)
            };
            match executor {
                Ok(executor) => {
                    let rate = rates.get(&run.job.spec.group).copied();
                    routed.dispatches.push(request(&run, executor, rate));
                    routed.runs.push(run);
                }
                Err(Unrouted::NoExecutor) => routed.unroutable.push(run),
                Err(Unrouted::NoRoom) => routed.without_room.push(run),
            }
        }
        routed
    }

    fn choose(
        &mut self,
        run: &ClaimedRun,
        lanes: &mut BatchLanes,
        now: Timestamp,
    ) -> Result<ExecutorName, Unrouted> {
        let candidates = self.registry.candidates(&run.job.spec);
        let (router, registry) = (&mut self.router, &self.registry);
        let mut why_not = Unrouted::NoExecutor;
        let route = || match router.choose(run, &candidates, &**registry, now) {
            Choice::Executor(executor) => Some(executor),
            Choice::NoExecutor => None,
            Choice::AwaitRoom => {
                why_not = Unrouted::NoRoom;
                None
            }
            Choice::AwaitAnswers => {
                // The answers put it back on the wheel.
                registry.await_answers(&run.job.spec.group, &candidates);
                None
            }
        };
        let Some(executor) = lanes.choose(run, &candidates, route) else {
            return Err(why_not);
        };
        self.router.record(run, &executor, now);
        Ok(executor)
    }

    /// Writes the triggers of a few runs before the store has accepted them.
    fn write_ahead(&mut self, routed: &Routed) -> Vec<WrittenTrigger> {
        if routed.runs.len() > WRITTEN_AHEAD {
            return Vec::new();
        }
        let now = self.clock.now();
        let pairs = routed.runs.iter().zip(&routed.dispatches);
        let written = pairs.map(|(run, dispatch)| {
            let session = self.registry.session(&executor_of(run, dispatch));
            self.triggers.write(run, dispatch.clone(), session, now)
        });
        written.collect()
    }

    /// Adds the triggers of the accepted runs; those that are not among the signed ones `ahead` are written and signed.
    /// `begun` lists a part of `dispatches`, in the same order. Returns what became of the lanes, if any run waits for one.
    /// Adds the runs that wait for a limit to `limited`.
    fn add_triggers(
        &mut self,
        node: NodeId,
        dispatches: Vec<(ClaimedRun, DispatchRequest)>,
        begun: BegunDispatch,
        ahead: Vec<PendingPublish>,
        limited: &mut Vec<(ClaimedRun, LimitWait)>,
    ) -> Option<LaneResults> {
        let mut results = (!self.lanes.is_idle(&begun.waits)).then(LaneResults::default);
        let mut waits: HashMap<AttemptId, LaneWait> = begun
            .waits
            .into_iter()
            .map(|wait| (wait.attempt, wait))
            .collect();
        let of_limits = begun.limit_waits.into_iter();
        let mut limit_waits: HashMap<AttemptId, LimitWait> =
            of_limits.map(|wait| (wait.attempt, wait)).collect();
        let mut marked = begun.accepted.into_iter().peekable();
        let ahead = ahead.into_iter();
        let mut ahead: HashMap<AttemptId, PendingPublish> =
            ahead.map(|one| (one.dispatch.attempt, one)).collect();
        let (mut written, mut pending) = (Vec::with_capacity(dispatches.len()), Vec::new());
        let mut leaves_room = false;
        let now = self.clock.now();
        for (run, dispatch) in dispatches {
            if marked.next_if_eq(&dispatch.attempt).is_some() {
                if let Some((results, place)) = results.as_mut().zip(run.lane()) {
                    let holder = place.slots.is_none().then(|| dispatch.executor.clone());
                    results.accepted.push((place.lane, holder));
                }
                if dispatch.limits.is_some() {
                    self.limits.note_dispatched(&run);
                }
                if cueline_runtime::planted!("doubled_publish") {
                    written.extend(self.double(&run, &dispatch, now));
                }
                let session = self.registry.note_given(&executor_of(&run, &dispatch));
                match ahead.remove(&dispatch.attempt) {
                    // Its executor has not restarted meanwhile.
                    Some(signed) if signed.session == session => pending.push(signed),
                    _ => written.push(self.triggers.write(&run, dispatch, session, now)),
                }
            } else if let Some(wait) = waits.remove(&dispatch.attempt) {
                leaves_room |= run.job.spec.route == Route::Any;
                self.router.forget(&run);
                results.get_or_insert_default().waits.push((run, wait));
            } else if let Some(wait) = limit_waits.remove(&dispatch.attempt) {
                leaves_room |= run.job.spec.route == Route::Any;
                self.router.forget(&run);
                limited.push((run, wait));
            } else {
                leaves_room |= run.job.spec.route == Route::Any;
                self.router.forget(&run);
                if let Some((results, place)) = results.as_mut().zip(run.lane()) {
                    results.refused.push(place.lane);
                }
                tracing::debug!(run_id = %run.id, "run was cancelled, paused or edited before its trigger was published");
            }
        }
        if leaves_room {
            self.claims.wake_room();
        }
        pending.extend(self.triggers.sign(written));
        let late_ms = pending
            .iter()
            .map(|trigger| elapsed_ms(trigger.due_at, now));
        self.counters.times.dispatch_lateness.record(late_ms);
        self.claims.add_marked(node, pending);
        self.claims.wake_publish.wake();
        results
    }

    /// The trigger of the same attempt for another executor. Only a planted bug publishes it.
    fn double(
        &mut self,
        run: &ClaimedRun,
        dispatch: &DispatchRequest,
        now: Timestamp,
    ) -> Option<WrittenTrigger> {
        let candidates = self.registry.candidates(&run.job.spec);
        let names = candidates.iter().map(|candidate| &candidate.name);
        let mut others = names.filter(|name| **name != dispatch.executor);
        let second = DispatchRequest {
            executor: others.next()?.clone(),
            ..dispatch.clone()
        };
        let session = self.registry.session(&executor_of(run, &second));
        let mut written = self.triggers.write(run, second, session, now);
        // Neither the node, which keeps one trigger for each run, nor a broker that drops repeated messages may hide the bug.
        written.pending.dispatch.attempt.run.0 |= 1 << 62;
        written.pending.message.id.push_str(":doubled");
        Some(written)
    }

    fn lead_ms(&self, wheel: &Wheel<ClaimedRun>) -> u64 {
        let due_together = wheel.next_due().map_or(0, |first| {
            wheel.count_due(first.plus_ms(self.ahead_ms), MAX_COUNTED)
        });
        burst::lead_ms(self.ahead_ms, due_together)
    }

    /// Waits half of `ahead_ms` longer than necessary, so that runs due shortly after each other share a transaction.
    fn next_turn(&self) -> Next {
        let (due, lead_ms) = {
            let wheel = self.claims.wheel();
            (wheel.next_due(), self.lead_ms(&wheel).cast_signed())
        };
        let now = self.clock.now();
        let linger_ms = self.ahead_ms.cast_signed() / 2;
        let due_ms = due.map(|due| due.since_ms(now) - lead_ms + linger_ms);
        let probe = self.claims.lane_waits().next_probe();
        let next_try = self.claims.room_waits().next_try();
        let next_limit = self.claims.limit_waits().next_try();
        let tries_ms = probe.into_iter().chain(next_try).chain(next_limit);
        let tries_ms = tries_ms.map(|at| at.since_ms(now));
        let Some(wait_ms) = due_ms.into_iter().chain(tries_ms).min() else {
            return Next::After(LONGEST_WAIT);
        };
        match u64::try_from(wait_ms) {
            Ok(wait @ 1..) => Next::After(LONGEST_WAIT.min(Duration::from_millis(wait))),
            _ => Next::Now,
        }
    }
}
