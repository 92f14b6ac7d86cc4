//! Publishes batches: all messages go out one after the other, their confirmations are awaited together.

use std::collections::HashMap;
use std::sync::Arc;

use async_nats::HeaderMap;
use cueline_broker::{BrokerError, Outgoing, QueueId, Refusal};
use serde::Deserialize;

use crate::error::{Told, code, transient};
use crate::names::{Place, Stream};
use crate::pipeline::{Answer, Pipeline, Question};
use crate::queues::{Known, Queues};

/// What headers may take of a message; the rest is the payload's.
pub(crate) const HEADER_BYTES: usize = 4 << 10;
/// An id longer than this is left out: deduplication saves work, no guarantee rests on it.
const LONGEST_ID: usize = 512;
const ID: &str = "Nats-Msg-Id";

#[derive(Deserialize)]
struct Confirmation {
    #[serde(default)]
    error: Option<Told>,
}

/// Publishes.
pub(crate) struct Publisher {
    pub(crate) queues: Arc<Queues>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) deduplicates: bool,
}

/// A queue of the batch: where it lies, and what tells it from an earlier one of its name.
struct Target {
    place: Place,
    incarnation: Arc<str>,
}

impl Publisher {
    /// `limit` is the largest payload.
    pub(crate) async fn publish(
        &self,
        batch: &[Outgoing],
        limit: usize,
    ) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let targets = self.targets(batch).await?;
        let mut answers = vec![Ok(()); batch.len()];
        let (mut asked, mut questions) = (Vec::new(), Vec::new());
        for (at, outgoing) in batch.iter().enumerate() {
            let bytes = outgoing.payload.len();
            match targets.get(&outgoing.queue) {
                _ if bytes > limit => answers[at] = Err(Refusal::TooLarge { bytes, limit }),
                None => answers[at] = Err(Refusal::NoQueue(outgoing.queue.to_string())),
                Some(target) => {
                    asked.push(at);
                    questions.push(self.question(outgoing, target));
                }
            }
        }
        let confirmations = self.pipeline.ask_all(questions).await?;
        for (at, confirmation) in asked.into_iter().zip(confirmations) {
            let outgoing = &batch[at];
            answers[at] = self
                .read(outgoing, &targets[&outgoing.queue], &confirmation, limit)
                .await?;
        }
        Ok(answers)
    }

    /// The queues of the batch that exist.
    async fn targets(&self, batch: &[Outgoing]) -> Result<HashMap<QueueId, Target>, BrokerError> {
        let mut targets: HashMap<QueueId, Target> = HashMap::new();
        for outgoing in batch {
            if !targets.contains_key(&outgoing.queue) {
                let place = self.queues.names.place(&outgoing.queue);
                let incarnation = "".into();
                targets.insert(outgoing.queue.clone(), Target { place, incarnation });
            }
        }
        // A subject without a consumer is part of the stream all the same, so the consumers have to be looked for. The other
        // queues are streams of their own: without them nobody answers.
        let doubtful = targets
            .iter()
            .filter(|(_, t)| t.place.stream == Stream::Triggers);
        let existing = self
            .queues
            .existing(doubtful.map(|(queue, _)| queue))
            .await?;
        targets.retain(|queue, target| {
            if let Some(Known { incarnation, .. }) = existing.get(queue) {
                target.incarnation = Arc::clone(incarnation);
                return true;
            }
            target.place.stream != Stream::Triggers
        });
        Ok(targets)
    }

    fn question(&self, outgoing: &Outgoing, target: &Target) -> Question {
        let headers = (self.deduplicates && outgoing.id.len() <= LONGEST_ID).then(|| {
            let mut headers = HeaderMap::new();
            // An id is one message's within one life of one queue: what was deleted or moved with a queue can be published again.
            headers.insert(ID, format!("{}{}", target.incarnation, outgoing.id));
            headers
        });
        Question {
            subject: target.place.subject(&outgoing.topic).into(),
            headers,
            payload: outgoing.payload.clone(),
            silent: false,
        }
    }

    async fn read(
        &self,
        outgoing: &Outgoing,
        target: &Target,
        confirmation: &Answer,
        limit: usize,
    ) -> Result<Result<(), Refusal>, BrokerError> {
        let queue = outgoing.queue.to_string();
        let text = match confirmation {
            Answer::Said(text) => text,
            Answer::Nobody => {
                let stream = self.queues.names.stream(target.place.stream);
                let info = crate::api::found(self.pipeline.stream_info(&stream).await);
                return match info {
                    Ok(None) => Ok(Err(Refusal::NoQueue(queue))),
                    // It is there, and no server of the cluster leads it now.
                    _ => Err(transient(format!(
                        "failed to publish to {queue}: nobody takes it"
                    ))),
                };
            }
        };
        let read: Confirmation = serde_json::from_slice(text)
            .map_err(|e| transient(format!("failed to read a confirmation for {queue}: {e}")))?;
        match read.error {
            None => Ok(Ok(())),
            Some(told) if told.is_full() => {
                let limit = self.queues.limit(target.place.stream).await;
                Ok(Err(Refusal::Full { queue, limit }))
            }
            Some(told) if told.err_code == code::TOO_LARGE => {
                let bytes = outgoing.payload.len();
                Ok(Err(Refusal::TooLarge { bytes, limit }))
            }
            Some(told) => Err(told.error(&format!("publish to {queue}"))),
        }
    }
}
