//! Reads a message of the broker's dead-letter queue, and tells who has put it there.
//!
//! Workers put the messages there that they refuse, sealed. The broker moves messages by itself, and these have no seals.
//! Everybody else with rights on that queue is unknown, and what a letter of theirs says counts for nothing.

use cueline_broker::{BrokerError, DeadLetter, Delivery, QueueId};
use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::origin::{Purpose, SealError, Sealed};
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
    /// The executor whose message it is: it has refused it, or it has sent it. `None` if that is not verified.
    pub(crate) origin: Option<ExecutorId>,
    /// Why the letter counts as forged.
    pub(crate) forged: Option<Forged>,
}

impl ReceivedLetter {
    pub(crate) fn read(
        delivery: &Delivery,
        origins: &Origins,
        signer: &TriggerSigner,
        now: Timestamp,
    ) -> Self {
        match origins.open(Purpose::DeadLetter, &delivery.payload, now) {
            Ok(opened) => Self::of_worker(&opened),
            Err(Forged::Seal(SealError::Missing)) => {
                Self::unsealed(&delivery.payload, origins, signer, now)
            }
            Err(forged) => {
                let sealed = Sealed::parse(&delivery.payload);
                let body = sealed.map_or(&delivery.payload[..], |sealed| sealed.body);
                Self {
                    letter: DeadLetter::decode(body),
                    origin: None,
                    forged: Some(forged),
                }
            }
        }
    }

    /// A worker refuses what is in its own queue, and nothing else. Without seals, the queue tells which worker it was.
    fn of_worker(opened: &Opened<'_>) -> Self {
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
        Self {
            letter,
            origin,
            forged,
        }
    }

    /// A letter without a seal: the broker has moved it, or its sender is unknown. What schedulers have signed and what
    /// workers have sealed is known even then.
    fn unsealed(payload: &[u8], origins: &Origins, signer: &TriggerSigner, now: Timestamp) -> Self {
        let letter = DeadLetter::decode(payload);
        let moved = letter.as_ref().ok().filter(|letter| letter.by_broker);
        let origin = moved.and_then(|moved| {
            if moved.queue == QueueId::Results.to_string() {
                let opened = origins.open(Purpose::Reports, &moved.payload, now);
                return opened.ok()?.executor;
            }
            let executor = reader_of(moved)?;
            let trigger = decode::<Trigger>(&moved.payload).ok()?;
            // An executor that has the trigger may send it in a letter that names the queue of another one. The signature
            // covers the executor that it was written for.
            let is_for = trigger.group == executor.group && trigger.executor == executor.name;
            (is_for && signer.has_signed(&moved.payload, &trigger)).then_some(executor)
        });
        let is_moved = moved.is_some();
        Self {
            letter,
            origin,
            forged: (!is_moved).then_some(Forged::Seal(SealError::Missing)),
        }
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
