//! Publishes batches: all messages go out one after the other, their confirmations are awaited together.

use std::collections::HashMap;
use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use cueline_broker::{BrokerError, Outgoing, QueueId, Refusal};
use serde::Deserialize;
use tokio::time::Instant;

use crate::api::found;
use crate::clock::ServerClock;
use crate::doubts::Doubts;
use crate::error::{Told, code, transient};
use crate::names::{Place, Stream};
use crate::pipeline::{Answer, Pipeline, Question};
use crate::queues::{Known, Queues};

/// What headers may take of a message; the rest is the payload's.
pub(crate) const HEADER_BYTES: usize = 4 << 10;
/// An id longer than this is left out: deduplication saves work, no guarantee rests on it.
const LONGEST_ID: usize = 512;

#[derive(Deserialize)]
struct Confirmation {
    #[serde(default)]
    error: Option<Told>,
    /// The stream had it already.
    #[serde(default)]
    duplicate: bool,
}

/// Publishes.
pub(crate) struct Publisher {
    pub(crate) queues: Arc<Queues>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) clock: ServerClock,
    pub(crate) doubts: Doubts,
    pub(crate) deduplicates: bool,
}

/// A queue of the batch: where it lies, and what tells it from an earlier one of its name.
struct Target {
    place: Place,
    incarnation: Arc<str>,
}

/// What was looked up about streams for one batch, however many of its messages need it.
#[derive(Default)]
struct Looked {
    limits: HashMap<Stream, u64>,
    /// Whether it is there, or may be.
    there: HashMap<Stream, bool>,
}

/// A message that was asked for.
struct Asked {
    /// Its place in the batch.
    at: usize,
    /// Its id in the stream, without a number; empty if it has none.
    id: String,
    /// The number of that id.
    number: u32,
}

