//! Finds, counts and deletes queues: a stream for all triggers with one durable consumer for each executor, and a
//! stream for each of the other queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_broker::{BrokerError, QueueId, QueueStats};
use tokio::time::Instant;

use crate::api::{ConsumerInfo, found};
use crate::error::{permanent, transient};
use crate::names::{Names, Stream};
use crate::options::NatsOptions;
use crate::pipeline::Pipeline;

/// A queue that was seen is believed to be there for so long, unless the server says that it is gone.
const BELIEVED_FOR: Duration = Duration::from_secs(30);
pub(crate) const DEFAULT_LIMIT: u64 = 1_000_000;

/// What is known about a queue that exists.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// Differs for each queue and each time that it is made anew.
    pub(crate) incarnation: Arc<str>,
    seen: Instant,
}

/// All queues under one prefix.
pub(crate) struct Queues {
    pub(crate) names: Names,
    pub(crate) options: Arc<NatsOptions>,
    pub(crate) pipeline: Arc<Pipeline>,
    known: Mutex<HashMap<QueueId, Known>>,
}

impl Queues {
    pub(crate) fn new(names: Names, options: Arc<NatsOptions>, pipeline: Arc<Pipeline>) -> Self {
        Self {
            names,
            options,
            pipeline,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<QueueId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody deleted the consumer.
    pub(crate) fn forget_consumer(&self, consumer: &str) {
        let mut known = self.known();
        known.retain(|queue, _| self.names.place(queue).consumer != consumer);
    }

    pub(crate) async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        let place = self.names.place(queue);
        // Schedulers answer for the streams and their limits; for an executor it is enough that its queue is there.
        if self.options.identity.is_some() {
            let stream = self.names.stream(place.stream);
            let there = self.pipeline.consumer_info(&stream, &place.consumer).await;
            if there.is_ok_and(|info| info.filter() == place.filter) {
                return Ok(());
            }
        }
        self.declare_stream(place.stream).await?;
        let info = self.declare_consumer(queue, &place).await?;
        if let Some(info) = info {
            self.believe(queue, &info);
        }
        Ok(())
    }

    fn believe(&self, queue: &QueueId, info: &ConsumerInfo) -> Known {
        let known = Known {
            incarnation: info.created.as_str().into(),
            seen: Instant::now(),
        };
        self.known().insert(queue.clone(), known.clone());
        known
    }

    /// Those of `queues` that exist, by looking where that was not done lately.
    pub(crate) async fn existing(
        &self,
        queues: impl Iterator<Item = &QueueId>,
    ) -> Result<HashMap<QueueId, Known>, BrokerError> {
        let (mut existing, mut unknown) = (HashMap::new(), Vec::new());
        {
            let known = self.known();
            for queue in queues {
                match known.get(queue) {
                    Some(known) if known.seen.elapsed() < BELIEVED_FOR => {
                        existing.insert(queue.clone(), known.clone());
                    }
                    _ => unknown.push(queue.clone()),
                }
            }
        }
        if unknown.is_empty() {
            return Ok(existing);
        }
        let consumers: Vec<_> = unknown
            .iter()
            .map(|queue| {
                let place = self.names.place(queue);
                (self.names.stream(place.stream), place.consumer)
            })
            .collect();
        let infos = self.pipeline.consumer_infos(&consumers).await?;
        for (queue, info) in unknown.into_iter().zip(infos) {
            match found(info) {
                Ok(Some(info)) => {
                    let known = self.believe(&queue, &info);
                    existing.insert(queue, known);
                }
                Ok(None) => drop(self.known().remove(&queue)),
                Err(e) => return Err(e.error(&format!("look for {queue}"))),
            }
        }
        Ok(existing)
    }

    /// Why nobody answers for a queue: it is not there, or nobody leads it at the moment.
    pub(crate) async fn why_nobody(&self, queue: &QueueId) -> BrokerError {
        let place = self.names.place(queue);
        let stream = self.names.stream(place.stream);
        match found(self.pipeline.consumer_info(&stream, &place.consumer).await) {
            Ok(None) => no_queue(queue),
            // To look may be forbidden where to fetch is not.
            Ok(Some(_)) | Err(_) => transient(format!(
                "failed to fetch from {queue}: there is no such queue, or no server answers for it now"
            )),
        }
    }

    /// The most messages in a queue, as its stream is configured.
    pub(crate) async fn limit(&self, stream: Stream) -> u64 {
        let info = self.pipeline.stream_info(&self.names.stream(stream)).await;
        let configured = self.options.limits.queue_limit.unwrap_or(DEFAULT_LIMIT);
        let Ok(info) = info else { return configured };
        let field = if stream == Stream::Triggers {
            "max_msgs_per_subject"
        } else {
            "max_msgs"
        };
        let limit = info.config[field].as_u64().unwrap_or(info.state.messages);
        // Full before that, if it is the bytes that are too many.
        match info.config["max_bytes"].as_u64() {
            Some(_) => limit.min(info.state.messages),
            None => limit,
        }
    }

    pub(crate) async fn delete(
        &self,
        queue: &QueueId,
        only_if_empty: bool,
    ) -> Result<bool, BrokerError> {
        let place = self.names.place(queue);
        let stream = self.names.stream(place.stream);
        let what = format!("delete {queue}");
        if only_if_empty {
            let left = found(self.pipeline.count(&stream, &place.filter).await);
            if left
                .map_err(|e| e.error(&what))?
                .is_some_and(|left| left > 0)
            {
                return Ok(false);
            }
        }
        self.known().remove(queue);
        if place.stream.queue().is_some() {
            let gone = found(self.pipeline.delete_stream(&stream).await);
            gone.map_err(|e| e.error(&what))?;
            return Ok(true);
        }
        // The consumer first: without it, publishers find no queue.
        let gone = found(
            self.pipeline
                .delete_consumer(&stream, &place.consumer)
                .await,
        );
        gone.map_err(|e| e.error(&what))?;
        if !only_if_empty {
            let purged = found(self.pipeline.purge(&stream, &place.filter).await);
            purged.map_err(|e| e.error(&what))?;
            return Ok(true);
        }
        // Something may have come between the look and the end of the consumer; it is still in the stream.
        let left = found(self.pipeline.count(&stream, &place.filter).await);
        if left
            .map_err(|e| e.error(&what))?
            .is_some_and(|left| left > 0)
        {
            self.declare(queue).await?;
            return Ok(false);
        }
        Ok(true)
    }

    pub(crate) async fn stats(&self) -> Result<Vec<QueueStats>, BrokerError> {
        let triggers = self.names.stream(Stream::Triggers);
        let what = "count messages";
        let mut infos = found(self.pipeline.consumers(&triggers).await)
            .map_err(|e| e.error(what))?
            .unwrap_or_default();
        for queue in [QueueId::Results, QueueId::Requests, QueueId::Dead] {
            let place = self.names.place(&queue);
            let stream = self.names.stream(place.stream);
            let info = found(self.pipeline.consumer_info(&stream, &place.consumer).await);
            infos.extend(info.map_err(|e| e.error(what))?);
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

pub(crate) fn no_queue(queue: &QueueId) -> BrokerError {
    permanent(format!(
        "failed to fetch from {queue}: there is no such queue"
    ))
}
