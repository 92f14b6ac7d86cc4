//! Triggers that wait for their publication, and the queues that are held back after a publish without an answer.
//!
//! Pure: it reads no clock and publishes nothing.

use std::collections::HashMap;

use cueline_broker::{Outgoing, QueueId};
use cueline_model::{GroupName, RunId, Session, Timestamp};
use cueline_store::DispatchRequest;

use super::wheel::Wheel;

/// A hold lasts about a second. One that ends later than this was begun before the clock was set back, and is over.
const MAX_HOLD_MS: i64 = 60_000;
/// A queue that accepts nothing for this long after its first hold gives up the triggers behind it.
const GIVE_UP_AFTER_MS: u64 = 30_000;

/// The pending triggers. The triggers of a queue leave it in the order of the [`Wheel`]. After a publish without an
/// answer, the whole queue is held back.
///
/// A queue that never answers is retried for ever. What waits behind it is bounded, because it would fill the memory
/// for claims. After 30 s without an accepted trigger, all triggers behind it that are due leave by
/// [`pop_stuck`](Self::pop_stuck), and so do those that follow. Only triggers that may have been published stay. These
/// are the oldest ones of the queue, at most as many as are published at once.
#[derive(Debug, Default)]
pub(crate) struct PendingPublishes {
    wheel: Wheel<PendingPublish>,
    /// At most one for each queue, for one retry.
    holds: HashMap<QueueId, Hold>,
    /// The runs whose triggers are in a hold, with its queue.
    held: HashMap<RunId, QueueId>,
    /// The queues that have accepted nothing since their first hold, and when they give up the triggers behind them.
    give_up_at: HashMap<QueueId, Timestamp>,
}

/// Nothing is published to the queue until the hold ends. Its triggers then return to the wheel.
#[derive(Debug)]
struct Hold {
    until: Timestamp,
    give_up_at: Timestamp,
    /// Triggers that may have been published.
    unanswered: Wheel<PendingPublish>,
    /// Triggers that were certainly not published.
    behind: Wheel<PendingPublish>,
}

impl Hold {
    fn new(until: Timestamp, give_up_at: Timestamp) -> Self {
        Self {
            until,
            give_up_at,
            unanswered: Wheel::default(),
            behind: Wheel::default(),
        }
    }

    fn insert(&mut self, trigger: PendingPublish) {
        let wheel = if trigger.maybe_published {
            &mut self.unanswered
        } else {
            &mut self.behind
        };
        trigger.insert_into(wheel);
    }

    fn remove(&mut self, run: RunId) {
        self.unanswered.remove(run);
        self.behind.remove(run);
    }

    /// When it ends or has something to give up.
    fn next_due(&self) -> Timestamp {
        let behind = self.behind.next_due();
        behind.map_or(self.until, |due| self.until.min(due.max(self.give_up_at)))
    }

    fn into_triggers(self) -> impl Iterator<Item = PendingPublish> {
        let unanswered = self.unanswered.into_items();
        unanswered.chain(self.behind.into_items())
    }
}

impl PendingPublishes {
    /// Replaces the run's trigger if there is one.
    pub(crate) fn insert(&mut self, trigger: PendingPublish) {
        let run = trigger.dispatch.attempt.run;
        self.remove(run);
        let queue = &trigger.message.queue;
        if let Some(hold) = self.holds.get_mut(queue) {
            self.held.insert(run, queue.clone());
            hold.insert(trigger);
        } else {
            trigger.insert_into(&mut self.wheel);
        }
    }

    fn remove(&mut self, run: RunId) {
        self.wheel.remove(run);
        if let Some(queue) = self.held.remove(&run)
            && let Some(hold) = self.holds.get_mut(&queue)
        {
            hold.remove(run);
        }
    }

    /// Publishes nothing to the queue before `until`.
    pub(crate) fn hold_queue(&mut self, queue: QueueId, until: Timestamp) {
        let latest = until.plus_ms(GIVE_UP_AFTER_MS);
        let give_up_at = self.give_up_at.entry(queue.clone()).or_insert(latest);
        // It is later than that only if the clock was set back.
        *give_up_at = latest.min(*give_up_at);
        let give_up_at = *give_up_at;
        let hold = self.holds.entry(queue);
        hold.or_insert_with(|| Hold::new(until, give_up_at)).until = until;
    }

    /// The queue has accepted a trigger. The time until it gives up begins again with its next hold.
    pub(crate) fn note_accepted(&mut self, queue: &QueueId) {
        if !self.give_up_at.is_empty() {
            self.give_up_at.remove(queue);
        }
    }

