//! The lane machine: what becomes of each trigger that a worker has accepted.
//!
//! Pure: inputs go in, [`Step`]s come out, and whoever drives it carries them out. It knows no I/O, no clock and no
//! tokio. A lane is busy while an attempt of it runs or waits. Room is what all lanes share; of the lanes that wait
//! for room the one with the higher priority goes first, and among equals each in turn, so that the backlog of one job
//! never holds back another.

mod lane;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use cueline_model::{Block, JobId};
use cueline_protocol::Trigger;

use crate::context::StopReason;
use crate::stores::{AttemptKey, RunKey, StoreNumber};
use lane::{Lane, Ready, Waiting};

/// Names a lane: a job, or one shard of a job whose shards do not wait for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LaneKey {
    /// Another store's job of the same number is another job.
    pub(crate) store: StoreNumber,
    pub(crate) job: JobId,
    pub(crate) shard: Option<u32>,
}

/// What the machine has to know of a trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) id: AttemptKey,
    pub(crate) lane: LaneKey,
    /// Version of the job: the lane follows the policy of the newest one that it has seen.
    pub(crate) version: i64,
    pub(crate) block: Block,
    pub(crate) backlog: u32,
    pub(crate) priority: u8,
}

impl Arrival {
    pub(crate) fn of(id: AttemptKey, trigger: &Trigger) -> Self {
        let job = &trigger.job;
        Self {
            id,
            lane: LaneKey {
                store: id.run.store(),
                job: job.id,
                shard: job.lane_per_shard.then_some(trigger.shard.index),
            },
            version: job.version,
            block: job.block,
            backlog: job.backlog,
            priority: job.priority,
        }
    }
}

/// Why an attempt ended without having been started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unstarted {
    /// It met a busy `discard` lane.
    Busy,
    /// The lane's backlog of so many was full.
    Full(u32),
    /// The newer trigger of this run replaced it.
    Covered(RunKey),
    /// Its run was cancelled.
    Cancelled,
    /// This newer attempt of the same run came.
    Superseded(u32),
    /// The worker drains.
    Returned,
    /// The worker has no contact with the broker.
    Fenced,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start the handler.
    Start(AttemptKey),
    /// Tell the running handler to stop; its end is still to come.
    Stop(AttemptKey, StopReason),
    /// It is over, and was never started.
    End(AttemptKey, Unstarted),
}

/// Where a held attempt is.
#[derive(Debug)]
struct Place {
    attempt: u32,
    lane: LaneKey,
    running: bool,
    stopping: bool,
    /// A newer attempt of the same run, which waits until this one has ended.
    next: Option<Box<(Arrival, u64)>>,
}

/// All lanes of a worker.
#[derive(Debug)]
pub(crate) struct Lanes {
    by_key: HashMap<LaneKey, Lane>,
    runs: HashMap<RunKey, Place>,
    ready: BTreeSet<Ready>,
    counter: u64,
    running: usize,
    room: usize,
    /// Nothing is taken, for this reason.
    closed: Option<Unstarted>,
}

impl Lanes {
    /// No lanes; at most `room` attempts run at once.
    pub(crate) fn new(room: usize) -> Self {
        Self {
            by_key: HashMap::new(),
            runs: HashMap::new(),
            ready: BTreeSet::new(),
            counter: 0,
            running: 0,
            room,
            closed: None,
        }
    }

    /// Attempts that are held: waiting or running.
    pub(crate) fn held(&self) -> usize {
        self.runs.len()
    }

    /// Attempts that run.
    #[cfg(test)]
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// The newest attempt of `run` that is held.
    pub(crate) fn newest(&self, run: RunKey) -> Option<u32> {
        let place = self.runs.get(&run)?;
        Some(
            place
                .next
                .as_ref()
                .map_or(place.attempt, |n| n.0.id.attempt),
        )
    }

