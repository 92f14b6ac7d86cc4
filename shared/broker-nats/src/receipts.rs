//! Deliveries that this process has fetched and not settled. No I/O.
//!
//! A receipt is valid until its delivery is settled, delivered again, or older than `ack_wait`. After that the server
//! may have delivered the message to another process.

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
pub(crate) struct Unsettled {
    /// The subject of its acks.
    pub(crate) ack_subject: Subject,
    /// The sequence number in the stream.
    pub(crate) sequence: u64,
    pub(crate) topic: String,
    /// Kept in case the message becomes a dead letter.
    pub(crate) payload: Bytes,
}

#[derive(Debug)]
pub(crate) struct Receipts {
    ack_wait: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next: u64,
    queues: HashMap<QueueId, QueueReceipts>,
}

#[derive(Debug, Default)]
struct QueueReceipts {
    /// Deliveries with their expiry times. Receipts only grow and `ack_wait` is constant, so the first entry expires
    /// first.
    by_receipt: BTreeMap<u64, (Unsettled, Instant)>,
    /// The valid receipt of each message.
    by_sequence: HashMap<u64, u64>,
}

impl Receipts {
    pub(crate) fn new(ack_wait: Duration) -> Self {
        // The random start distinguishes the receipts of processes. It decides nothing, so it needs no seed. The shift
        // leaves room to count.
        let next = RandomState::new().hash_one(std::process::id()) >> 1;
        let queues = HashMap::new();
        Self {
            ack_wait,
            state: Mutex::new(State { next, queues }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues a receipt for each delivery. An earlier receipt of the same message becomes invalid.
    pub(crate) fn issue(
        &self,
        queue: &QueueId,
        deliveries: impl Iterator<Item = Unsettled>,
        now: Instant,
    ) -> Vec<Receipt> {
        let mut guard = self.state();
        let state = &mut *guard;
        let receipts = state.queues.entry(queue.clone()).or_default();
        receipts.remove_expired(now);
        let expires_at = now + self.ack_wait;
        deliveries
            .map(|unsettled| {
                let receipt = state.next;
                state.next = state.next.wrapping_add(1);
                let sequence = unsettled.sequence;
                if let Some(earlier) = receipts.by_sequence.insert(sequence, receipt) {
                    receipts.by_receipt.remove(&earlier);
                }
                receipts.by_receipt.insert(receipt, (unsettled, expires_at));
                Receipt(receipt)
            })
            .collect()
    }

    /// Finds the deliveries of the valid receipts, each with the value that came with its receipt.
    pub(crate) fn find<T>(
        &self,
        queue: &QueueId,
        receipts: impl Iterator<Item = (Receipt, T)>,
        now: Instant,
    ) -> Vec<(Receipt, Unsettled, T)> {
        let state = self.state();
        let Some(issued) = state.queues.get(queue) else {
            return Vec::new();
        };
        receipts
            .filter_map(|(receipt, value)| {
                let (unsettled, expires_at) = issued.by_receipt.get(&receipt.0)?;
                (*expires_at > now).then(|| (receipt, unsettled.clone(), value))
            })
            .collect()
    }

    pub(crate) fn remove(&self, queue: &QueueId, receipts: impl Iterator<Item = Receipt>) {
        let mut state = self.state();
        if let Some(issued) = state.queues.get_mut(queue) {
            for receipt in receipts {
                issued.remove(receipt.0);
            }
            if issued.by_receipt.is_empty() {
                state.queues.remove(queue);
            }
        }
    }

    pub(crate) fn remove_queue(&self, queue: &QueueId) {
        self.state().queues.remove(queue);
    }
}

impl QueueReceipts {
    fn remove_expired(&mut self, now: Instant) {
        while let Some(first) = self.by_receipt.first_entry() {
            if first.get().1 > now {
                break;
            }
            let receipt = *first.key();
            self.remove(receipt);
        }
    }

    fn remove(&mut self, receipt: u64) {
        if let Some((unsettled, _)) = self.by_receipt.remove(&receipt) {
            self.by_sequence.remove(&unsettled.sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK_WAIT: Duration = Duration::from_secs(30);

    fn unsettled(sequence: u64) -> Unsettled {
        Unsettled {
            ack_subject: "ack".into(),
            sequence,
            topic: "t".into(),
            payload: Bytes::new(),
        }
    }

    fn found(receipts: &Receipts, all: &[Receipt], now: Instant) -> Vec<u64> {
        let asked = all.iter().map(|receipt| (*receipt, ()));
        let found = receipts.find(&QueueId::Results, asked, now);
        found.into_iter().map(|(_, u, ())| u.sequence).collect()
    }

    #[test]
    fn a_receipt_is_valid_until_ack_wait_a_redelivery_or_the_deletion_of_its_queue() {
        let (receipts, now) = (Receipts::new(ACK_WAIT), Instant::now());
        let issue = |sequences: &[u64], now| {
            let deliveries = sequences.iter().map(|s| unsettled(*s));
            receipts.issue(&QueueId::Results, deliveries, now)
        };
        let first = issue(&[1, 2, 3], now);
        assert_eq!(found(&receipts, &first, now), [1, 2, 3]);
        let again = issue(&[2], now + ACK_WAIT / 2);
        assert_eq!(found(&receipts, &first, now), [1, 3]);
        receipts.remove(&QueueId::Results, first[..1].iter().copied());
        assert_eq!(found(&receipts, &first, now), [3]);
        assert!(found(&receipts, &first, now + ACK_WAIT).is_empty());
        assert_eq!(found(&receipts, &again, now + ACK_WAIT), [2]);
        receipts.remove_queue(&QueueId::Results);
        assert!(found(&receipts, &again, now).is_empty());
    }

    #[test]
    fn expired_receipts_take_no_memory() {
        let (receipts, now) = (Receipts::new(ACK_WAIT), Instant::now());
        for round in 0..10_u64 {
            let deliveries = (0..100).map(|n| unsettled(round * 100 + n));
            let at = now + ACK_WAIT * u32::try_from(round).unwrap();
            receipts.issue(&QueueId::Results, deliveries, at);
        }
        let state = receipts.state();
        let issued = &state.queues[&QueueId::Results];
        assert_eq!(issued.by_receipt.len(), 100);
        assert_eq!(issued.by_sequence.len(), 100);
    }
}
