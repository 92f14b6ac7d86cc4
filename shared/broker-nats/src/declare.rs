//! Declares streams and consumers. It creates missing ones and corrects the settings that it requires; an operator's
//! other settings stay.

use std::time::Duration;

use cueline_broker::{BrokerError, QueueId};
use serde_json::{Value, json};

use crate::error::permanent;
use crate::jetstream_api::{ConsumerInfo, StreamInfo, if_exists};
use crate::names::{Location, Stream};
use crate::options::MIN_DUPLICATE_WINDOW;
use crate::queues::{DEFAULT_QUEUE_LIMIT, Queues};

/// Fetches that may wait at one consumer. The number has room for every executor of a group.
const MAX_WAITING: u32 = 16_384;

impl Queues {
    pub(crate) async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        let location = self.names.locate(queue);
        // Schedulers declare streams and their limits. An executor only needs its consumer to exist.
        if self.options.identity.is_some() {
            let info = self.requester.consumer_info(&location).await;
            if info.is_ok_and(|info| info.filter() == location.filter) {
                return Ok(());
            }
        }
        self.declare_stream(location.stream).await?;
        if let Some(info) = self.declare_consumer(queue, &location).await? {
            self.remember(queue, &info);
        }
        Ok(())
    }

    async fn declare_stream(&self, stream: Stream) -> Result<(), BrokerError> {
        let name = self.names.stream(stream);
        let Some(StreamInfo { mut config, .. }) = self.find_or_create_stream(stream, &name).await?
        else {
            return Ok(());
        };
        for (field, required) in self.required_settings(stream) {
            if config[field] != required {
                return Err(permanent(format!(
                    "failed to declare stream {name}: its `{field}` is {}, and must be {required}",
                    config[field]
                )));
            }
        }
        let limits = self.configured_limits(stream, self.options.limits.queue_limit);
        if limits.iter().all(|(field, value)| config[field] == *value) {
            return Ok(());
        }
        merge(&mut config, limits);
        let update = format!("STREAM.UPDATE.{name}");
        match self.requester.call::<Value>(&update, config).await {
            Err(e) if !e.is_denied() => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Finds or creates a stream. `None` if this user may neither look it up nor create it. A missing stream then
    /// causes an error when it is first used.
    async fn find_or_create_stream(
        &self,
        stream: Stream,
        name: &str,
    ) -> Result<Option<StreamInfo>, BrokerError> {
        match if_exists(self.requester.stream_info(name).await) {
            Ok(None) => {}
            Err(e) if e.is_denied() => return Ok(None),
            found => return Ok(found?),
        }
        let mut config = json!({ "name": name, "storage": "file" });
        merge(&mut config, self.required_settings(stream).into());
        let queue_limit = self.options.limits.queue_limit;
        let queue_limit = Some(queue_limit.unwrap_or(DEFAULT_QUEUE_LIMIT));
        merge(&mut config, self.configured_limits(stream, queue_limit));
        let create = format!("STREAM.CREATE.{name}");
        match self.requester.call(&create, config).await {
            Ok(created) => Ok(Some(created)),
            // Another process created it in the meantime, perhaps with other limits.
            Err(e) if e.is_stream_name_in_use() => {
                Ok(Some(self.requester.stream_info(name).await?))
            }
            Err(e) if e.is_denied() => {
                tracing::warn!(
                    stream = name,
                    "stream is missing, and this user may not create it; a scheduler creates it"
                );
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// The settings that the driver's guarantees rely on.
    fn required_settings(&self, stream: Stream) -> [(&'static str, Value); 3] {
        [
            ("subjects", json!([self.names.subjects(stream)])),
            ("retention", json!("workqueue")),
            ("discard", json!("new")),
        ]
    }

    fn configured_limits(
        &self,
        stream: Stream,
        queue_limit: Option<u64>,
    ) -> Vec<(&'static str, Value)> {
        let mut limits = Vec::new();
        if let Some(limit) = queue_limit {
            if stream == Stream::Triggers {
                limits.push(("max_msgs_per_subject", json!(limit)));
                limits.push(("discard_new_per_subject", json!(true)));
            } else {
                limits.push(("max_msgs", json!(limit)));
            }
        }
        if let Some(bytes) = self.options.limits.max_bytes {
            limits.push(("max_bytes", json!(bytes)));
        }
        if let Some(replicas) = self.options.limits.replicas {
            limits.push(("num_replicas", json!(replicas)));
        }
        // The server would replace 0 by its default. If messages have no ids, the shortest window has no effect.
        let window = self.options.duplicate_window.max(MIN_DUPLICATE_WINDOW);
        limits.push(("duplicate_window", json!(nanoseconds(window))));
        limits
    }

    /// Declares a consumer. `None` if this user may neither look it up nor create it.
    async fn declare_consumer(
        &self,
        queue: &QueueId,
        location: &Location,
    ) -> Result<Option<ConsumerInfo>, BrokerError> {
        let (stream, consumer) = (&location.stream_name, &location.consumer);
        let found = match if_exists(self.requester.consumer_info(location).await) {
            Err(e) if e.is_denied() => return Ok(None),
            found => found?,
        };
        let required = self.consumer_config(location);
        let is_correct = |info: &ConsumerInfo| first_difference(&info.config, &required).is_none();
        if found.as_ref().is_some_and(is_correct) {
            return Ok(found);
        }
        // Servers refuse to change some settings of an existing consumer, such as `max_waiting`. These settings stay.
        let mut config = found.as_ref().map_or_else(
            || json!({ "max_waiting": MAX_WAITING }),
            |info| info.config.clone(),
        );
        merge(&mut config, required.clone());
        // The filter is part of the subject, so that permissions can name it.
        let create = format!("CONSUMER.CREATE.{stream}.{consumer}.{}", location.filter);
        let body = json!({ "stream_name": stream, "config": config });
        let info: ConsumerInfo = match self.requester.call(&create, body).await {
            Err(e) if e.is_denied() => {
                if found.is_none() {
                    tracing::warn!(
                        %queue,
                        "queue is missing, and this user may not create it; a scheduler creates it"
                    );
                }
                return Ok(found);
            }
            created => created?,
        };
        // A server ignores settings that it does not know, so check the result.
        if let Some((field, value)) = first_difference(&info.config, &required) {
            return Err(permanent(format!(
                "failed to declare {queue}: consumer {consumer} of {stream} has the `{field}` {}, and must have {value}",
                info.config[field]
            )));
        }
        Ok(Some(info))
    }

    fn consumer_config(&self, location: &Location) -> Vec<(&'static str, Value)> {
        vec![
            ("name", json!(location.consumer)),
            ("durable_name", json!(location.consumer)),
            ("filter_subject", json!(location.filter)),
            ("deliver_policy", json!("all")),
            ("replay_policy", json!("instant")),
            ("ack_policy", json!("explicit")),
            ("ack_wait", json!(nanoseconds(self.options.ack_wait))),
            // Unlimited: after a delivery limit the message would stay in the stream, and no consumer would receive it.
            ("max_deliver", json!(-1)),
            // The queue's limit bounds unsettled messages. Delayed messages must not block others.
            ("max_ack_pending", json!(-1)),
        ]
    }
}

fn merge(config: &mut Value, settings: Vec<(&'static str, Value)>) {
    for (field, value) in settings {
        config[field] = value;
    }
}

fn first_difference<'a>(
    config: &Value,
    required: &'a [(&'static str, Value)],
) -> Option<&'a (&'static str, Value)> {
    required
        .iter()
        .find(|(field, value)| config[field] != *value)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
