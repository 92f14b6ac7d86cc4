//! Reads messages with results into a batch of reports for one transaction. Pure.

use cueline_broker::{Delivery, QueueId};
use cueline_model::{ExecutorId, StoreId};
use cueline_protocol::{DecodeError, ReportMessage, decode_reports};
use cueline_store::{AttemptReport, NewDeadLetter};

use super::report_bounds::{MAX_REPORTS, beyond};
use crate::origin::forged::Forged;
use crate::origin::origins::Opened;
use crate::refused_messages::{LetterOrigin, RefusedMessages};
use crate::store_mismatch::store_mismatch;

/// The bytes of messages after which a batch takes no more. A message may become a dead letter of the same size, and those
/// without a seal have no reports.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A delivery whose origin was looked at.
pub(super) struct Message<'a> {
    pub(super) delivery: &'a Delivery,
    pub(super) opened: Result<Opened<'a>, Forged>,
}

/// The first messages of a fetch, enough to fill a transaction.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) reports: Vec<AttemptReport>,
    /// For each message, the number of reports up to its end.
    ends: Vec<usize>,
    /// For each message, why it becomes a dead letter.
    refused: Vec<Option<String>>,
}

impl Batch {
    /// Reads messages until their reports fill a batch of this size, or until they have many bytes.
    pub(super) fn read(messages: &[Message<'_>], size: usize, store_id: StoreId) -> Self {
        let (mut batch, mut bytes) = (Self::default(), 0_usize);
        for message in messages {
            if batch.reports.len() >= size.max(1) || bytes >= MAX_BYTES {
                break;
            }
            bytes = bytes.saturating_add(message.delivery.payload.len());
            let refused = match &message.opened {
                Ok(opened) => batch.read_reports(opened, store_id),
                Err(forged) => Some(format!("failed to verify the origin of results: {forged}")),
            };
            batch.refused.push(refused);
            batch.ends.push(batch.reports.len());
        }
        batch
    }

    /// The readable reports of a refused message are applied too, unless it has more than a message may have. After a
    /// replay they are applied again without effect.
    fn read_reports(&mut self, opened: &Opened<'_>, store_id: StoreId) -> Option<String> {
        let mut refused = None;
        let begin = self.reports.len();
        for message in decode_reports(opened.body).take(MAX_REPORTS + 1) {
            match report(message, opened, store_id) {
                Ok(report) => self.reports.push(report),
                Err(reason) => refused = refused.or(Some(reason)),
            }
        }
        let events = self.reports[begin..].iter().map(|report| &report.event);
        if let Some(why) = beyond(events) {
            self.reports.truncate(begin);
            refused = Some(format!("failed to ingest the reports: {why}"));
        }
        refused
    }

    /// The number of messages that were read.
    pub(super) fn messages(&self) -> usize {
        self.ends.len()
    }

    /// Makes the message of this report a dead letter. The first reason is kept.
    pub(super) fn refuse(&mut self, report: usize, why: String) {
        let message = self.ends.partition_point(|end| *end <= report);
        if let Some(refused) = self.refused.get_mut(message) {
            refused.get_or_insert(why);
        }
    }

    /// The dead letters of the refused messages. `messages` begin with those that were read.
    pub(super) fn letters(
        &self,
        messages: &[Message<'_>],
        refused_messages: &RefusedMessages,
    ) -> Vec<NewDeadLetter> {
        let refused = messages.iter().zip(&self.refused);
        refused
            .filter_map(|(message, reason)| {
                let reason = reason.clone()?;
                let opened = message.opened.as_ref().ok();
                let origin = opened.map(origin).unwrap_or_default();
                Some(refused_messages.letter(&QueueId::Results, message.delivery, reason, origin))
            })
            .collect()
    }
}

fn origin(opened: &Opened<'_>) -> LetterOrigin {
    match &opened.executor {
        Some(executor) => LetterOrigin::executor(executor),
        // Without seals, nothing but the message itself says whose it is.
        None => LetterOrigin::scheduler(None),
    }
}

fn report(
    message: Result<ReportMessage, DecodeError>,
    opened: &Opened<'_>,
    store_id: StoreId,
) -> Result<AttemptReport, String> {
    let message = message.map_err(|e| e.to_string())?;
    if let Some(mismatch) = store_mismatch(store_id, message.store) {
        return Err(format!("failed to ingest the report: {mismatch}"));
    }
    let attempt = message.attempt_id();
    let executor = ExecutorId {
        group: message.group,
        name: message.executor,
    };
    let named = opened.check_names(&executor);
    named.map_err(|forged| format!("failed to ingest the report: {forged}"))?;
    Ok(AttemptReport {
        attempt,
        executor: Some(executor),
        event: message.event,
    })
}

#[cfg(test)]
mod tests {
    use cueline_broker::Receipt;
    use cueline_protocol::origin::SealError;

    use super::*;

    #[test]
    fn a_batch_of_forged_messages_ends_at_a_number_of_bytes() {
        let of_bytes = |bytes: usize| Delivery {
            receipt: Receipt(1),
            topic: String::new(),
            payload: vec![0; bytes].into(),
            redelivered: false,
            deliveries: 1,
            moved_by_broker: false,
        };
        for (bytes, expected) in [
            (MAX_BYTES + 1, 1),
            (MAX_BYTES, 1),
            (MAX_BYTES / 2, 2),
            (1, 5),
        ] {
            let deliveries: Vec<Delivery> = (0..5).map(|_| of_bytes(bytes)).collect();
            let messages: Vec<Message<'_>> = deliveries
                .iter()
                .map(|delivery| Message {
                    delivery,
                    opened: Err(Forged::Seal(SealError::Missing)),
                })
                .collect();
            let batch = Batch::read(&messages, 2_000, StoreId(1));
            assert_eq!(batch.messages(), expected, "{bytes}");
        }
    }
}