impl Publisher {
    /// `limit` is the largest payload.
    pub(crate) async fn publish(
        &self,
        batch: &[Outgoing],
        limit: usize,
    ) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let targets = self.targets(batch).await?;
        let fence = if targets.values().any(Target::is_fenced) {
            self.clock.fence(&self.pipeline).await?
        } else {
            None
        };
        let start = Instant::now();
        let (mut answers, asked, questions) = self.plan(batch, &targets, limit, start);
        let confirmations = match self.pipeline.ask_within(questions, fence).await {
            Ok(confirmations) => confirmations,
            Err(e) => {
                if fence.is_some() {
                    self.doubt(asked, start);
                }
                return Err(e);
            }
        };
        let (mut looked, mut failed, mut unread) = (Looked::default(), None, Vec::new());
        let (count, doubted) = (asked.len(), !self.doubts.is_empty());
        for (asked, confirmation) in asked.into_iter().zip(confirmations) {
            let (at, outgoing) = (asked.at, &batch[asked.at]);
            let target = &targets[&outgoing.queue];
            let answer = self.read(outgoing, target, &confirmation, limit, &asked, &mut looked);
            match answer.await {
                Ok(answer) => answers[at] = answer,
                Err(e) => {
                    // One that was not taken, or not understood, says nothing of the others.
                    let (queue, why) = (outgoing.queue.to_string(), e.to_string());
                    answers[at] = Err(Refusal::Unknown { queue, why });
                    failed.get_or_insert(e);
                    unread.push(asked);
                    continue;
                }
            }
            if doubted && answers[at].is_ok() {
                self.doubts.end(&asked.id);
            }
        }
        let none = unread.len() == count;
        if fence.is_some() {
            self.doubt(unread, start);
        }
        match failed {
            // Whoever asked tries again, as after no answer at all.
            Some(e) if none => Err(e),
            _ => Ok(answers),
        }
    }

    /// What can be said before anything is sent, what is to be asked for, and how.
    fn plan(
        &self,
        batch: &[Outgoing],
        targets: &HashMap<QueueId, Target>,
        limit: usize,
        now: Instant,
    ) -> (Vec<Result<(), Refusal>>, Vec<Asked>, Vec<Question>) {
        let mut answers = vec![Ok(()); batch.len()];
        let (mut asked, mut questions) = (Vec::new(), Vec::new());
        let doubted = !self.doubts.is_empty();
        for (at, outgoing) in batch.iter().enumerate() {
            let bytes = outgoing.payload.len();
            match targets.get(&outgoing.queue) {
                _ if bytes > limit => answers[at] = Err(Refusal::TooLarge { bytes, limit }),
                None => answers[at] = Err(Refusal::NoQueue(outgoing.queue.to_string())),
                Some(target) => {
                    let id = self.id(outgoing, target);
                    let number = if doubted {
                        self.doubts.number(&id, now)
                    } else {
                        0
                    };
                    questions.push(question(outgoing, target, &id, number));
                    asked.push(Asked { at, id, number });
                }
            }
        }
        (answers, asked, questions)
    }

    /// What became of these, sent from `start` on, is not known.
    fn doubt(&self, asked: impl IntoIterator<Item = Asked>, start: Instant) {
        let within = self.clock.within();
        let until = Instant::now() + within;
        for Asked { id, number, .. } in asked {
            if !id.is_empty() {
                self.doubts.note(id, number, start + within, until);
            }
        }
    }

    /// An id is one message's within one life of one queue: what was deleted or moved with a queue can be published again.
    fn id(&self, outgoing: &Outgoing, target: &Target) -> String {
        if self.deduplicates && outgoing.id.len() <= LONGEST_ID {
            [&target.incarnation, outgoing.id.as_str()].concat()
        } else {
            String::new()
        }
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

    async fn read(
        &self,
        outgoing: &Outgoing,
        target: &Target,
        confirmation: &Answer,
        limit: usize,
        asked: &Asked,
        looked: &mut Looked,
    ) -> Result<Result<(), Refusal>, BrokerError> {
        let queue = outgoing.queue.to_string();
        let text = match confirmation {
            Answer::Said(text) | Answer::SaidLate(text) => text,
            Answer::Nobody if self.is_there(target.place.stream, looked).await => {
                // No server of the cluster leads it now.
                return Err(transient(format!(
                    "failed to publish to {queue}: nobody takes it"
                )));
            }
            Answer::Nobody => return Ok(Err(Refusal::NoQueue(queue))),
        };
        let read: Confirmation = serde_json::from_slice(text)
            .map_err(|e| transient(format!("failed to read a confirmation for {queue}: {e}")))?;
        match read.error {
            None => {
                let late = matches!(confirmation, Answer::SaidLate(_)) && target.is_fenced();
                let of_old = read.duplicate
                    && self
                        .doubts
                        .may_be_late(&asked.id, asked.number, Instant::now());
                if !late && !of_old {
                    return Ok(Ok(()));
                }
                if !asked.id.is_empty() {
                    // Sent long ago, and what is there under this id may be void: the next try needs another.
                    let now = Instant::now();
                    self.doubts.note(asked.id.clone(), asked.number, now, now);
                }
                let why = "the stream may have taken it in too late to count".into();
                Ok(Err(Refusal::Unknown { queue, why }))
            }
            Some(told) if told.is_full() => {
                let limit = self.limit(target.place.stream, looked).await;
                Ok(Err(Refusal::Full { queue, limit }))
            }
            Some(told) if told.err_code == code::TOO_LARGE => {
                let bytes = outgoing.payload.len();
                Ok(Err(Refusal::TooLarge { bytes, limit }))
            }
            Some(told) => Err(told.error(&format!("publish to {queue}"))),
        }
    }

    async fn is_there(&self, stream: Stream, looked: &mut Looked) -> bool {
        if let Some(there) = looked.there.get(&stream) {
            return *there;
        }
        let name = self.queues.names.stream(stream);
        let info = found(self.pipeline.stream_info(&name).await);
        let there = !matches!(info, Ok(None));
        looked.there.insert(stream, there);
        there
    }

    async fn limit(&self, stream: Stream, looked: &mut Looked) -> u64 {
        if let Some(limit) = looked.limits.get(&stream) {
            return *limit;
        }
        let limit = self.queues.limit(stream).await;
        looked.limits.insert(stream, limit);
        limit
    }
}

impl Target {
    /// Nothing heals what becomes void elsewhere: whoever publishes reports relies on a confirmation.
    fn is_fenced(&self) -> bool {
        self.place.stream == Stream::Triggers
    }
}

fn question(outgoing: &Outgoing, target: &Target, id: &str, number: u32) -> Question {
    let headers = (!id.is_empty()).then(|| {
        let mut headers = HeaderMap::new();
        headers.insert(
            NATS_MESSAGE_ID,
            match number {
                0 => id.to_owned(),
                number => format!("{id}~{number}"),
            },
        );
        headers
    });
    Question {
        subject: target.place.subject(&outgoing.topic).into(),
        headers,
        payload: outgoing.payload.clone(),
        silent: false,
        fenced: target.is_fenced(),
    }
}
