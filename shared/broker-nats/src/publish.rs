//! Publishes batches: sends all messages, then awaits their confirmations together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use cueline_broker::{BrokerError, Outgoing, QueueId, Refusal};
use tokio::time::Instant;

use crate::deadline::{ServerClock, ServerTime};
use crate::error::{code, transient};
use crate::jetstream_api::{ApiResult, StreamInfo, if_exists};
use crate::names::{Location, Stream};
use crate::publish_ack::PublishAck;
use crate::queues::Queues;
use crate::requests::{Reply, Request};
use crate::unconfirmed::Unconfirmed;

/// The part of the server's largest message that headers may use; the rest is for the payload.
pub(crate) const HEADER_BYTES: usize = 4 << 10;
/// A longer id is not sent. Deduplication only saves work; no guarantee relies on it.
const MAX_ID_BYTES: usize = 512;

pub(crate) struct Publisher {
    pub(crate) queues: Arc<Queues>,
    pub(crate) clock: ServerClock,
    pub(crate) unconfirmed: Unconfirmed,
}

/// A queue of the batch.
struct Target {
    location: Location,
    incarnation: Arc<str>,
}

/// One message of a batch that is sent.
struct Attempt<'a> {
    index: usize,
    outgoing: &'a Outgoing,
    target: &'a Target,
    /// The id for deduplication, without its number; empty if there is none.
    id: String,
    id_number: u32,
    /// The deadline by this process's clock; set once a message with a deadline is sent.
    expires_at: Option<Instant>,
}

impl Publisher {
    /// Publishes a batch. `max_payload` is the largest payload in bytes.
    pub(crate) async fn publish(
        &self,
        batch: &[Outgoing],
        max_payload: usize,
    ) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let requester = &self.queues.requester;
        let targets = self.find_targets(batch).await?;
        let time = if targets.values().any(Target::has_deadlines) {
            self.clock.read(requester).await?
        } else {
            None
        };
        let (mut outcomes, mut attempts) = self.plan(batch, &targets, max_payload);
        let requests = attempts.iter_mut().map(|attempt| attempt.request(time));
        let replies = match requester.send_all(requests).await {
            Ok(replies) => replies,
            Err(e) => {
                for attempt in &attempts {
                    self.record_unconfirmed(attempt);
                }
                return Err(e);
            }
        };
        let mut streams = StreamLookups::new(&self.queues);
        let (mut first_error, mut unknown) = (None, 0);
        for (attempt, reply) in attempts.iter().zip(replies) {
            let outcome = self.outcome(attempt, &reply, max_payload, &mut streams);
            outcomes[attempt.index] = outcome.await.unwrap_or_else(|e| {
                // The error concerns this message only.
                self.record_unconfirmed(attempt);
                unknown += 1;
                let why = e.to_string();
                first_error.get_or_insert(e);
                Err(attempt.unknown(why))
            });
        }
        match first_error {
            // The caller retries, as after a lost connection.
            Some(e) if unknown == attempts.len() => Err(e),
            _ => Ok(outcomes),
        }
    }

    /// Looks up which queues of the batch exist. The stream stores triggers even if their consumer does not exist, so
    /// executors' queues are looked up. Each other queue is a stream of its own: a publish to a missing one has no
    /// responders.
    async fn find_targets<'a>(
        &self,
        batch: &'a [Outgoing],
    ) -> Result<HashMap<&'a QueueId, Target>, BrokerError> {
        let mut locations = HashMap::new();
        for Outgoing { queue, .. } in batch {
            let locate = || self.queues.names.locate(queue);
            locations.entry(queue).or_insert_with(locate);
        }
        let is_trigger = |location: &Location| location.stream == Stream::Triggers;
        let of_triggers = locations.iter().filter(|(_, at)| is_trigger(at));
        let existing = self.queues.existing(of_triggers.map(|(queue, _)| *queue));
        let existing = existing.await?;
        let targets = locations.into_iter().filter_map(|(queue, location)| {
            let incarnation = match existing.get(queue) {
                Some(known) => Arc::clone(&known.incarnation),
                None if is_trigger(&location) => return None,
                None => "".into(),
            };
            let target = Target {
                location,
                incarnation,
            };
            Some((queue, target))
        });
        Ok(targets.collect())
    }

    /// Refuses messages that cannot be sent. Returns the other messages, which are to be sent.
    fn plan<'a>(
        &self,
        batch: &'a [Outgoing],
        targets: &'a HashMap<&QueueId, Target>,
        max_payload: usize,
    ) -> (Vec<Result<(), Refusal>>, Vec<Attempt<'a>>) {
        let now = Instant::now();
        let mut outcomes = vec![Ok(()); batch.len()];
        let mut attempts = Vec::with_capacity(batch.len());
        for (index, outgoing) in batch.iter().enumerate() {
            if outgoing.payload.len() > max_payload {
                outcomes[index] = Err(too_large(outgoing, max_payload));
                continue;
            }
            let Some(target) = targets.get(&outgoing.queue) else {
                outcomes[index] = Err(Refusal::NoQueue(outgoing.queue.to_string()));
                continue;
            };
            let id = self.id(outgoing, target);
            attempts.push(Attempt {
                index,
                outgoing,
                target,
                id_number: self.unconfirmed.id_number(&id, now),
                id,
                expires_at: None,
            });
        }
        (outcomes, attempts)
    }

    /// Makes the id of a message. It is valid for one incarnation of its queue, so a message of a deleted queue can be
    /// published again.
    fn id(&self, outgoing: &Outgoing, target: &Target) -> String {
        let deduplicates = !self.queues.options.duplicate_window.is_zero();
        if deduplicates && outgoing.id.len() <= MAX_ID_BYTES {
            [&target.incarnation, outgoing.id.as_str()].concat()
        } else {
            String::new()
        }
    }

    fn record_unconfirmed(&self, attempt: &Attempt<'_>) {
        if let Some(expires_at) = attempt.expires_at
            && !attempt.id.is_empty()
        {
            let all_expired_from = Instant::now() + self.clock.valid_for;
            let (id, number) = (&attempt.id, attempt.id_number);
            self.unconfirmed
                .record(id, number, expires_at, all_expired_from);
        }
    }

    /// Reads the outcome from the reply. An error means that the reply leaves the message's fate unknown.
    async fn outcome(
        &self,
        attempt: &Attempt<'_>,
        reply: &Reply,
        max_payload: usize,
        streams: &mut StreamLookups<'_>,
    ) -> Result<Result<(), Refusal>, BrokerError> {
        let (queue, stream) = (&attempt.outgoing.queue, attempt.target.location.stream);
        let Some(payload) = &reply.payload else {
            if let Ok(None) = streams.get(stream).await {
                return Ok(Err(Refusal::NoQueue(queue.to_string())));
            }
            let why = "no server of the cluster leads its stream now";
            return Err(transient(format!("failed to publish to {queue}: {why}")));
        };
        let ack = PublishAck::parse(payload)?;
        match ack.error {
            None => Ok(self.confirm(attempt, ack.duplicate, reply.received_at)),
            Some(refused) if refused.is_full() => {
                let info = streams.get(stream).await.as_ref().ok();
                let limit = self.queues.limit(stream, info.and_then(Option::as_ref));
                let queue = queue.to_string();
                Ok(Err(Refusal::Full { queue, limit }))
            }
            Some(refused) if refused.err_code == code::MESSAGE_TOO_LARGE => {
                Ok(Err(too_large(attempt.outgoing, max_payload)))
            }
            Some(refused) => Err(refused.into_broker_error(&format!("publish to {queue}"))),
        }
    }

    /// Accepts a confirmation, unless the stored copy may have expired: this copy, or an earlier one with the same id.
    fn confirm(
        &self,
        attempt: &Attempt<'_>,
        is_duplicate: bool,
        received_at: Instant,
    ) -> Result<(), Refusal> {
        let (id, number, now) = (&attempt.id, attempt.id_number, Instant::now());
        let own_expired = attempt.expires_at.is_some_and(|at| at <= received_at);
        let earlier_expired = is_duplicate && self.unconfirmed.may_be_expired(id, number, now);
        if !own_expired && !earlier_expired {
            self.unconfirmed.confirm(id);
            return Ok(());
        }
        if !id.is_empty() {
            // The next try uses another id.
            self.unconfirmed.record(id, number, now, now);
        }
        Err(attempt.unknown("the stream may have stored it after its deadline".into()))
    }
}

