//! Requests of callers to the writer, and their answers after the transaction.

use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::{ErrorKind, QueueId, Refusal, StartLog};
use tokio::sync::{mpsc, oneshot};

use crate::file::Failure;
use crate::memory::{Message, Shared};
use crate::queue::{Held, Queue, Settling};

/// Requests that may wait for the writer. Further callers wait for room.
pub(crate) const WAITING_REQUESTS: usize = 256;

/// The most messages and bytes of one transaction, unless a single request is larger.
const GROUP_MESSAGES: usize = 10_000;
const GROUP_BYTES: usize = 16 << 20;

pub(crate) type Answer<T> = oneshot::Sender<Result<T, Failure>>;

/// A message to write, and its place in the caller's batch.
pub(crate) struct Entry {
    pub(crate) place: usize,
    pub(crate) queue: Arc<Queue>,
    /// Its id is 0 until one is reserved.
    pub(crate) message: Message,
}

/// A request to the writer.
pub(crate) enum Request {
    Write(Work),
    Declare {
        queue: QueueId,
        answer: Answer<()>,
    },
    Delete {
        queue: QueueId,
        only_if_empty: bool,
        answer: Answer<bool>,
    },
    DeclareLog {
        log: StartLog,
        answer: Answer<()>,
    },
    DeleteLog {
        log: StartLog,
        answer: Answer<()>,
    },
}

/// A request that can share a transaction with others.
pub(crate) enum Work {
    Publish(Publish),
    Settle(Settle),
    Append(Append),
}

pub(crate) struct Publish {
    pub(crate) entries: Vec<Entry>,
    /// Refused messages, by their place in the caller's batch.
    pub(crate) refused: Vec<(usize, Refusal)>,
    pub(crate) answer: Answer<Vec<(usize, Refusal)>>,
}

pub(crate) struct Settle {
    pub(crate) queue: Arc<Queue>,
    pub(crate) settling: Settling,
    /// Dead letters that stay in their queue, because the dead-letter queue is full.
    pub(crate) unmoved: Vec<Held>,
    pub(crate) answer: Answer<()>,
}

/// One record for a start log.
pub(crate) struct Append {
    pub(crate) log: StartLog,
    pub(crate) record: Bytes,
    /// Whether the log exists, and the record was therefore written. Set by the transaction.
    pub(crate) written: bool,
    pub(crate) answer: Answer<bool>,
}

impl Work {
    /// The number of messages and of payload bytes.
    fn weight(&self) -> (usize, usize) {
        match self {
            Self::Publish(publish) => (
                publish.entries.len(),
                publish
                    .entries
                    .iter()
                    .map(|entry| entry.message.payload.len())
                    .sum(),
            ),
            Self::Settle(settle) => (settle.settling.acks.len() + settle.settling.dead.len(), 0),
            Self::Append(append) => (1, append.record.len()),
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        match self {
            Self::Publish(publish) => &publish.entries,
            Self::Settle(_) | Self::Append(_) => &[],
        }
    }

    pub(crate) fn take_entries(&mut self) -> Vec<Entry> {
        match self {
            Self::Publish(publish) => std::mem::take(&mut publish.entries),
            Self::Settle(_) | Self::Append(_) => Vec::new(),
        }
    }

    /// Drops the reservations of a failed transaction, which can then be tried again.
    pub(crate) fn undo(&mut self) {
        match self {
            Self::Publish(publish) => {
                for entry in &mut publish.entries {
                    if std::mem::take(&mut entry.message.id) != 0 {
                        entry.queue.release(1);
                    }
                }
            }
            Self::Settle(settle) => settle.unmoved.clear(),
            Self::Append(append) => append.written = false,
        }
    }

    /// Answers the caller after the commit.
    pub(crate) fn succeed(self) {
        match self {
            Self::Publish(publish) => {
                let _ = publish.answer.send(Ok(publish.refused));
            }
            Self::Settle(settle) => settle.succeed(),
            Self::Append(append) => {
                let _ = append.answer.send(Ok(append.written));
            }
        }
    }

    /// Answers the caller after a failed transaction that is not tried again.
    pub(crate) fn fail(self, failure: Failure) {
        match self {
            Self::Publish(publish) => {
                let _ = publish.answer.send(Err(failure));
            }
            Self::Settle(settle) => {
                settle.queue.not_settled(settle.settling.held());
                let _ = settle.answer.send(Err(failure));
            }
            Self::Append(append) => {
                let _ = append.answer.send(Err(failure));
            }
        }
    }
}

impl Publish {
    /// Reserves ids for the messages that fit, and refuses the others.
    pub(crate) fn reserve(&mut self, shared: &Shared) {
        let refused = &mut self.refused;
        self.entries.retain_mut(|entry| {
            match entry.queue.reserve(shared.queue_limit) {
                Ok(id) => entry.message.id = id,
                Err(refusal) => refused.push((entry.place, refusal)),
            }
            entry.message.id != 0
        });
    }
}

impl Settle {
    fn succeed(self) {
        let unmoved = &self.unmoved;
        let moved = |held: &Held| !unmoved.iter().any(|other| other.receipt == held.receipt);
        self.queue.settled(self.settling.held().filter(moved));
        if unmoved.is_empty() {
            let _ = self.answer.send(Ok(()));
            return;
        }
        self.queue.not_settled(unmoved.iter().copied());
        let _ = self.answer.send(Err(Failure {
            kind: ErrorKind::Transient,
            message: format!(
                "failed to move {} messages of {} to the dead-letter queue: it is full",
                unmoved.len(),
                self.queue.id
            ),
            connection_lost: false,
            no_room: false,
        }));
    }
}

/// Collects waiting requests up to the limits. Stops at the first request that needs a transaction of its own.
pub(crate) fn gather(
    first: Work,
    requests: &mut mpsc::Receiver<Request>,
) -> (Vec<Work>, Option<Request>) {
    let (mut messages, mut bytes) = first.weight();
    let mut group = vec![first];
    while messages < GROUP_MESSAGES && bytes < GROUP_BYTES {
        match requests.try_recv() {
            Ok(Request::Write(work)) => {
                let weight = work.weight();
                messages += weight.0;
                bytes += weight.1;
                group.push(work);
            }
            Ok(own) => return (group, Some(own)),
            Err(_) => break,
        }
    }
    (group, None)
}