    /// Lets at most `room` attempts run at once from now on. What runs is left alone.
    pub(crate) fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// A trigger has come. The caller has sorted out attempts that are not newer than what is held.
    pub(crate) fn arrive(&mut self, arrival: Arrival, steps: &mut Vec<Step>) {
        if self.newest(arrival.id.run) >= Some(arrival.id.attempt) {
            return;
        }
        if let Some(why) = self.closed {
            steps.push(Step::End(arrival.id, why));
            return;
        }
        let behind = self.supersede(arrival.id, steps);
        let lane = self.by_key.entry(arrival.lane).or_default();
        lane.adopt(&arrival);
        let refused = match lane.block {
            Block::Cover => {
                self.sweep(arrival.lane, arrival.id.run, steps);
                None
            }
            Block::Discard => (lane.is_busy() && !behind).then_some(Unstarted::Busy),
            Block::Serial | Block::Parallel(_) => {
                lane.is_full().then_some(Unstarted::Full(lane.backlog))
            }
        };
        if let Some(why) = refused {
            steps.push(Step::End(arrival.id, why));
            self.refresh(arrival.lane);
            return;
        }
        self.counter += 1;
        let order = self.counter;
        let key = arrival.lane;
        match self.runs.get_mut(&arrival.id.run) {
            Some(place) if behind => {
                place.next = Some(Box::new((arrival, order)));
                self.refresh(key);
            }
            _ => self.enqueue(&arrival, order),
        }
    }

    /// Puts back what was waiting before a restart, in the order of the calls. No policy is applied: that was done
    /// when it came.
    pub(crate) fn restore(&mut self, arrival: &Arrival) {
        self.by_key.entry(arrival.lane).or_default().adopt(arrival);
        self.counter += 1;
        self.enqueue(arrival, self.counter);
    }

    /// A running attempt has really ended.
    pub(crate) fn ended(&mut self, id: AttemptKey) {
        let Some(place) = self.runs.get(&id.run) else {
            return;
        };
        if place.attempt != id.attempt || !place.running {
            return;
        }
        let Some(place) = self.runs.remove(&id.run) else {
            return;
        };
        self.running -= 1;
        if let Some(lane) = self.by_key.get_mut(&place.lane) {
            lane.running.retain(|run| *run != id.run);
        }
        if let Some(next) = place.next {
            let (arrival, order) = *next;
            self.by_key.entry(arrival.lane).or_default().adopt(&arrival);
            self.enqueue(&arrival, order);
        }
        self.refresh(place.lane);
    }

    /// `run` is cancelled. Nothing happens when it is not held.
    pub(crate) fn cancel(&mut self, run: RunKey, steps: &mut Vec<Step>) {
        let Some(place) = self.runs.get_mut(&run) else {
            return;
        };
        if let Some(next) = place.next.take() {
            steps.push(Step::End(next.0.id, Unstarted::Cancelled));
        }
        let id = AttemptKey {
            run,
            attempt: place.attempt,
        };
        if place.running {
            place.stopping = true;
            steps.push(Step::Stop(id, StopReason::Cancelled));
        } else {
            self.drop_waiting(id);
            steps.push(Step::End(id, Unstarted::Cancelled));
        }
    }

    /// The worker takes no more, for this reason: everything that waits is given back, in the order in which it came.
    pub(crate) fn close(&mut self, why: Unstarted, steps: &mut Vec<Step>) {
        self.closed = Some(why);
        let mut back: Vec<(u64, AttemptKey)> = Vec::new();
        for lane in self.by_key.values_mut() {
            back.extend(lane.waiting.drain(..).map(|w| (w.order, w.id)));
            lane.ready = None;
        }
        self.ready.clear();
        self.by_key.retain(|_, lane| lane.is_busy());
        for (_, id) in &back {
            self.runs.remove(&id.run);
        }
        for place in self.runs.values_mut() {
            back.extend(place.next.take().map(|n| (n.1, n.0.id)));
        }
        back.sort_unstable();
        steps.extend(back.into_iter().map(|(_, id)| Step::End(id, why)));
    }

