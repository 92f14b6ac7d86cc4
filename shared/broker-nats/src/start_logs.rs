//! Start logs: one stream holds all of them, with a subject for each executor. The stream drops the oldest records.
//!
//! Consumers exist only while a log is read. Nothing acks a record, so reading removes nothing.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use bytes::Bytes;
use cueline_broker::{BrokerError, StartLog};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::error::transient;
use crate::jetstream_api::{ApiResult, if_exists};
use crate::names::{Location, Stream};
use crate::publish_ack::PublishAck;
use crate::pull::{PullError, PullSubscription};
use crate::queues::Queues;
use crate::received::stream_sequence;

/// Records of one pull request. With records of the largest size they stay far below what a server keeps for a slow
/// client (64 MiB).
const PULL_RECORDS: usize = 500;
/// How long one pull request waits for further records. A copy of the stream may lag behind its leader.
const PULL_WAIT: Duration = Duration::from_secs(1);
/// The longest time of one read. Then it fails, and the caller reads again.
const READ_WITHIN: Duration = Duration::from_mins(1);
/// The server deletes a reader's consumer after this time without a request, if the reader could not delete it.
const FORGET_READER_AFTER: Duration = Duration::from_secs(30);

pub(crate) struct StartLogs {
    pub(crate) queues: Arc<Queues>,
}

impl StartLogs {
    pub(crate) async fn append(&self, log: &StartLog, record: Bytes) -> Result<(), BrokerError> {
        log.check_size(&record)?;
        let (names, requester) = (&self.queues.names, &self.queues.requester);
        let reply = requester.send(names.start_log(log), record).await?;
        let Some(payload) = reply.payload else {
            let stream = names.stream(Stream::Starts);
            let found = if_exists(requester.stream_info(&stream).await);
            // A worker may not look the stream up. It tries again, because a scheduler declares the log.
            return Err(if matches!(found, Ok(None)) {
                log.missing()
            } else {
                transient(format!(
                    "failed to append to {log}: the log does not exist, or no server leads its stream now"
                ))
            });
        };
        match PublishAck::parse(&payload)?.error {
            None => Ok(()),
            Some(refused) => Err(refused.into_broker_error(&format!("append to {log}"))),
        }
    }

    pub(crate) async fn is_empty(&self, log: &StartLog) -> Result<bool, BrokerError> {
        Ok(self.last_sequence(log).await?.is_none())
    }

    pub(crate) async fn read(&self, log: &StartLog) -> Result<Vec<Bytes>, BrokerError> {
        let Some(end) = self.last_sequence(log).await? else {
            return Ok(Vec::new());
        };
        let inbox = self.queues.requester.connection.client.new_inbox();
        let unique = inbox.rsplit('.').next().unwrap_or_default();
        let reader = self.queues.names.start_log_reader(log, unique);
        self.create_reader(&reader).await?;
        let records = self.read_to(end, log, &reader).await;
        let delete = format!("CONSUMER.DELETE.{}.{}", reader.stream_name, reader.consumer);
        let deleted = self.call(&delete, json!({})).await;
        if let Err(e) = deleted.map_err(BrokerError::from) {
            tracing::debug!(error = %e, "failed to delete the consumer of a start log's reader; the server deletes it");
        }
        records
    }

    /// The sequence number of the last record. `None` if the log is empty.
    ///
    /// The leader of the stream answers, which has all confirmed records. The number of records that a new consumer
    /// reports would not do: in a cluster it may be on a server whose copy lags behind.
    async fn last_sequence(&self, log: &StartLog) -> Result<Option<u64>, BrokerError> {
        #[derive(Deserialize)]
        struct Found {
            message: Last,
        }
        #[derive(Deserialize)]
        struct Last {
            seq: u64,
        }
        let names = &self.queues.names;
        let get = format!("STREAM.MSG.GET.{}", names.stream(Stream::Starts));
        let body = json!({ "last_by_subj": names.start_log(log) });
        let found = self.queues.requester.call::<Found>(&get, body).await;
        Ok(if_exists(found)?.map(|found| found.message.seq))
    }

