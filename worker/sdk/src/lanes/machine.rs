//! All lanes of a worker.

use std::collections::{BTreeSet, HashMap};

use cueline_model::Block;

use super::lane::{Lane, ReadyLane, Waiting};
use super::request::{LaneKey, LaneRequest, NotStarted, Place, Step};
use crate::context::StopReason;
use crate::identity::{AttemptKey, RunKey};

/// A run whose attempt waits or runs.
#[derive(Debug)]
pub(super) struct HeldRun {
    attempt: u32,
    lane: LaneKey,
    place: Place,
    running: bool,
    stopping: bool,
    /// A newer attempt of the same run. It waits until the running one has ended.
    pub(super) next: Option<Box<Waiting>>,
}

impl HeldRun {
    fn key(&self, run: RunKey) -> AttemptKey {
        AttemptKey {
            run,
            attempt: self.attempt,
        }
    }

    /// Asks the running attempt to stop. Later requests change nothing.
    fn stop(&mut self, run: RunKey, reason: StopReason) -> Option<Step> {
        let first = !self.stopping;
        self.stopping = true;
        first.then(|| Step::Stop(self.key(run), reason))
    }

    fn drop_next(&mut self, why: NotStarted) -> Option<Step> {
        let next = self.next.take()?;
        Some(Step::End(next.request.key, why))
    }
}

/// All lanes of a worker.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(super) by_key: HashMap<LaneKey, Lane>,
    pub(super) runs: HashMap<RunKey, HeldRun>,
    pub(super) ready: BTreeSet<ReadyLane>,
    counter: u64,
    running: usize,
    capacity: usize,
    /// All requests are refused for this reason.
    pub(super) closed: Option<NotStarted>,
}