    /// The worker takes triggers again.
    pub(crate) fn reopen(&mut self) {
        self.closed = None;
    }

    /// Starts what can start.
    pub(crate) fn pump(&mut self, steps: &mut Vec<Step>) {
        while self.running < self.room {
            let Some(ready) = self.ready.pop_first() else {
                return;
            };
            let Some(lane) = self.by_key.get_mut(&ready.lane) else {
                continue;
            };
            lane.ready = None;
            let Some(head) = lane.waiting.pop_front() else {
                continue;
            };
            lane.running.push(head.id.run);
            if let Some(place) = self.runs.get_mut(&head.id.run) {
                place.running = true;
            }
            self.running += 1;
            steps.push(Step::Start(head.id));
            self.refresh(ready.lane);
        }
    }

    /// Makes way for a newer attempt of the same run. True when the older one runs, so that the newer has to wait.
    fn supersede(&mut self, newer: AttemptKey, steps: &mut Vec<Step>) -> bool {
        let Some(place) = self.runs.get_mut(&newer.run) else {
            return false;
        };
        let older = AttemptKey {
            run: newer.run,
            attempt: place.attempt,
        };
        let why = Unstarted::Superseded(newer.attempt);
        if let Some(next) = place.next.take() {
            steps.push(Step::End(next.0.id, why));
        }
        if place.running {
            if !place.stopping {
                place.stopping = true;
                steps.push(Step::Stop(older, StopReason::Cancelled));
            }
            return true;
        }
        self.drop_waiting(older);
        steps.push(Step::End(older, why));
        false
    }

    /// The newest trigger of a cover lane has come: all others of the lane make way.
    fn sweep(&mut self, key: LaneKey, newest: RunKey, steps: &mut Vec<Step>) {
        let Some(lane) = self.by_key.get_mut(&key) else {
            return;
        };
        for waiting in lane.waiting.drain(..) {
            self.runs.remove(&waiting.id.run);
            steps.push(Step::End(waiting.id, Unstarted::Covered(newest)));
        }
        for run in &lane.running {
            let Some(place) = self.runs.get_mut(run) else {
                continue;
            };
            if *run != newest
                && let Some(next) = place.next.take()
            {
                steps.push(Step::End(next.0.id, Unstarted::Covered(newest)));
            }
            if !place.stopping {
                place.stopping = true;
                let attempt = place.attempt;
                steps.push(Step::Stop(
                    AttemptKey { run: *run, attempt },
                    StopReason::Covered,
                ));
            }
        }
    }

    fn enqueue(&mut self, arrival: &Arrival, order: u64) {
        let place = Place {
            attempt: arrival.id.attempt,
            lane: arrival.lane,
            running: false,
            stopping: false,
            next: None,
        };
        self.runs.insert(arrival.id.run, place);
        let waiting = Waiting {
            id: arrival.id,
            order,
            priority: arrival.priority,
        };
        self.by_key
            .entry(arrival.lane)
            .or_default()
            .insert_in_order(waiting);
        self.refresh(arrival.lane);
    }

    fn drop_waiting(&mut self, id: AttemptKey) {
        if let Some(place) = self.runs.remove(&id.run) {
            if let Some(lane) = self.by_key.get_mut(&place.lane) {
                lane.waiting.retain(|w| w.id != id);
            }
            self.refresh(place.lane);
        }
    }

    /// Notes whether the lane can start something, and forgets it when it is empty.
    fn refresh(&mut self, key: LaneKey) {
        let Some(lane) = self.by_key.get_mut(&key) else {
            return;
        };
        let urgency = lane.startable().map(|head| u8::MAX - head.priority);
        if lane.ready.map(|r| r.urgency) != urgency {
            if let Some(old) = lane.ready.take() {
                self.ready.remove(&old);
            }
            if let Some(urgency) = urgency {
                self.counter += 1;
                let ready = Ready {
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
