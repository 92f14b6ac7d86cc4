//! Looks up, counts and deletes queues. One stream holds the queues of all executors, with a durable consumer each.
//! Every other queue is a stream of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_broker::{BrokerError, QueueId, QueueStats};
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
}

impl Queues {
    pub(crate) fn new(names: Names, options: Arc<NatsOptions>, requester: Arc<Requester>) -> Self {
        Self {
            names,
            options,
            requester,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<QueueId, KnownQueue>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(crate) async fn stats(&self) -> Result<Vec<QueueStats>, BrokerError> {
        let triggers = self.names.stream(Stream::Triggers);
        let consumers = if_exists(self.requester.list_consumers(&triggers).await)?;
        let mut infos = consumers.unwrap_or_default();
        for queue in [QueueId::Results, QueueId::Requests, QueueId::Dead] {
            let info = self
                .requester
                .consumer_info(&self.names.locate(&queue))
                .await;
            infos.extend(if_exists(info)?);
        }
        let mut stats: Vec<QueueStats> = infos
            .into_iter()
            .filter_map(|info| {
                Some(QueueStats {
                    queue: self.names.queue(info.filter())?,
                    ready: info.num_pending,
                    unsettled: info.num_ack_pending,
                })
            })
            .collect();
        stats.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(stats)
    }
}
