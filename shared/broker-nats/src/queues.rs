//! Makes, checks, counts and deletes queues: a stream for all triggers with one durable consumer for each executor, and a
//! stream for each of the other queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_broker::{BrokerError, QueueId, QueueStats};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::{ConsumerInfo, found};
use crate::error::{permanent, transient};
use crate::names::{Names, Place, Stream};
use crate::options::NatsOptions;
use crate::pipeline::Pipeline;

/// A queue that was seen is believed to be there for so long, unless the server says that it is gone.
const BELIEVED_FOR: Duration = Duration::from_secs(30);
/// Requests for messages that may wait at one consumer: as many as executors of a group.
const MAX_WAITING: u32 = 16_384;
const DEFAULT_LIMIT: u64 = 1_000_000;

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
    options: Arc<NatsOptions>,
    pipeline: Arc<Pipeline>,
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

    async fn declare_stream(&self, stream: Stream) -> Result<(), BrokerError> {
        let name = self.names.stream(stream);
        let what = format!("declare stream {name}");
        let mut there = match found(self.pipeline.stream_info(&name).await) {
            Ok(there) => there,
            // It cannot be looked at; whether it is there shows when it is used.
            Err(e) if e.is_denied() => return Ok(()),
            Err(e) => return Err(e.error(&what)),
        };
        if there.is_none() {
            let config = self.stream_config(stream);
            there = match self.pipeline.create_stream(&name, &config).await {
                Ok(created) => Some(created),
                // Somebody else was faster, with other limits.
                Err(e) if e.is_name_in_use() => {
                    let info = self.pipeline.stream_info(&name).await;
                    Some(info.map_err(|e| e.error(&what))?)
                }
                Err(e) if e.is_denied() => {
                    tracing::warn!(
                        stream = name,
                        "there is no such stream, and this user may not create it; a scheduler does"
                    );
                    return Ok(());
                }
                Err(e) => return Err(e.error(&what)),
            };
        }
        let Some(there) = there else { return Ok(()) };
        self.check_stream(stream, &name, &there.config)?;
        self.adjust_stream(stream, &name, there.config).await
    }

    fn stream_config(&self, stream: Stream) -> Value {
        let mut config = json!({
            "name": self.names.stream(stream),
            "subjects": [self.names.subjects(stream)],
            "retention": "workqueue",
            "storage": "file",
            "discard": "new",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "num_replicas": 1,
        });
        for (field, value) in self.wanted(stream, true) {
            config[field] = value;
        }
        config
    }

    /// Limits as configured; for a new stream also those that are not.
    fn wanted(&self, stream: Stream, new: bool) -> Vec<(&'static str, Value)> {
        let limits = &self.options.limits;
        let mut wanted = Vec::new();
        if let Some(limit) = limits.queue_limit.or(new.then_some(DEFAULT_LIMIT)) {
            if stream == Stream::Triggers {
                wanted.push(("max_msgs_per_subject", json!(limit)));
                wanted.push(("discard_new_per_subject", json!(true)));
            } else {
                wanted.push(("max_msgs", json!(limit)));
            }
        }
        if let Some(bytes) = limits.max_bytes {
            wanted.push(("max_bytes", json!(bytes)));
        }
        if let Some(replicas) = limits.replicas {
            wanted.push(("num_replicas", json!(replicas)));
        }
        let window = self.options.duplicate_window;
        // 0 would mean the server's default. Without ids in messages it costs nothing.
        let window = if window.is_zero() {
            Duration::from_millis(100)
        } else {
            window
        };
        wanted.push(("duplicate_window", json!(nanoseconds(window))));
        wanted
    }

    /// What cannot be otherwise.
    fn check_stream(&self, stream: Stream, name: &str, config: &Value) -> Result<(), BrokerError> {
        let subjects = json!([self.names.subjects(stream)]);
        for (field, wanted) in [
            ("subjects", subjects),
            ("retention", json!("workqueue")),
            ("discard", json!("new")),
        ] {
            if config[field] != wanted {
                return Err(permanent(format!(
                    "failed to declare stream {name}: its `{field}` is {}, and has to be {wanted}",
                    config[field]
                )));
            }
        }
        Ok(())
    }

    async fn adjust_stream(
        &self,
        stream: Stream,
        name: &str,
        mut config: Value,
    ) -> Result<(), BrokerError> {
        let wanted = self.wanted(stream, false);
        if wanted.iter().all(|(field, value)| config[*field] == *value) {
            return Ok(());
        }
        for (field, value) in wanted {
            config[field] = value;
        }
        match self.pipeline.update_stream(name, &config).await {
            Ok(_) => Ok(()),
            Err(e) if e.is_denied() => Ok(()),
            Err(e) => Err(e.error(&format!("change stream {name}"))),
        }
    }

    /// `None` when this user may neither look nor create.
    async fn declare_consumer(
        &self,
        queue: &QueueId,
        place: &Place,
    ) -> Result<Option<ConsumerInfo>, BrokerError> {
        let stream = self.names.stream(place.stream);
        let what = format!("declare {queue}");
        let there = match found(self.pipeline.consumer_info(&stream, &place.consumer).await) {
            Ok(there) => there,
            Err(e) if e.is_denied() => return Ok(None),
            Err(e) => return Err(e.error(&what)),
        };
        let wanted = self.consumer_config(place);
        let is_as_wanted = |info: &ConsumerInfo| differing(&info.config, &wanted).is_none();
        if there.as_ref().is_some_and(is_as_wanted) {
            return Ok(there);
        }
        // What is there and cannot be changed, as `max_waiting`, stays.
        let mut config = there.as_ref().map_or_else(
            || json!({ "max_waiting": MAX_WAITING }),
            |info| info.config.clone(),
        );
        for (field, value) in wanted.as_object().into_iter().flatten() {
            config[field.as_str()] = value.clone();
        }
        let created = self
            .pipeline
            .create_consumer(&stream, &place.consumer, &place.filter, &config)
            .await;
        let info = match created {
            Ok(info) => info,
            Err(e) if e.is_denied() => {
                if there.is_none() {
                    tracing::warn!(%queue, "there is no such queue, and this user may not create it; a scheduler does");
                }
                return Ok(there);
            }
            Err(e) => return Err(e.error(&what)),
        };
        // A server may ignore what it does not know.
        match differing(&info.config, &wanted) {
            None => Ok(Some(info)),
            Some(field) => Err(permanent(format!(
                "failed to declare {queue}: consumer {} of {stream} has the `{field}` {}, and has to have {}",
                place.consumer, info.config[field], wanted[field]
            ))),
        }
    }

    fn consumer_config(&self, place: &Place) -> Value {
        json!({
            "name": place.consumer,
            "durable_name": place.consumer,
            "filter_subject": place.filter,
            "deliver_policy": "all",
            "replay_policy": "instant",
            "ack_policy": "explicit",
            "ack_wait": nanoseconds(self.options.ack_wait),
            // After a last delivery a work queue would keep the message for ever, for nobody.
            "max_deliver": -1,
            // What is unsettled is bounded by the queue, and delayed messages are not to hold up others.
            "max_ack_pending": -1,
        })
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

/// The first field that is not as wanted.
fn differing<'a>(config: &Value, wanted: &'a Value) -> Option<&'a str> {
    let wanted = wanted.as_object()?;
    wanted
        .iter()
        .find(|(field, value)| config[field.as_str()] != **value)
        .map(|(field, _)| field.as_str())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
