//! Makes streams and consumers, and holds those that are there to what they have to be. What an operator has set besides stays.

use std::time::Duration;

use cueline_broker::{BrokerError, QueueId};
use serde_json::{Value, json};

use crate::api::{ConsumerInfo, found};
use crate::error::permanent;
use crate::names::{Place, Stream};
use crate::queues::{DEFAULT_LIMIT, Queues};

/// Requests for messages that may wait at one consumer: as many as executors of a group.
const MAX_WAITING: u32 = 16_384;

impl Queues {
    pub(crate) async fn declare_stream(&self, stream: Stream) -> Result<(), BrokerError> {
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
    pub(crate) async fn declare_consumer(
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
