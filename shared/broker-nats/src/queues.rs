//! Looks up, counts and deletes queues. One stream holds the queues of all executors, with a durable consumer each.
//! Every other queue is a stream of its own.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_broker::{BrokerError, BrokerStats, Coverage, ErrorKind, QueueId, QueueStats};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::jetstream_api::{ConsumerInfo, StreamInfo, if_exists};
use crate::names::{Location, Names, Stream};
use crate::options::NatsOptions;
use crate::requests::Requester;

/// A cached queue is looked up again after this time, or when the server reports its deletion.
const LOOKUP_TTL: Duration = Duration::from_secs(30);
pub(crate) const DEFAULT_QUEUE_LIMIT: u64 = 1_000_000;

/// A queue that exists.
#[derive(Debug, Clone)]
pub(crate) struct KnownQueue {
    /// Differs for each creation of a queue, even under the same name.
    pub(crate) incarnation: Arc<str>,
    seen_at: Instant,
}

pub(crate) struct Queues {
    pub(crate) names: Names,
    pub(crate) options: Arc<NatsOptions>,
    pub(crate) requester: Arc<Requester>,
    known: Mutex<HashMap<QueueId, KnownQueue>>,
    /// Streams with one copy in a cluster that were warned about.
    warned: Mutex<HashSet<Stream>>,
}

