//! Declares streams and consumers. It creates missing ones and corrects the settings that it requires; an operator's
//! other settings stay.

use std::time::Duration;

use cueline_broker::{BrokerError, QueueId, START_LOG_RECORDS};
use serde_json::{Value, json};

use crate::error::permanent;
use crate::jetstream_api::{ConsumerInfo, StreamInfo, if_exists};
use crate::names::{Location, Stream};
use crate::options::MIN_DUPLICATE_WINDOW;
use crate::queues::{DEFAULT_QUEUE_LIMIT, Queues};

/// Fetches that may wait at one consumer. The number has room for every executor of a group.
const MAX_WAITING: u32 = 16_384;
/// The bytes of all start logs in a new stream, if `max_bytes` is not configured. The server reserves them.
const DEFAULT_LOG_BYTES: u64 = 256 << 20;

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

    /// Declares the stream of all start logs.
    pub(crate) async fn declare_logs(&self) -> Result<(), BrokerError> {
        self.declare_stream(Stream::Starts).await
    }

    /// Declares the stream of proofs. A server without a cluster forgets it when it ends, because it is in memory.
    pub(crate) async fn declare_proofs(&self) -> Result<(), BrokerError> {
        self.declare_stream(Stream::Proofs).await
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
        self.warn_of_one_copy(stream, &config);
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
        // No proof is read. Memory saves one write to disk for each heartbeat.
        let storage = if stream == Stream::Proofs {
            "memory"
        } else {
            "file"
        };
        let mut config = json!({ "name": name, "storage": storage });
        merge(&mut config, self.required_settings(stream).into());
        match stream {
            Stream::Starts => merge(&mut config, new_log_limits()),
            Stream::Proofs => merge(&mut config, vec![("max_msgs", json!(1))]),
            Stream::Triggers | Stream::Results | Stream::Requests | Stream::Dead => {}
        }
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

    /// Warns once of a stream that only one server of a cluster keeps, unless the number of copies is configured. The
    /// driver does not choose three by itself: the cluster may be smaller, and an operator may want one.
    fn warn_of_one_copy(&self, stream: Stream, config: &Value) {
        let server = self.requester.connection.client.server_info();
        let is_meant = self.options.limits.replicas.is_some();
        if !is_meant
            && is_one_copy_in_cluster(server.cluster.as_deref(), config)
            && self.is_first_warning(stream)
        {
            tracing::warn!(
                stream = self.names.stream(stream),
                cluster = server.cluster.as_deref().unwrap_or_default(),
                "one server of the NATS cluster keeps the only copy of this stream; while it is away, the stream cannot be used, and all workers may be fenced. \
                 Set broker_replicas (--broker-replicas 3), or 1 if that is meant"
            );
        }
    }

    /// The settings that the driver's guarantees rely on.
    fn required_settings(&self, stream: Stream) -> [(&'static str, Value); 3] {
        // A log keeps its records until newer ones replace them. A queue refuses messages that it has no room for.
        let (retention, discard) = match stream {
            Stream::Starts | Stream::Proofs => ("limits", "old"),
            Stream::Triggers | Stream::Results | Stream::Requests | Stream::Dead => {
                ("workqueue", "new")
            }
        };
        [
            ("subjects", json!([self.names.subjects(stream)])),
            ("retention", json!(retention)),
            ("discard", json!(discard)),
        ]
    }

    fn configured_limits(
        &self,
        stream: Stream,
        queue_limit: Option<u64>,
    ) -> Vec<(&'static str, Value)> {
        let mut limits = Vec::new();
        match (stream, queue_limit) {
            (Stream::Starts | Stream::Proofs, _) | (_, None) => {}
            (Stream::Triggers, Some(limit)) => {
                limits.push(("max_msgs_per_subject", json!(limit)));
                limits.push(("discard_new_per_subject", json!(true)));
            }
            (_, Some(limit)) => limits.push(("max_msgs", json!(limit))),
        }
        // The server would reserve memory for the stream of proofs, which has one empty message.
        if let Some(bytes) = self.options.limits.max_bytes
            && stream != Stream::Proofs
        {
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

/// Further limits of the stream of start logs. An operator may change them.
fn new_log_limits() -> Vec<(&'static str, Value)> {
    vec![
        ("max_msgs_per_subject", json!(START_LOG_RECORDS)),
        ("max_bytes", json!(DEFAULT_LOG_BYTES)),
    ]
}

/// Whether one server of a cluster has the only copy of a stream. `cluster` is the name in the server's greeting; a server
/// without a cluster sends none.
fn is_one_copy_in_cluster(cluster: Option<&str>, config: &Value) -> bool {
    cluster.is_some_and(|name| !name.is_empty()) && config["num_replicas"].as_u64() == Some(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_is_too_few_in_a_cluster_only() {
        let copies = |count: u64| json!({ "num_replicas": count });
        for (cluster, config, expected) in [
            (Some("C1"), copies(1), true),
            (Some("C1"), copies(3), false),
            (Some("C1"), json!({}), false),
            (Some(""), copies(1), false),
            (None, copies(1), false),
        ] {
            let found = is_one_copy_in_cluster(cluster, &config);
            assert_eq!(found, expected, "{cluster:?} {config}");
        }
    }
}