impl Lanes {
    /// `capacity` is the most attempts that run at once.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            by_key: HashMap::new(),
            runs: HashMap::new(),
            ready: BTreeSet::new(),
            counter: 0,
            running: 0,
            capacity,
            closed: None,
        }
    }

    /// Number of runs that wait or run.
    pub(crate) fn held(&self) -> usize {
        self.runs.len()
    }

    /// Number of lanes in which an attempt runs or waits, and of those that wait for nothing but free capacity.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.by_key.len(), self.ready.len())
    }

    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// The newest attempt of `run` that waits or runs.
    pub(crate) fn newest_attempt(&self, run: RunKey) -> Option<u32> {
        let held = self.runs.get(&run)?;
        let next = held.next.as_ref().map(|next| next.request.key.attempt);
        Some(next.unwrap_or(held.attempt))
    }

    /// Sets the most attempts that run at once. Running attempts are left alone.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Applies the lane's policy to a new request. An attempt that is not newer than the held one of its run is
    /// ignored.
    pub(crate) fn accept(&mut self, request: LaneRequest, steps: &mut Vec<Step>) {
        let run = request.key.run;
        if self.newest_attempt(run) >= Some(request.key.attempt) {
            return;
        }
        if let Some(why) = self.closed {
            steps.push(Step::End(request.key, why));
            return;
        }
        let must_wait = self.supersede(request.key, steps);
        let lane_key = request.lane;
        let lane = self.by_key.entry(lane_key).or_default();
        lane.adopt_policy(&request);
        let refused = match lane.block {
            Block::Cover => {
                let newer = self.newer_run(&request);
                if newer.is_none() {
                    self.cover(lane_key, run, steps);
                }
                newer.map(NotStarted::CoveredBy)
            }
            // A newer attempt is not refused because its own predecessor still runs. At its end, that one frees a slot,
            // and with it a place in the backlog.
            Block::Discard | Block::Serial | Block::Parallel(_) if must_wait => None,
            Block::Discard => lane.is_busy().then_some(NotStarted::LaneBusy),
            Block::Serial | Block::Parallel(_) => lane
                .is_full()
                .then_some(NotStarted::BacklogFull(lane.backlog)),
        };
        if let Some(why) = refused {
            steps.push(Step::End(request.key, why));
            self.update_ready(lane_key);
            return;
        }
        let waiting = self.number(request);
        match self.runs.get_mut(&run) {
            Some(held) if must_wait => {
                held.next = Some(Box::new(waiting));
                self.update_ready(lane_key);
            }
            _ => self.enqueue(waiting),
        }
    }

    /// Puts back a request that waited before a restart. The policy is not applied again.
    pub(crate) fn restore(&mut self, request: LaneRequest) {
        let lane = self.by_key.entry(request.lane).or_default();
        lane.adopt_policy(&request);
        let waiting = self.number(request);
        self.enqueue(waiting);
    }

    /// Frees the lane of a running attempt whose handler has returned.
    pub(crate) fn finished(&mut self, key: AttemptKey) {
        let runs = |held: &HeldRun| held.attempt == key.attempt && held.running;
        if !self.runs.get(&key.run).is_some_and(runs) {
            return;
        }
        let Some(held) = self.runs.remove(&key.run) else {
            return;
        };
        self.running -= 1;
        if let Some(lane) = self.by_key.get_mut(&held.lane) {
            lane.running.retain(|run| *run != key.run);
        }
        if let Some(next) = held.next {
            let lane = self.by_key.entry(next.request.lane).or_default();
            lane.adopt_policy(&next.request);
            self.enqueue(*next);
        }
        self.update_ready(held.lane);
    }

    /// Cancels `run`. A run that is not held is ignored.
    pub(crate) fn cancel(&mut self, run: RunKey, steps: &mut Vec<Step>) {
        let Some(held) = self.runs.get_mut(&run) else {
            return;
        };
        steps.extend(held.drop_next(NotStarted::Cancelled));
        let key = held.key(run);
        if held.running {
            held.stopping = true;
            steps.push(Step::Stop(key, StopReason::Cancelled));
        } else {
            self.remove_waiting(key);
            steps.push(Step::End(key, NotStarted::Cancelled));
        }
    }

    /// Refuses all further requests for this reason, and ends all waiting ones in the order of arrival.
    pub(crate) fn close(&mut self, why: NotStarted, steps: &mut Vec<Step>) {
        self.closed = Some(why);
        let mut waiting: Vec<Waiting> = Vec::new();
        for lane in self.by_key.values_mut() {
            waiting.extend(lane.waiting.drain(..));
            lane.ready = None;
        }
        self.ready.clear();
        self.by_key.retain(|_, lane| lane.is_busy());
        for ended in &waiting {
            self.runs.remove(&ended.request.key.run);
        }
        for held in self.runs.values_mut() {
            waiting.extend(held.next.take().map(|next| *next));
        }
        waiting.sort_unstable_by_key(|ended| ended.order);
        let ends = waiting.iter().map(|w| Step::End(w.request.key, why));
        steps.extend(ends);
    }

    /// Accepts requests again.
    pub(crate) fn reopen(&mut self) {
        self.closed = None;
    }

    /// Starts attempts as far as capacity and policies allow.
    pub(crate) fn start_ready(&mut self, steps: &mut Vec<Step>) {
        while self.running < self.capacity {
            let Some(ready) = self.ready.pop_first() else {
                return;
            };
            let Some(lane) = self.by_key.get_mut(&ready.lane) else {
                continue;
            };
            lane.ready = None;
            let Some(first) = lane.waiting.pop_front() else {
                continue;
            };
            let key = first.request.key;
            lane.running.push(key.run);
            if let Some(held) = self.runs.get_mut(&key.run) {
                held.running = true;
            }
            self.running += 1;
            steps.push(Step::Start(key));
            self.update_ready(ready.lane);
        }
    }

    /// Ends or stops the older attempt of the same run. True if the older one still runs: then the newer one must wait
    /// for its end.
    fn supersede(&mut self, newer: AttemptKey, steps: &mut Vec<Step>) -> bool {
        let Some(held) = self.runs.get_mut(&newer.run) else {
            return false;
        };
        let why = NotStarted::SupersededBy(newer.attempt);
        steps.extend(held.drop_next(why));
        if held.running {
            steps.extend(held.stop(newer.run, StopReason::Cancelled));
            return true;
        }
        let older = held.key(newer.run);
        self.remove_waiting(older);
        steps.push(Step::End(older, why));
        false
    }

    /// Another run in the lane that is newer than this request. The broker may deliver an older trigger again, and a
    /// failover may route an older run again.
    fn newer_run(&self, request: &LaneRequest) -> Option<RunKey> {
        let (lane, place) = (self.by_key.get(&request.lane)?, request.place());
        let waiting = lane.waiting.iter().map(|w| w.request.key.run);
        let mut runs = waiting.chain(lane.running.iter().copied());
        runs.find(|run| {
            let is_newer = |held: &HeldRun| held.place > place;
            *run != request.key.run && self.runs.get(run).is_some_and(is_newer)
        })
    }

    /// Ends or stops everything else in a `cover` lane.
    fn cover(&mut self, key: LaneKey, newest: RunKey, steps: &mut Vec<Step>) {
        let Some(lane) = self.by_key.get_mut(&key) else {
            return;
        };
        let why = NotStarted::CoveredBy(newest);
        for waiting in lane.waiting.drain(..) {
            self.runs.remove(&waiting.request.key.run);
            steps.push(Step::End(waiting.request.key, why));
        }
        for run in &lane.running {
            let Some(held) = self.runs.get_mut(run) else {
                continue;
            };
            // The newest request may be the next attempt of a running run. It must not cover itself.
            if *run != newest {
                steps.extend(held.drop_next(why));
            }
            steps.extend(held.stop(*run, StopReason::Covered));
        }
    }

    fn number(&mut self, request: LaneRequest) -> Waiting {
        self.counter += 1;
        Waiting {
            request,
            order: self.counter,
        }
    }

    fn enqueue(&mut self, waiting: Waiting) {
        let (key, lane) = (waiting.request.key, waiting.request.lane);
        let held = HeldRun {
            attempt: key.attempt,
            lane,
            place: waiting.request.place(),
            running: false,
            stopping: false,
            next: None,
        };
        self.runs.insert(key.run, held);
        self.by_key.entry(lane).or_default().insert(waiting);
        self.update_ready(lane);
    }

    fn remove_waiting(&mut self, key: AttemptKey) {
        if let Some(held) = self.runs.remove(&key.run) {
            if let Some(lane) = self.by_key.get_mut(&held.lane) {
                lane.waiting.retain(|w| w.request.key != key);
            }
            self.update_ready(held.lane);
        }
    }

    /// Keeps `ready` in line with the lane, and removes an empty lane.
    fn update_ready(&mut self, key: LaneKey) {
        let Some(lane) = self.by_key.get_mut(&key) else {
            return;
        };
        let urgency = lane.startable().map(|first| u8::MAX - first.priority);
        // A new ticket only if the urgency changed: otherwise the lane would lose its turn with each request.
        if lane.ready.map(|ready| ready.urgency) != urgency {
            if let Some(old) = lane.ready.take() {
                self.ready.remove(&old);
            }
            if let Some(urgency) = urgency {
                self.counter += 1;
                let ready = ReadyLane {
                    urgency,
                    ticket: self.counter,
                    lane: key,
                };
                lane.ready = Some(ready);
                self.ready.insert(ready);
            }
        }
        if !lane.is_busy() {
            self.by_key.remove(&key);
        }
    }
}
