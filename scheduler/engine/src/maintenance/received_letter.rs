//! Reads a message of the broker's dead-letter queue, and tells who has put it there.
//!
//! Workers put the messages there that they refuse, sealed. The broker moves messages by itself, and these have no seals.
//! Everybody else with rights on that queue is unknown, and what a letter of theirs says counts for nothing. That the
//! broker has moved a message, its driver tells.

use cueline_broker::{BrokerError, DeadLetter, Delivery, QueueId};
use cueline_model::{ExecutorId, StoreId, Timestamp};
use cueline_protocol::origin::{Purpose, Sealed};
use cueline_protocol::{Trigger, decode};

use crate::addresses::executor_queue;
use crate::dead_letter_queue::queue_of;
use crate::origin::forged::Forged;
use crate::origin::origins::{Opened, Origins};
use crate::pipeline::trigger_writer::TriggerSigner;

/// A dead letter with what is known about its origin.
#[derive(Debug)]
pub(crate) struct ReceivedLetter {
    pub(crate) letter: Result<DeadLetter, BrokerError>,
    /// Whether the broker has moved the message, so that no executor has refused it.
    pub(crate) moved_by_broker: bool,
    /// The executor whose message it is: it has refused it, or it has sent it. `None` if that is not verified.
    pub(crate) origin: Option<ExecutorId>,
    /// Why the letter counts as forged.
    pub(crate) forged: Option<Forged>,
}

/// What the origin of a letter is judged by.
#[derive(Clone, Copy)]
pub(crate) struct LetterReader<'a> {
    pub(crate) origins: &'a Origins,
    pub(crate) signer: &'a TriggerSigner,
    pub(crate) store_id: StoreId,
    pub(crate) now: Timestamp,
}

impl LetterReader<'_> {
    pub(crate) fn read(self, delivery: &Delivery) -> ReceivedLetter {
        if delivery.moved_by_broker {
            return self.moved(&delivery.payload);
        }
        let opened = self
            .origins
            .open(Purpose::DeadLetter, &delivery.payload, self.now);
        match opened {
            Ok(opened) => of_worker(&opened),
            Err(forged) => {
                let sealed = Sealed::parse(&delivery.payload);
                let body = sealed.map_or(&delivery.payload[..], |sealed| sealed.body);
                ReceivedLetter {
                    letter: DeadLetter::decode(body),
                    moved_by_broker: false,
                    origin: None,
                    forged: Some(forged),
                }
            }
        }
    }

    /// A letter that the broker has moved, so it has no seal. What schedulers have signed and what workers have sealed is
    /// known even then.
    fn moved(self, payload: &[u8]) -> ReceivedLetter {
        let letter = DeadLetter::decode(payload);
        let origin = letter
            .as_ref()
            .ok()
            .and_then(|moved| self.origin_of_moved(moved));
        ReceivedLetter {
            letter,
            moved_by_broker: true,
            origin,
            forged: None,
        }
    }

    fn origin_of_moved(self, moved: &DeadLetter) -> Option<ExecutorId> {
        if moved.queue == QueueId::Results.to_string() {
            let opened = self
                .origins
                .open(Purpose::Reports, &moved.payload, self.now);
            return opened.ok()?.executor;
        }
        let executor = reader_of(moved)?;
        let trigger = decode::<Trigger>(&moved.payload).ok()?;
        // An executor that has the trigger may have put it where the broker drops it. The signature covers the executor and
        // the store that it was written for.
        let is_for = trigger.store == self.store_id
            && trigger.group == executor.group
            && trigger.executor == executor.name;
        (is_for && self.signer.has_signed(&moved.payload, &trigger)).then_some(executor)
    }
}

/// A worker refuses what is in its own queue, and nothing else. Without seals, the queue tells which worker it was.
fn of_worker(opened: &Opened<'_>) -> ReceivedLetter {
    let letter = DeadLetter::decode(opened.body);
    let (origin, forged) = match (&opened.executor, &letter) {
        (None, Ok(letter)) => (reader_of(letter), None),
        (Some(sealer), Ok(letter)) if letter.queue == queue_name(sealer) => {
            (Some(sealer.clone()), None)
        }
        (Some(sealer), Ok(_)) => {
            let sealer = sealer.clone();
            (None, Some(Forged::OtherQueue { sealer }))
        }
        (_, Err(_)) => (None, None),
    };
    ReceivedLetter {
        letter,
        moved_by_broker: false,
        origin,
        forged,
    }
}

fn queue_name(executor: &ExecutorId) -> String {
    executor_queue(&executor.group, &executor.name).to_string()
}

/// The executor whose queue the message was in.
fn reader_of(letter: &DeadLetter) -> Option<ExecutorId> {
    match queue_of(&letter.queue, &letter.payload)? {
        QueueId::Executor { group, executor } => Some(ExecutorId {
            group: group.parse().ok()?,
            name: executor.parse().ok()?,
        }),
        _ => None,
    }
}
