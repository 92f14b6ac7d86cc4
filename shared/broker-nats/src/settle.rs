//! Settles deliveries. A consumer takes in what comes over one connection in order, so its answer to the last ack of a call
//! confirms them all; the answers cost the server as much as the acks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, QueueId, Receipt, Settlement};
use serde_json::json;
use tokio::time::Instant;

use crate::api::found;
use crate::delivered::dead_headers;
use crate::error::{Told, transient};
use crate::link::Link;
use crate::names::Stream;
use crate::pipeline::{Answer, Pipeline, Question};
use crate::publish::HEADER_BYTES;
use crate::queues::Queues;
use crate::receipts::{Held, Receipts};

/// The longest delay: beyond it the server's clock would overflow.
const LONGEST_DELAY: Duration = Duration::from_hours(100 * 365 * 24);

/// Besides the last, so many acks have one that is answered: a sign of life in a long call, and a bound to what is under way.
const ANSWERED_EVERY: usize = 64;

/// So much of a topic goes into the subject of a dead letter. A line that is longer than the server takes would cut the connection, again
/// and again; escaped, and with what else is in it, this has room there. What is more of it, a header says.
const TOPIC_IN_SUBJECT: usize = 256;

/// Settles.
pub(crate) struct Settler {
    pub(crate) queues: Arc<Queues>,
    pub(crate) receipts: Arc<Receipts>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) link: Link,
}

impl Settler {
    pub(crate) async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        let asked = settlements.iter().map(|(receipt, how)| (*receipt, how));
        let mut held = self.receipts.held(queue, asked, Instant::now());
        let unmoved = self.move_dead(queue, &mut held).await?;
        let last = held.len().saturating_sub(1);
        let questions = held
            .iter()
            .enumerate()
            .map(|(n, (_, held, how))| Question {
                subject: held.ack.clone(),
                headers: None,
                payload: word(queue, how),
                silent: n != last && n % ANSWERED_EVERY != 0,
                fenced: false,
            })
            .collect();
        let answers = self.pipeline.ask_all(questions).await?;
        if answers.contains(&Answer::Nobody) {
            self.gone(queue).await?;
        }
        self.receipts
            .settled(queue, held.iter().map(|(receipt, ..)| *receipt));
        unmoved.map_or(Ok(()), Err)
    }

    /// Nobody to answer: the consumer is gone, and with it what it waited for. Or it has no leader now, and nobody has heard: then the
    /// receipts stay good, and the next try reaches the next leader.
    async fn gone(&self, queue: &QueueId) -> Result<(), BrokerError> {
        let place = self.queues.names.place(queue);
        let stream = self.queues.names.stream(place.stream);
        match found(self.pipeline.consumer_info(&stream, &place.consumer).await) {
            Ok(None) => Ok(()),
            // To look may be forbidden where to settle is not.
            Ok(Some(_)) | Err(_) => Err(transient(format!(
                "failed to settle in {queue}: no server answers for it now"
            ))),
        }
    }

    /// Publishes dead letters. Those that are not taken stay handed out: they are no longer among `held`.
    async fn move_dead(
        &self,
        queue: &QueueId,
        held: &mut Vec<(Receipt, Held, &Settlement)>,
    ) -> Result<Option<BrokerError>, BrokerError> {
        // A dead letter that is refused again stays one.
        if *queue == QueueId::Dead {
            return Ok(None);
        }
        let mut letters = Vec::new();
        for (place, (_, held, how)) in held.iter().enumerate() {
            if let Settlement::Dead(reason) = how {
                letters.push((place, self.letter(queue, held, reason)));
            }
        }
        if letters.is_empty() {
            return Ok(None);
        }
        let questions: Vec<Question> = letters.iter().map(|(_, letter)| letter.clone()).collect();
        let mut answers = self.pipeline.ask_all(questions.clone()).await?;
        if answers.contains(&Answer::Nobody) {
            // Somebody may have deleted the queue.
            self.queues.declare(&QueueId::Dead).await?;
            answers = self.pipeline.ask_all(questions).await?;
        }
        let mut failed = None;
        for ((place, _), answer) in letters.iter().zip(&answers).rev() {
            if let Err(e) = taken(answer) {
                held.remove(*place);
                failed = Some(e);
            }
        }
        Ok(failed)
    }

    fn letter(&self, queue: &QueueId, held: &Held, reason: &str) -> Question {
        // With its headers it must not be larger than the server takes: that would cut the connection, again and again.
        let most = self.link.client.max_payload().saturating_sub(HEADER_BYTES);
        let (whole, kept) = (held.payload.len(), held.payload.len().min(most));
        let cut = format!("{reason} [of its {whole} bytes the first {kept} are kept]");
        let reason = if kept < whole { &cut } else { reason };
        let mut headers = dead_headers(reason, queue, &held.topic);
        // Settling again after a lost answer makes no second letter.
        let stream = self
            .queues
            .names
            .stream(self.queues.names.place(queue).stream);
        headers.insert("Nats-Msg-Id", format!("{stream}:{}", held.sequence));
        let dead = self.queues.names.place(&QueueId::Dead);
        debug_assert_eq!(dead.stream, Stream::Dead);
        let end = held.topic.floor_char_boundary(TOPIC_IN_SUBJECT);
        Question {
            subject: dead.subject(&held.topic[..end]).into(),
            headers: Some(headers),
            payload: held.payload.slice(..kept),
            silent: false,
            fenced: false,
        }
    }
}

/// What to tell the server.
fn word(queue: &QueueId, how: &Settlement) -> Bytes {
    match how {
        Settlement::Ack => Bytes::from_static(b"+ACK"),
        Settlement::Dead(_) if *queue == QueueId::Dead => Bytes::from_static(b"-NAK"),
        Settlement::Dead(_) => Bytes::from_static(b"+TERM moved to the dead letters"),
        Settlement::Retry(delay) if delay.is_zero() => Bytes::from_static(b"-NAK"),
        Settlement::Retry(delay) => {
            let delay = u64::try_from((*delay).min(LONGEST_DELAY).as_nanos()).unwrap_or(u64::MAX);
            format!("-NAK {}", json!({ "delay": delay })).into()
        }
    }
}

fn taken(answer: &Answer) -> Result<(), BrokerError> {
    #[derive(serde::Deserialize)]
    struct Confirmation {
        #[serde(default)]
        error: Option<Told>,
    }
    let what = "move a message to the dead-letter queue";
    let (Answer::Said(text) | Answer::SaidLate(text)) = answer else {
        return Err(transient(format!("failed to {what}: nobody takes it")));
    };
    let read: Confirmation = serde_json::from_slice(text)
        .map_err(|e| transient(format!("failed to {what}")).caused_by(e))?;
    match read.error {
        None => Ok(()),
        // Room can be made.
        Some(told) if told.is_full() => {
            Err(transient(format!("failed to {what}: {}", told.description)))
        }
        Some(told) => Err(told.error(what)),
    }
}
