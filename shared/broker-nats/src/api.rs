//! `JetStream`'s requests about streams and consumers, as far as they are needed here. Configurations stay JSON values: what an
//! operator has set and this program does not know is sent back as it was.

use bytes::Bytes;
use cueline_broker::{BrokerError, ErrorKind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{Told, code, transient};
use crate::pipeline::{Answer, Pipeline, Question};

/// A stream, as the server describes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StreamInfo {
    pub(crate) config: Value,
    pub(crate) state: StreamState,
    /// What the clock of the server showed that leads the stream.
    #[serde(default)]
    pub(crate) ts: Option<jiff::Timestamp>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StreamState {
    pub(crate) messages: u64,
    /// How many messages each subject has that was asked for.
    #[serde(default)]
    pub(crate) subjects: Option<std::collections::HashMap<String, u64>>,
}

/// A consumer, as the server describes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ConsumerInfo {
    /// When it was made: no other consumer of its name has the same.
    pub(crate) created: String,
    pub(crate) config: Value,
    pub(crate) num_pending: u64,
    pub(crate) num_ack_pending: u64,
}

impl ConsumerInfo {
    pub(crate) fn filter(&self) -> &str {
        self.config["filter_subject"].as_str().unwrap_or_default()
    }
}

#[derive(Debug, Deserialize)]
struct ConsumerPage {
    total: usize,
    #[serde(default)]
    consumers: Option<Vec<ConsumerInfo>>,
}

/// An answer's error, or what was asked for.
#[derive(Debug, Deserialize)]
struct Reply<T> {
    #[serde(default)]
    error: Option<Told>,
    #[serde(flatten)]
    said: Option<T>,
}

/// What became of a request that the server may refuse with a reason of its own.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Why a request was not granted.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server's own words.
    Told(Told),
    /// This user may not ask that, or there was no answer.
    Failed(BrokerError),
}

impl Failure {
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Told(told) if told.is_not_found())
    }

    pub(crate) fn is_name_in_use(&self) -> bool {
        matches!(self, Self::Told(told) if told.err_code == code::STREAM_NAME_IN_USE)
    }

    /// The server does not permit the request to this user.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Failed(e) if e.kind() == ErrorKind::Permanent)
    }

    /// `what` finishes "failed to …".
    pub(crate) fn error(self, what: &str) -> BrokerError {
        match self {
            Self::Told(told) => told.error(what),
            Self::Failed(e) => e,
        }
    }
}

/// `None` where the failure was that there is no such thing.
pub(crate) fn found<T>(outcome: Outcome<T>) -> Outcome<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// The most consumers that are listed; more are not counted in statistics.
const MOST_LISTED: usize = 100_000;

impl Pipeline {
    async fn request<T: DeserializeOwned>(&self, subject: String, body: Bytes) -> Outcome<T> {
        let answer = self.ask(subject, body).await.map_err(Failure::Failed)?;
        read(&answer)
    }

    pub(crate) async fn stream_info(&self, stream: &str) -> Outcome<StreamInfo> {
        self.request(format!("$JS.API.STREAM.INFO.{stream}"), Bytes::new())
            .await
    }

    /// How many messages the subjects have that match `filter`.
    pub(crate) async fn count(&self, stream: &str, filter: &str) -> Outcome<u64> {
        let body = json!({ "subjects_filter": filter }).to_string();
        let subject = format!("$JS.API.STREAM.INFO.{stream}");
        let info: StreamInfo = self.request(subject, body.into()).await?;
        Ok(info
            .state
            .subjects
            .map_or(0, |subjects| subjects.values().sum()))
    }

    pub(crate) async fn create_stream(&self, stream: &str, config: &Value) -> Outcome<StreamInfo> {
        let subject = format!("$JS.API.STREAM.CREATE.{stream}");
        self.request(subject, config.to_string().into()).await
    }

    pub(crate) async fn update_stream(&self, stream: &str, config: &Value) -> Outcome<StreamInfo> {
        let subject = format!("$JS.API.STREAM.UPDATE.{stream}");
        self.request(subject, config.to_string().into()).await
    }

    pub(crate) async fn delete_stream(&self, stream: &str) -> Outcome<Value> {
        self.request(format!("$JS.API.STREAM.DELETE.{stream}"), Bytes::new())
            .await
    }

    pub(crate) async fn purge(&self, stream: &str, filter: &str) -> Outcome<Value> {
        let body = json!({ "filter": filter }).to_string();
        self.request(format!("$JS.API.STREAM.PURGE.{stream}"), body.into())
            .await
    }

    pub(crate) async fn consumer_info(
        &self,
        stream: &str,
        consumer: &str,
    ) -> Outcome<ConsumerInfo> {
        let subject = format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}");
        self.request(subject, Bytes::new()).await
    }

    /// The same for many at once.
    pub(crate) async fn consumer_infos(
        &self,
        consumers: &[(String, String)],
    ) -> Result<Vec<Outcome<ConsumerInfo>>, BrokerError> {
        let questions = consumers.iter().map(|(stream, consumer)| Question {
            subject: format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}").into(),
            headers: None,
            payload: Bytes::new(),
            silent: false,
            fenced: false,
        });
        let answers = self.ask_all(questions.collect()).await?;
        Ok(answers.iter().map(read).collect())
    }

    /// The filter is in the subject as well, so that permissions can be given for it.
    pub(crate) async fn create_consumer(
        &self,
        stream: &str,
        consumer: &str,
        filter: &str,
        config: &Value,
    ) -> Outcome<ConsumerInfo> {
        let body = json!({ "stream_name": stream, "config": config }).to_string();
        let subject = format!("$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{filter}");
        self.request(subject, body.into()).await
    }

    pub(crate) async fn delete_consumer(&self, stream: &str, consumer: &str) -> Outcome<Value> {
        let subject = format!("$JS.API.CONSUMER.DELETE.{stream}.{consumer}");
        self.request(subject, Bytes::new()).await
    }

    pub(crate) async fn consumers(&self, stream: &str) -> Outcome<Vec<ConsumerInfo>> {
        let mut all = Vec::new();
        loop {
            let body = json!({ "offset": all.len() }).to_string();
            let subject = format!("$JS.API.CONSUMER.LIST.{stream}");
            let page: ConsumerPage = self.request(subject, body.into()).await?;
            let consumers = page.consumers.unwrap_or_default();
            let last = consumers.is_empty();
            all.extend(consumers);
            if last || all.len() >= page.total.min(MOST_LISTED) {
                return Ok(all);
            }
        }
    }
}

fn read<T: DeserializeOwned>(answer: &Answer) -> Outcome<T> {
    let (Answer::Said(text) | Answer::SaidLate(text)) = answer else {
        return Err(Failure::Failed(transient(
            "failed to ask JetStream: the NATS server has it switched off, or is not ready yet",
        )));
    };
    let unclear = |e: &dyn std::error::Error| {
        Failure::Failed(transient(format!("failed to read JetStream's answer: {e}")))
    };
    let reply: Reply<Value> = serde_json::from_slice(text).map_err(|e| unclear(&e))?;
    if let Some(told) = reply.error {
        return Err(Failure::Told(told));
    }
    serde_json::from_value(reply.said.unwrap_or_default()).map_err(|e| unclear(&e))
}
