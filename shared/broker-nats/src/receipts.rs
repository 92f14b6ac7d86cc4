//! What this process has been handed out and has not settled. Decides; does no input or output.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use cueline_broker::{QueueId, Receipt};
use tokio::time::Instant;

/// A delivery that can be settled.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// Where to say what becomes of it.
    pub(crate) ack: Subject,
    /// Its number in the stream.
    pub(crate) sequence: u64,
    pub(crate) topic: String,
    /// For the dead letter that it may become.
    pub(crate) payload: Bytes,
}

#[derive(Debug)]
struct Lease {
    held: Held,
    until: Instant,
}

#[derive(Debug, Default)]
struct Leases {
    /// Receipts only grow, and all leases last equally long: the first is the next to end.
    by_receipt: BTreeMap<u64, Lease>,
    /// The one valid receipt of a message.
    by_sequence: HashMap<u64, u64>,
}

/// Receipts of all queues.
#[derive(Debug)]
pub(crate) struct Receipts {
    ack_wait: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next: u64,
    queues: HashMap<QueueId, Leases>,
}

impl Receipts {
    pub(crate) fn new(ack_wait: Duration) -> Self {
        // Apart from those of other processes, with room to count; an identity, not a decision that a seed should reproduce.
        let next = RandomState::new().hash_one(std::process::id()) >> 1;
        Self {
            ack_wait,
            state: Mutex::new(State {
                next,
                queues: HashMap::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in deliveries; a message that was held already has a new receipt from now on.
    pub(crate) fn hold(
        &self,
        queue: &QueueId,
        deliveries: impl Iterator<Item = Held>,
        now: Instant,
    ) -> Vec<Receipt> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let leases = state.queues.entry(queue.clone()).or_default();
        leases.let_go_until(now);
        let until = now + self.ack_wait;
        let mut receipts = Vec::with_capacity(deliveries.size_hint().0);
        for held in deliveries {
            let receipt = state.next;
            state.next = state.next.wrapping_add(1);
            if let Some(before) = leases.by_sequence.insert(held.sequence, receipt) {
                leases.by_receipt.remove(&before);
            }
            leases.by_receipt.insert(receipt, Lease { held, until });
            receipts.push(Receipt(receipt));
        }
        receipts
    }

    /// What the receipt stands for, while the server waits for its ack.
    pub(crate) fn held<T>(
        &self,
        queue: &QueueId,
        receipts: impl Iterator<Item = (Receipt, T)>,
        now: Instant,
    ) -> Vec<(Receipt, Held, T)> {
        let state = self.lock();
        let Some(leases) = state.queues.get(queue) else {
            return Vec::new();
        };
        receipts
            .filter_map(|(receipt, with)| {
                let lease = leases.by_receipt.get(&receipt.0)?;
                (lease.until > now).then(|| (receipt, lease.held.clone(), with))
            })
            .collect()
    }

    /// These are settled.
    pub(crate) fn settled(&self, queue: &QueueId, receipts: impl Iterator<Item = Receipt>) {
        let mut state = self.lock();
        if let Some(leases) = state.queues.get_mut(queue) {
            for receipt in receipts {
                leases.remove(receipt.0);
            }
            if leases.by_receipt.is_empty() {
                state.queues.remove(queue);
            }
        }
    }

    /// The queue is gone, and what was handed out of it.
    pub(crate) fn forget(&self, queue: &QueueId) {
        self.lock().queues.remove(queue);
    }
}

impl Leases {
    fn let_go_until(&mut self, now: Instant) {
        while let Some(first) = self.by_receipt.first_entry() {
            if first.get().until > now {
                break;
            }
            let receipt = *first.key();
            self.remove(receipt);
        }
    }

    fn remove(&mut self, receipt: u64) {
        if let Some(lease) = self.by_receipt.remove(&receipt) {
            let sequence = lease.held.sequence;
            if self.by_sequence.get(&sequence) == Some(&receipt) {
                self.by_sequence.remove(&sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(30);

    fn held(sequence: u64) -> Held {
        Held {
            ack: "ack".into(),
            sequence,
            topic: "t".into(),
            payload: Bytes::new(),
        }
    }

    fn found(receipts: &Receipts, all: &[Receipt], now: Instant) -> Vec<u64> {
        let asked = all.iter().map(|receipt| (*receipt, ()));
        let found = receipts.held(&QueueId::Results, asked, now);
        found
            .into_iter()
            .map(|(_, held, ())| held.sequence)
            .collect()
    }

    #[test]
    fn a_receipt_is_good_until_ack_wait_a_redelivery_or_the_end_of_its_queue() {
        let (receipts, now) = (Receipts::new(WAIT), Instant::now());
        let hold = |sequences: &[u64], now| {
            let deliveries = sequences.iter().map(|s| held(*s));
            receipts.hold(&QueueId::Results, deliveries, now)
        };
        let first = hold(&[1, 2, 3], now);
        assert_eq!(found(&receipts, &first, now), [1, 2, 3]);
        let again = hold(&[2], now + WAIT / 2);
        assert_eq!(found(&receipts, &first, now), [1, 3]);
        receipts.settled(&QueueId::Results, first[..1].iter().copied());
        assert_eq!(found(&receipts, &first, now), [3]);
        assert!(found(&receipts, &first, now + WAIT).is_empty());
        assert_eq!(found(&receipts, &again, now + WAIT), [2]);
        receipts.forget(&QueueId::Results);
        assert!(found(&receipts, &again, now).is_empty());
    }

    #[test]
    fn what_is_over_takes_no_memory() {
        let (receipts, now) = (Receipts::new(WAIT), Instant::now());
        for round in 0..10_u64 {
            let deliveries = (0..100).map(|n| held(round * 100 + n));
            let at = now + WAIT * u32::try_from(round).unwrap();
            receipts.hold(&QueueId::Results, deliveries, at);
        }
        let state = receipts.lock();
        let leases = &state.queues[&QueueId::Results];
        assert_eq!(leases.by_receipt.len(), 100);
        assert_eq!(leases.by_sequence.len(), 100);
    }
}
