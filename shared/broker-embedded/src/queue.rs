//! The state of one queue in memory: the next ready messages, the leases of deliveries, and the messages to deliver
//! again. No I/O. The messages themselves are in the file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cueline_broker::{Delivery, QueueId, Receipt, Refusal, Settlement};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::memory::{Message, Shared, id_range, later};
use state::{Lease, State};

mod state;

/// The most messages that one load takes from the file.
pub(crate) const LOAD_MESSAGES: usize = 4_096;

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) key: i64,
    /// Wakes fetches: a message may be ready, or the queue is deleted.
    pub(crate) changed: Notify,
    /// Held by the fetch that loads from the file, because two loads at once would read the same messages.
    pub(crate) loading: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

/// The result of a fetch from memory.
#[derive(Debug)]
pub(crate) enum Taken {
    Messages(Vec<Delivery>),
    /// No message is ready. The next one becomes ready at this time, if it is known.
    Nothing(Option<Instant>),
    /// The queue was deleted.
    Gone,
}

/// A range of messages to read from the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Messages with these ids, which are delivered again.
    Again(Vec<i64>),
    /// New messages with ids above `after`, up to and including `to`.
    Fresh { after: i64, to: i64 },
}

/// The settlements that the file must record.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    pub(crate) acks: Vec<Held>,
    pub(crate) dead: Vec<(Held, String)>,
}

impl Settling {
    pub(crate) fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.dead.is_empty()
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = Held> + '_ {
        let dead = self.dead.iter().map(|(held, _)| *held);
        self.acks.iter().copied().chain(dead)
    }
}

/// A delivered message and its receipt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) receipt: u64,
    pub(crate) id: i64,
}

impl Queue {
    /// Makes a queue from the file, which holds `messages` messages with ids up to `last`.
    pub(crate) fn new(id: QueueId, key: i64, messages: u64, last: i64) -> Self {
        let (before_first, _) = id_range(key);
        let last = last.max(before_first);
        let state = State {
            fresh: VecDeque::new(),
            loaded_to: before_first,
            committed: last,
            next_id: last + 1,
            inherited_to: last,
            again: BTreeMap::new(),
            delayed: BTreeMap::new(),
            leases: BTreeMap::new(),
            messages,
            reserved: 0,
            deleted: false,
        };
        Self {
            id,
            key,
            changed: Notify::new(),
            loading: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves an id for a message to write, unless the queue is full or deleted.
    pub(crate) fn reserve(&self, limit: u64) -> Result<i64, Refusal> {
        let mut state = self.lock();
        if state.deleted {
            return Err(Refusal::NoQueue(self.id.to_string()));
        }
        if state.messages + state.reserved >= limit || state.next_id > id_range(self.key).1 {
            let queue = self.id.to_string();
            return Err(Refusal::Full { queue, limit });
        }
        state.reserved += 1;
        let id = state.next_id;
        state.next_id += 1;
        Ok(id)
    }

    /// Drops the reservation of `count` messages, because their transaction failed. Their ids are not used again.
    pub(crate) fn release(&self, count: u64) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(count);
    }

    /// Adds the messages of a committed transaction, in the order of their ids.
    pub(crate) fn committed(&self, messages: impl Iterator<Item = Message>, shared: &Shared) {
        let mut guard = self.lock();
        let state = &mut *guard;
        for message in messages {
            state.reserved = state.reserved.saturating_sub(1);
            state.messages += 1;
            let follows = state.loaded_to == state.committed;
            state.committed = message.id;
            // Keep the message in memory only if memory holds all messages before it. A gap would break the order.
            if follows && state.fresh.len() < shared.window_messages && shared.has_room(&message) {
                state.loaded_to = message.id;
                shared.hold(&message);
                state.fresh.push_back(message);
            }
        }
        drop(guard);
        self.changed.notify_waiters();
    }

    /// Delivers up to `max` messages from memory: first the ones to deliver again, then new ones.
    pub(crate) fn take(&self, max: usize, now: Instant, shared: &Shared) -> Taken {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.deleted {
            return Taken::Gone;
        }
        state.come_due(now);
        let until = later(now, shared.ack_wait);
        let mut taken = Vec::with_capacity(max.min(state.fresh.len() + state.again.len()));
        while taken.len() < max {
            let Some((message, before)) = state.next_ready() else {
                break;
            };
            let receipt = shared.next_receipt.fetch_add(1, Ordering::Relaxed);
            let deliveries = before.saturating_add(1);
            state.leases.insert(
                receipt,
                Lease {
                    id: message.id,
                    deliveries,
                    until,
                    settling: false,
                },
            );
            shared.let_go(&message);
            taken.push(Delivery {
                receipt: Receipt(receipt),
                topic: message.topic,
                payload: message.payload,
                redelivered: before > 0 || message.id <= state.inherited_to,
                deliveries,
                moved_by_broker: false,
            });
        }
        if taken.is_empty() {
            Taken::Nothing(state.next_due())
        } else {
            Taken::Messages(taken)
        }
    }

    /// Decides what to read from the file for a fetch of `max` messages in order. `None` if memory has them.
    pub(crate) fn load_wanted(&self, max: usize, now: Instant) -> Option<Load> {
        let mut state = self.lock();
        if state.deleted {
            return None;
        }
        state.come_due(now);
        let again: Vec<i64> = state
            .again
            .iter()
            .take(max.min(LOAD_MESSAGES))
            .filter(|(_, again)| again.message.is_none())
            .map(|(id, _)| *id)
            .collect();
        if !again.is_empty() {
            return Some(Load::Again(again));
        }
        let in_memory = state.fresh.len() + state.again.len();
        (in_memory < max && state.loaded_to < state.committed).then(|| Load::Fresh {
            after: state.loaded_to,
            to: state.committed,
        })
    }

    /// Adds the messages that were read for `load`. `complete` means that the file has no more of them.
    pub(crate) fn loaded(
        &self,
        load: &Load,
        messages: Vec<Message>,
        complete: bool,
        shared: &Shared,
    ) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.deleted {
            return;
        }
        match load {
            Load::Fresh { to, .. } => {
                if complete {
                    state.loaded_to = *to;
                } else if let Some(last) = messages.last() {
                    state.loaded_to = last.id;
                }
                for message in messages {
                    shared.hold(&message);
                    state.fresh.push_back(message);
                }
            }
            Load::Again(ids) => state.loaded_again(ids, messages, complete, &self.id, shared),
        }
    }

