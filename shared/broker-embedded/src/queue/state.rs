//! The messages of one queue in memory, and the rules by which they become ready. No locks and no I/O.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cueline_broker::QueueId;
use tokio::time::Instant;

use crate::memory::{Message, Shared, later};

#[derive(Debug)]
pub(super) struct Again {
    pub(super) deliveries: u32,
    /// `None` until a fetch has loaded it.
    pub(super) message: Option<Message>,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    pub(super) deliveries: u32,
    pub(super) until: Instant,
    /// The file is recording an ack or a dead letter. The message must not be delivered again in the meantime.
    pub(super) settling: bool,
}

#[derive(Debug)]
pub(super) struct State {
    /// Messages that this process has never delivered, in order, without a gap up to `loaded_to`.
    pub(super) fresh: VecDeque<Message>,
    pub(super) loaded_to: i64,
    /// The highest id in the file. Only the file has the messages between `loaded_to` and this id.
    pub(super) committed: i64,
    pub(super) next_id: i64,
    /// Messages up to this id were in the file at opening. An earlier process may have delivered them.
    pub(super) inherited_to: i64,
    pub(super) again: BTreeMap<i64, Again>,
    /// Delayed messages by due time and id, with the number of their deliveries.
    pub(super) delayed: BTreeMap<(Instant, i64), u32>,
    /// Keyed by receipt. Receipts only grow and all leases have the same length, so the first lease expires first.
    pub(super) leases: BTreeMap<u64, Lease>,
    /// Messages that are committed and not settled.
    pub(super) messages: u64,
    /// Messages in the transaction that is being written.
    pub(super) reserved: u64,
    pub(super) deleted: bool,
}

impl State {
    /// Moves messages to `again` whose delay is over or whose lease has expired.
    pub(super) fn come_due(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry() {
            let (due, id) = *first.key();
            if due > now {
                break;
            }
            let deliveries = first.remove();
            self.ready_again(id, deliveries);
        }
        // Leases that are being settled keep their place: an ack or a dead letter decides about them.
        let late: Vec<u64> = self
            .leases
            .iter()
            .take_while(|(_, lease)| lease.until <= now)
            .filter(|(_, lease)| !lease.settling)
            .map(|(receipt, _)| *receipt)
            .collect();
        for receipt in late {
            if let Some(lease) = self.leases.remove(&receipt) {
                self.ready_again(lease.id, lease.deliveries);
            }
        }
    }

    pub(super) fn ready_again(&mut self, id: i64, deliveries: u32) {
        let again = Again {
            deliveries,
            message: None,
        };
        self.again.insert(id, again);
    }

    pub(super) fn give_back(&mut self, id: i64, deliveries: u32, delay: Duration, now: Instant) {
        if delay.is_zero() {
            self.ready_again(id, deliveries);
            return;
        }
        self.delayed.insert((later(now, delay), id), deliveries);
    }

    /// Takes the next message in memory, with the number of its earlier deliveries.
    pub(super) fn next_ready(&mut self) -> Option<(Message, u32)> {
        if let Some(mut first) = self.again.first_entry() {
            // If the next message is not loaded yet, return nothing: later messages must not overtake it. The fetch
            // loads it.
            let message = first.get_mut().message.take()?;
            return Some((message, first.remove().deliveries));
        }
        self.fresh.pop_front().map(|message| (message, 0))
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let delay = self.delayed.keys().next().map(|(due, _)| *due);
        let lease = self
            .leases
            .values()
            .find(|lease| !lease.settling)
            .map(|lease| lease.until);
        match (delay, lease) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(super) fn loaded_again(
        &mut self,
        ids: &[i64],
        messages: Vec<Message>,
        complete: bool,
        queue: &QueueId,
        shared: &Shared,
    ) {
        for message in messages {
            if let Some(again) = self.again.get_mut(&message.id)
                && again.message.is_none()
            {
                shared.hold(&message);
                again.message = Some(message);
            }
        }
        if !complete {
            return;
        }
        for id in ids {
            // Only damage to the file causes this. An unreadable message must not block the queue.
            if self.again.get(id).is_some_and(|a| a.message.is_none()) {
                tracing::error!(%queue, id, "a delivered message is no longer in the file; check the disk and the file for damage");
                self.again.remove(id);
                self.messages = self.messages.saturating_sub(1);
            }
        }
    }
}
