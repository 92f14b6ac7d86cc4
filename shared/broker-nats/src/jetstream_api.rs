//! The `JetStream` API requests that the driver needs.
//!
//! Configurations stay JSON values. The types of async-nats would drop unknown fields, including an operator's settings
//! on a newer server.

use std::collections::HashMap;

use bytes::Bytes;
use cueline_broker::{BrokerError, ErrorKind, SettledTo};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{ServerError, code, transient};
use crate::names::Location;
use crate::requests::{Reply, Request, Requester};

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StreamInfo {
    /// When the stream was created. It distinguishes streams with the same name.
    created: jiff::Timestamp,
    pub(crate) config: Value,
    pub(crate) state: StreamState,
    /// The clock of the server that leads the stream, at its answer.
    #[serde(default)]
    pub(crate) ts: Option<jiff::Timestamp>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StreamState {
    pub(crate) messages: u64,
    /// The newest message that the stream has ever stored.
    last_seq: u64,
    /// The number of messages for each requested subject.
    #[serde(default)]
    subjects: Option<HashMap<String, u64>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ConsumerInfo {
    /// When the consumer was created. It distinguishes consumers with the same name.
    pub(crate) created: String,
    pub(crate) config: Value,
    pub(crate) num_pending: u64,
    pub(crate) num_ack_pending: u64,
    #[serde(default)]
    delivered: SequencePair,
    #[serde(default)]
    ack_floor: SequencePair,
}

/// A position in a consumer. Only the one in its stream is of interest.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct SequencePair {
    stream_seq: u64,
}

impl ConsumerInfo {
    pub(crate) fn filter(&self) -> &str {
        self.config["filter_subject"].as_str().unwrap_or_default()
    }

    /// How far a queue is settled that has this stream for itself.
    ///
    /// The newest position is the stream's. The one that follows from the consumer may drop: a part of it comes from
    /// memory of the leader, and a consumer that is declared again begins anew.
    pub(crate) fn settled(&self, stream: &StreamInfo) -> SettledTo {
        let delivered = self.delivered.stream_seq;
        let all = self.num_ack_pending == 0;
        SettledTo {
            position: if all {
                delivered
            } else {
                self.ack_floor.stream_seq
            },
            newest: stream.state.last_seq,
            incarnation: stream.created.as_microsecond(),
        }
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) struct ApiError {
    /// The server's error code, if the server answered.
    code: Option<u64>,
    error: BrokerError,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn is_stream_name_in_use(&self) -> bool {
        self.code == Some(code::STREAM_NAME_IN_USE)
    }

    /// Whether the server does not permit the request to this user.
    pub(crate) fn is_denied(&self) -> bool {
        self.code.is_none() && self.error.kind() == ErrorKind::Permanent
    }
}

impl From<BrokerError> for ApiError {
    fn from(error: BrokerError) -> Self {
        Self { code: None, error }
    }
}

impl From<ApiError> for BrokerError {
    fn from(refused: ApiError) -> Self {
        refused.error
    }
}

/// `None` if the stream, consumer or message does not exist.
pub(crate) fn if_exists<T>(result: ApiResult<T>) -> ApiResult<Option<T>> {
    match result.map(Some) {
        Err(ApiError {
            code: Some(code::CONSUMER_NOT_FOUND | code::MESSAGE_NOT_FOUND | code::STREAM_NOT_FOUND),
            ..
        }) => Ok(None),
        result => result,
    }
}

/// The consumers of a stream.
#[derive(Debug, Default)]
pub(crate) struct ConsumerList {
    pub(crate) found: Vec<ConsumerInfo>,
    /// The names of those whose leader did not answer the server.
    pub(crate) missing: Vec<String>,
}

/// The most consumers that are listed. Further ones are missing from the statistics.
const MAX_LISTED_CONSUMERS: usize = 100_000;

impl Requester {
    /// Calls `$JS.API.<operation>`. The operation includes the names of the stream and the consumer.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        operation: &str,
        body: Value,
    ) -> ApiResult<T> {
        let subject = format!("$JS.API.{operation}");
        let reply = self.send(subject, body.to_string().into()).await?;
        parse(&reply, operation)
    }

    pub(crate) async fn stream_info(&self, stream: &str) -> ApiResult<StreamInfo> {
        self.call(&format!("STREAM.INFO.{stream}"), json!({})).await
    }

    /// Counts the messages that the consumer's filter matches.
    pub(crate) async fn count_messages(&self, at: &Location) -> ApiResult<u64> {
        let operation = format!("STREAM.INFO.{}", at.stream_name);
        let body = json!({ "subjects_filter": at.filter });
        let info: StreamInfo = self.call(&operation, body).await?;
        Ok(info.state.subjects.unwrap_or_default().values().sum())
    }

    pub(crate) async fn consumer_info(&self, at: &Location) -> ApiResult<ConsumerInfo> {
        self.call(&consumer_info(at), json!({})).await
    }

    /// Looks up many consumers in one round trip.
    pub(crate) async fn consumer_infos(
        &self,
        all: &[Location],
    ) -> Result<Vec<ApiResult<ConsumerInfo>>, BrokerError> {
        let request =
            |at| Request::new(format!("$JS.API.{}", consumer_info(at)), Bytes::from("{}"));
        let replies = self.send_all(all.iter().map(request)).await?;
        let parsed = |(at, reply)| parse(reply, &consumer_info(at));
        Ok(all.iter().zip(&replies).map(parsed).collect())
    }

    pub(crate) async fn list_consumers(&self, stream: &str) -> ApiResult<ConsumerList> {
        #[derive(Deserialize)]
        struct Page {
            total: usize,
            #[serde(default)]
            consumers: Option<Vec<ConsumerInfo>>,
            #[serde(default)]
            missing: Option<Vec<String>>,
        }
        let mut all = ConsumerList::default();
        loop {
            let before = all.found.len() + all.missing.len();
            let body = json!({ "offset": before });
            let page: Page = self.call(&format!("CONSUMER.LIST.{stream}"), body).await?;
            all.found.extend(page.consumers.unwrap_or_default());
            all.missing.extend(page.missing.unwrap_or_default());
            let listed = all.found.len() + all.missing.len();
            if listed == before || listed >= page.total.min(MAX_LISTED_CONSUMERS) {
                return Ok(all);
            }
        }
    }
}

fn consumer_info(at: &Location) -> String {
    format!("CONSUMER.INFO.{}.{}", at.stream_name, at.consumer)
}

fn parse<T: DeserializeOwned>(reply: &Reply, operation: &str) -> ApiResult<T> {
    #[derive(Deserialize)]
    struct Response {
        #[serde(default)]
        error: Option<ServerError>,
    }
    let failed = |why| transient(format!("failed to call {operation}: {why}"));
    let Some(payload) = &reply.payload else {
        let why = "the NATS server has JetStream switched off, or is not ready yet";
        return Err(failed(why.to_owned()).into());
    };
    let unreadable = |e| failed(format!("the answer cannot be read: {e}"));
    // A list of consumers has hundreds of kilobytes. Read twice, nothing of it is copied into values that are dropped.
    let response: Response = serde_json::from_slice(payload).map_err(unreadable)?;
    if let Some(refused) = response.error {
        return Err(ApiError {
            code: Some(refused.err_code),
            error: refused.into_broker_error(&format!("call {operation}")),
        });
    }
    Ok(serde_json::from_slice(payload).map_err(unreadable)?)
}