    /// Starts to settle. Retries take effect now. The file must record the rest; then call [`settled`](Self::settled).
    pub(crate) fn settle(&self, settlements: &[(Receipt, Settlement)], now: Instant) -> Settling {
        let mut settling = Settling::default();
        let mut given_back = false;
        let mut guard = self.lock();
        let state = &mut *guard;
        for (Receipt(receipt), settlement) in settlements {
            let Some(lease) = state.leases.get_mut(receipt) else {
                continue;
            };
            let held = Held {
                receipt: *receipt,
                id: lease.id,
            };
            match settlement {
                Settlement::Ack => {
                    lease.settling = true;
                    settling.acks.push(held);
                }
                Settlement::Dead(reason) => {
                    lease.settling = true;
                    settling.dead.push((held, reason.clone()));
                }
                // An ack that is being written is final.
                Settlement::Retry(_) if lease.settling => {}
                Settlement::Retry(delay) => {
                    let (id, deliveries) = (lease.id, lease.deliveries);
                    state.leases.remove(receipt);
                    state.give_back(id, deliveries, *delay, now);
                    given_back = true;
                }
            }
        }
        drop(guard);
        if given_back {
            self.changed.notify_waiters();
        }
        settling
    }

    /// Ends the leases of messages that the file no longer holds.
    pub(crate) fn settled(&self, held: impl Iterator<Item = Held>) {
        let mut state = self.lock();
        for held in held {
            if state.leases.remove(&held.receipt).is_some() {
                state.messages = state.messages.saturating_sub(1);
            }
        }
    }

    /// Keeps the leases of messages whose settlement failed.
    pub(crate) fn not_settled(&self, held: impl Iterator<Item = Held>) {
        let mut state = self.lock();
        for held in held {
            if let Some(lease) = state.leases.get_mut(&held.receipt) {
                lease.settling = false;
            }
        }
        drop(state);
        // A fetch may have skipped them when their leases expired during the write.
        self.changed.notify_waiters();
    }

    /// Counts the ready and the unsettled messages.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.lock();
        let unsettled = state.leases.len() as u64;
        (state.messages.saturating_sub(unsettled), unsettled)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.messages + state.reserved == 0
    }

    /// Drops the state of a queue that was deleted from the file.
    pub(crate) fn delete(&self, shared: &Shared) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.deleted = true;
        let again = std::mem::take(&mut state.again);
        let held = std::mem::take(&mut state.fresh)
            .into_iter()
            .chain(again.into_values().filter_map(|again| again.message));
        for message in held {
            shared.let_go(&message);
        }
        state.leases.clear();
        state.delayed.clear();
        state.messages = 0;
        drop(guard);
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