    async fn create_reader(&self, reader: &Location) -> Result<(), BrokerError> {
        let (stream, consumer) = (&reader.stream_name, &reader.consumer);
        let config = json!({
            "name": consumer,
            "filter_subject": reader.filter,
            "deliver_policy": "all",
            "replay_policy": "instant",
            "ack_policy": "none",
            "inactive_threshold": u64::try_from(FORGET_READER_AFTER.as_nanos()).unwrap_or(u64::MAX),
            "mem_storage": true,
            "num_replicas": 1,
        });
        let create = format!("CONSUMER.CREATE.{stream}.{consumer}.{}", reader.filter);
        let body = json!({ "stream_name": stream, "config": config });
        self.call(&create, body).await?;
        Ok(())
    }

    /// Reads up to the record with the sequence number `end`. If a request brings nothing, the leader is asked again:
    /// that record may have been dropped meanwhile.
    async fn read_to(
        &self,
        mut end: u64,
        log: &StartLog,
        reader: &Location,
    ) -> Result<Vec<Bytes>, BrokerError> {
        let connection = &self.queues.requester.connection;
        let timeout = self.queues.options.request_timeout;
        let give_up = Instant::now() + READ_WITHIN;
        let opening = Instant::now() + timeout;
        let mut pull = PullSubscription::open(connection, reader, opening).await?;
        let (mut records, mut newest) = (Vec::new(), 0);
        // The newest record at the last request.
        let mut newest_before = None;
        loop {
            if !pull.is_pending() {
                if Instant::now() >= give_up {
                    return Err(unfinished(log));
                }
                if newest_before == Some(newest) {
                    // Without any record, nothing is left to wait for.
                    end = self.last_sequence(log).await?.unwrap_or(0).min(end);
                    if newest >= end {
                        return Ok(records);
                    }
                }
                newest_before = Some(newest);
                pull.request(connection, PULL_RECORDS, PULL_WAIT, timeout)
                    .await?;
            }
            let Some(pending) = &mut pull.pending else {
                continue;
            };
            let deadline = pending.deadline.min(give_up);
            let message = tokio::select! {
                biased;
                message = pull.messages.next() => message,
                failed = pending.failed() => return Err(failed),
                () = sleep_until(deadline) => return Err(unfinished(log)),
            };
            let message = message.ok_or_else(|| unfinished(log))?;
            pull.accept(message).map_err(|e| ended(log, e))?;
            for message in pull.ready.drain(..) {
                newest = take(message, &mut records, log)?;
                if newest >= end {
                    return Ok(records);
                }
            }
        }
    }

    pub(crate) async fn delete(&self, log: &StartLog) -> Result<(), BrokerError> {
        let names = &self.queues.names;
        let purge = format!("STREAM.PURGE.{}", names.stream(Stream::Starts));
        let body = json!({ "filter": names.start_log(log) });
        if_exists(self.call(&purge, body).await)?;
        Ok(())
    }

    async fn call(&self, operation: &str, body: Value) -> ApiResult<Value> {
        self.queues.requester.call(operation, body).await
    }
}

/// Keeps the record and returns its sequence number.
fn take(message: Message, records: &mut Vec<Bytes>, log: &StartLog) -> Result<u64, BrokerError> {
    let sequence = message.reply.as_ref().and_then(stream_sequence);
    records.push(message.payload);
    sequence.ok_or_else(|| {
        transient(format!(
            "failed to read {log}: NATS delivered a record without its sequence number"
        ))
    })
}

fn unfinished(log: &StartLog) -> BrokerError {
    transient(format!(
        "failed to read {log}: NATS did not deliver all records in time"
    ))
}

fn ended(log: &StartLog, why: PullError) -> BrokerError {
    let why = match why {
        PullError::ConsumerDeleted => "the reader's consumer was deleted".to_owned(),
        PullError::NoResponders => "no server leads the reader's consumer now".to_owned(),
        PullError::Refused(why) => why,
    };
    transient(format!("failed to read {log}: {why}"))
}