    /// Removes at most `max` triggers that are due at or before `now`, in order. Leaves those of held queues.
    pub(crate) fn pop_due(&mut self, now: Timestamp, max: usize) -> Vec<PendingPublish> {
        if self.len() == 0 {
            // The queues without an answer have nothing to retry, and may never get a trigger again.
            self.give_up_at.clear();
        }
        self.end_holds(now);
        let mut due = Vec::new();
        while due.len() < max {
            let popped = self.wheel.pop_due(now, max - due.len());
            if popped.is_empty() {
                break;
            }
            for trigger in popped {
                if self.holds.contains_key(&trigger.message.queue) {
                    self.insert(trigger);
                } else {
                    due.push(trigger);
                }
            }
        }
        due
    }

    /// Removes at most `max` triggers of one queue that has accepted nothing for too long, in order. They are due and
    /// were certainly not published. The caller releases their runs, so that they can be routed again.
    pub(crate) fn pop_stuck(&mut self, now: Timestamp, max: usize) -> Vec<PendingPublish> {
        let mut holds = self.holds.values_mut();
        let stuck = holds.find_map(|hold| {
            let is_late = hold.give_up_at <= now;
            let behind = is_late.then(|| hold.behind.pop_due(now, max));
            behind.filter(|triggers| !triggers.is_empty())
        });
        let stuck = stuck.unwrap_or_default();
        for trigger in &stuck {
            self.held.remove(&trigger.dispatch.attempt.run);
        }
        stuck
    }

    /// All runs are marked again before their triggers are published. Their marks are of an earlier identity of this node.
    pub(crate) fn mark_again(&mut self) {
        let holds = self.holds.values_mut();
        let held =
            holds.flat_map(|hold| hold.unanswered.items_mut().chain(hold.behind.items_mut()));
        for trigger in self.wheel.items_mut().chain(held) {
            trigger.is_dispatch_uncertain = true;
        }
    }

    /// Removes the triggers that were certainly not published.
    pub(crate) fn take_unpublished(&mut self) -> Vec<PendingPublish> {
        let wheel = std::mem::take(&mut self.wheel).into_items();
        let (maybe_published, mut unpublished): (Vec<_>, Vec<_>) =
            wheel.partition(|trigger| trigger.maybe_published);
        for hold in self.holds.values_mut() {
            unpublished.extend(std::mem::take(&mut hold.behind).into_items());
        }
        for trigger in &unpublished {
            self.held.remove(&trigger.dispatch.attempt.run);
        }
        for trigger in maybe_published {
            self.insert(trigger);
        }
        unpublished
    }

    /// When there may be something to publish or to release.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let holds = self.holds.values().map(Hold::next_due);
        self.wheel.next_due().into_iter().chain(holds).min()
    }

    pub(crate) fn len(&self) -> usize {
        self.wheel.len() + self.held.len()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Their places put the returned triggers before newer ones.
    fn end_holds(&mut self, now: Timestamp) {
        let is_over = |hold: &Hold| hold.until <= now || hold.until.since_ms(now) > MAX_HOLD_MS;
        let ended = self.holds.extract_if(|_, hold| is_over(hold));
        let ended: Vec<Hold> = ended.map(|(_, hold)| hold).collect();
        for trigger in ended.into_iter().flat_map(Hold::into_triggers) {
            self.insert(trigger);
        }
    }
}

/// A trigger whose run is `dispatching` in the store, to be published when it is due.
#[derive(Debug)]
pub(crate) struct PendingPublish {
    /// Attempt, job version and executor that the store recorded for the dispatch.
    pub(crate) dispatch: DispatchRequest,
    /// The dispatch record may be outdated. It is written again before the trigger is published.
    pub(crate) is_dispatch_uncertain: bool,
    /// An earlier publish was neither confirmed nor refused. Retry it until the broker accepts it. Never reroute it,
    /// because the attempt could run twice.
    pub(crate) maybe_published: bool,
    /// See [`is_skipped_if_late`](super::is_skipped_if_late).
    pub(crate) is_skipped_if_late: bool,
    /// The group of its executor.
    pub(crate) group: GroupName,
    /// The session of its executor that the trigger names.
    pub(crate) session: Option<Session>,
    /// After this instant the trigger is rebuilt with a new deadline, because too little of the old one is left.
    pub(crate) rebuild_after: Timestamp,
    pub(crate) due_at: Timestamp,
    /// Its place among the triggers of its queue. Not after its due time.
    pub(crate) order_at: Timestamp,
    pub(crate) priority: u8,
    pub(crate) message: Outgoing,
}

impl PendingPublish {
    /// Call this after an unanswered publish. An executor may already have taken the trigger.
    pub(crate) fn unanswered(self) -> Self {
        Self {
            is_dispatch_uncertain: true,
            maybe_published: true,
            ..self
        }
    }

    fn insert_into(self, wheel: &mut Wheel<Self>) {
        let run = self.dispatch.attempt.run;
        wheel.insert(self.order_at, self.priority, run, self);
    }
}

#[cfg(test)]
mod tests;