impl Target {
    /// Reports have no deadline: their publishers rely on the confirmation and would not publish a void report again.
    fn has_deadlines(&self) -> bool {
        self.location.stream == Stream::Triggers
    }
}

impl Attempt<'_> {
    fn request(&mut self, time: Option<ServerTime>) -> Request {
        let mut headers = HeaderMap::new();
        if !self.id.is_empty() {
            let id = match self.id_number {
                0 => self.id.clone(),
                number => format!("{}~{number}", self.id),
            };
            headers.insert(NATS_MESSAGE_ID, id);
        }
        if let Some(time) = time.filter(|_| self.target.has_deadlines()) {
            self.expires_at = Some(time.add_deadline(&mut headers, Instant::now()));
        }
        let subject = self.target.location.subject(&self.outgoing.topic);
        let request = Request::new(subject, self.outgoing.payload.clone());
        let headers = (!headers.is_empty()).then_some(headers);
        Request { headers, ..request }
    }

    fn unknown(&self, why: String) -> Refusal {
        let queue = self.outgoing.queue.to_string();
        Refusal::Unknown { queue, why }
    }
}

/// Looks a stream up once per batch, even if many messages depend on it.
struct StreamLookups<'a> {
    queues: &'a Queues,
    found: HashMap<Stream, ApiResult<Option<StreamInfo>>>,
}

impl<'a> StreamLookups<'a> {
    fn new(queues: &'a Queues) -> Self {
        let found = HashMap::new();
        Self { queues, found }
    }

    async fn get(&mut self, stream: Stream) -> &ApiResult<Option<StreamInfo>> {
        match self.found.entry(stream) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(missing) => {
                let name = self.queues.names.stream(stream);
                let info = self.queues.requester.stream_info(&name).await;
                missing.insert(if_exists(info))
            }
        }
    }
}

fn too_large(outgoing: &Outgoing, limit: usize) -> Refusal {
    let bytes = outgoing.payload.len();
    Refusal::TooLarge { bytes, limit }
}