impl Queues {
    pub(crate) fn new(names: Names, options: Arc<NatsOptions>, requester: Arc<Requester>) -> Self {
        Self {
            names,
            options,
            requester,
            known: Mutex::default(),
            warned: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<QueueId, KnownQueue>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a warning about this stream is due: it is declared again and again.
    pub(crate) fn is_first_warning(&self, stream: Stream) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        warned.insert(stream)
    }

    pub(crate) fn remember(&self, queue: &QueueId, info: &ConsumerInfo) -> KnownQueue {
        let known = KnownQueue {
            incarnation: info.created.as_str().into(),
            seen_at: Instant::now(),
        };
        self.known().insert(queue.clone(), known.clone());
        known
    }

    pub(crate) fn forget_consumer(&self, consumer: &str) {
        let mut known = self.known();
        known.retain(|queue, _| self.names.locate(queue).consumer != consumer);
    }

    /// Returns those of `queues` that exist.
    pub(crate) async fn existing(
        &self,
        queues: impl Iterator<Item = &QueueId>,
    ) -> Result<HashMap<QueueId, KnownQueue>, BrokerError> {
        let (mut existing, mut unknown) = (HashMap::new(), Vec::new());
        {
            let known = self.known();
            for queue in queues {
                match known.get(queue) {
                    Some(known) if known.seen_at.elapsed() < LOOKUP_TTL => {
                        existing.insert(queue.clone(), known.clone());
                    }
                    _ => unknown.push(queue.clone()),
                }
            }
        }
        let locations = unknown.iter().map(|queue| self.names.locate(queue));
        let locations: Vec<Location> = locations.collect();
        let infos = self.requester.consumer_infos(&locations).await?;
        for (queue, info) in unknown.into_iter().zip(infos) {
            if let Some(info) = if_exists(info)? {
                let known = self.remember(&queue, &info);
                existing.insert(queue, known);
            } else {
                self.known().remove(&queue);
            }
        }
        Ok(existing)
    }

    /// Whether the queue was deleted. A queue without a leader does not answer either, so this looks it up. `false` if
    /// the user may not look it up.
    pub(crate) async fn is_deleted(&self, queue: &QueueId) -> bool {
        let info = self
            .requester
            .consumer_info(&self.names.locate(queue))
            .await;
        matches!(if_exists(info), Ok(None))
    }

    /// The limit that a full queue of the stream has reached, for its refusals.
    pub(crate) fn limit(&self, stream: Stream, info: Option<&StreamInfo>) -> u64 {
        let Some(info) = info else {
            let configured = self.options.limits.queue_limit;
            return configured.unwrap_or(DEFAULT_QUEUE_LIMIT);
        };
        let field = if stream == Stream::Triggers {
            "max_msgs_per_subject"
        } else {
            "max_msgs"
        };
        let messages = info.state.messages;
        match info.config[field].as_u64() {
            // The stream may have reached its limit of bytes first.
            Some(limit) if info.config["max_bytes"].as_u64().is_some() => limit.min(messages),
            Some(limit) => limit,
            None => messages,
        }
    }

    pub(crate) async fn delete(
        &self,
        queue: &QueueId,
        only_if_empty: bool,
    ) -> Result<bool, BrokerError> {
        let location = self.names.locate(queue);
        let (stream, consumer) = (&location.stream_name, &location.consumer);
        if only_if_empty && self.has_messages(&location).await? {
            return Ok(false);
        }
        self.known().remove(queue);
        if location.stream.queue().is_some() {
            self.call_if_exists(&format!("STREAM.DELETE.{stream}"), json!({}))
                .await?;
            return Ok(true);
        }
        // The consumer goes first: publishers look it up, and without it they find no queue.
        self.call_if_exists(&format!("CONSUMER.DELETE.{stream}.{consumer}"), json!({}))
            .await?;
        if !only_if_empty {
            let body = json!({ "filter": location.filter });
            self.call_if_exists(&format!("STREAM.PURGE.{stream}"), body)
                .await?;
            return Ok(true);
        }
        // A message that arrived before the consumer was deleted is still in the stream.
        if self.has_messages(&location).await? {
            self.declare(queue).await?;
            return Ok(false);
        }
        Ok(true)
    }

    async fn call_if_exists(&self, operation: &str, body: Value) -> Result<(), BrokerError> {
        if_exists(self.requester.call::<Value>(operation, body).await)?;
        Ok(())
    }

    async fn has_messages(&self, location: &Location) -> Result<bool, BrokerError> {
        let count = if_exists(self.requester.count_messages(location).await)?;
        Ok(count.is_some_and(|count| count > 0))
    }

    /// Counts all queues. Those of `asked` whose consumer does not answer are listed.
    pub(crate) async fn stats(&self, asked: &[QueueId]) -> Result<BrokerStats, BrokerError> {
        let triggers = self.names.stream(Stream::Triggers);
        let others = [QueueId::Results, QueueId::Requests, QueueId::Dead];
        let [results, requests, dead] = others.each_ref().map(|queue| self.names.locate(queue));
        // At the same time, so that streams without a leader do not add up their timeouts.
        let (listed, stream, results, requests, dead) = tokio::join!(
            self.requester.list_consumers(&triggers),
            self.requester.stream_info(&results.stream_name),
            self.requester.consumer_info(&results),
            self.requester.consumer_info(&requests),
            self.requester.consumer_info(&dead),
        );
        // Without its positions, the queue would count as one of a product that has none.
        let (stream, results) = match (stream, results) {
            (Ok(stream), Ok(info)) => (Some(stream), Ok(info)),
            (Err(error), Ok(_)) | (_, Err(error)) => (None, Err(error)),
        };
        let executors = || {
            let is_executor = |queue: &&QueueId| matches!(queue, QueueId::Executor { .. });
            asked.iter().filter(is_executor)
        };
        let requests_sent = 1 + others.len();
        let (mut infos, mut unanswered, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        match if_exists(listed).map_err(BrokerError::from) {
            Ok(listed) => {
                let listed = listed.unwrap_or_default();
                let is_missing = |queue: &&QueueId| {
                    let consumer = self.names.locate(queue).consumer;
                    listed.missing.contains(&consumer)
                };
                unanswered.extend(executors().filter(is_missing).cloned());
                infos.extend(listed.found);
            }
            Err(error) => {
                failed.push(transient_only(error)?);
                unanswered.extend(executors().cloned());
            }
        }
        for (queue, info) in others.into_iter().zip([results, requests, dead]) {
            match if_exists(info).map_err(BrokerError::from) {
                Ok(info) => infos.extend(info),
                Err(error) => {
                    failed.push(transient_only(error)?);
                    unanswered.push(queue);
                }
            }
        }
        if failed.len() == requests_sent
            && let Some(error) = failed.pop()
        {
            return Err(error);
        }
        let mut queues: Vec<QueueStats> = infos
            .into_iter()
            .filter_map(|info| {
                let queue = self.names.queue(info.filter())?;
                // The position of the results alone is of interest.
                let stream = stream.as_ref().filter(|_| queue == QueueId::Results);
                Some(QueueStats {
                    queue,
                    ready: info.num_pending,
                    unsettled: info.num_ack_pending,
                    coverage: Coverage::All,
                    settled: stream.map(|stream| info.settled(stream)),
                })
            })
            .collect();
        queues.sort_by(|a, b| a.queue.cmp(&b.queue));
        unanswered.sort_unstable();
        unanswered.dedup();
        Ok(BrokerStats { queues, unanswered })
    }
}

/// An error that passes. Others concern the whole call, and are returned as its error.
fn transient_only(error: BrokerError) -> Result<BrokerError, BrokerError> {
    if error.kind() != ErrorKind::Transient {
        return Err(error);
    }
    tracing::debug!(%error, "failed to count the messages of a stream");
    Ok(error)
}
