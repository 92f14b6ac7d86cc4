//! Carries out trigger requests that arrive over the broker.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Delivery, QueueId, Settlement};
use cueline_model::{Actor, ActorKind, JobName, NameError, Namespace};
use cueline_protocol::{TriggerRequest as RequestMessage, decode};
use cueline_runtime::Stop;
use cueline_store::{ErrorKind, TriggerRequest};

use super::manual_trigger::{ManualTrigger, TriggerError};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::queue_consumer::QueueConsumer;
use crate::refused_messages::{LetterOrigin, RefusedMessages};

/// Messages fetched at once.
const BATCH: usize = 200;
/// Messages settled at once. Settling in small groups limits how many requests a failure repeats.
const SETTLE_BATCH: usize = 20;
/// Requests not begun this long after their fetch are returned to the queue. Brokers redeliver an unsettled message
/// after three times as long, and a request that is delivered twice would be carried out twice.
const BEGIN_WITHIN_MS: i64 = 10_000;
/// The same limit as over HTTP.
const MAX_KEY_BYTES: usize = 256;
/// The name of a sender that gives none.
const UNNAMED: &str = "unnamed";
/// After a failure of the store, the request is delivered again after this time.
const RETRY_AFTER: Duration = Duration::from_millis(500);

pub(crate) struct TriggerRequests {
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) refused: RefusedMessages,
    pub(crate) trigger: ManualTrigger,
}

impl QueueConsumer for TriggerRequests {
    const QUEUE: QueueId = QueueId::Requests;

    fn broker(&self) -> &Broker {
        &self.broker
    }

    fn max_messages(&self) -> usize {
        BATCH
    }

    /// Carries out one request after the other. Requests without enough time left return to the queue.
    async fn process(&self, batch: &[Delivery], stop: &Stop) -> Result<usize, EngineError> {
        let fetched_at = self.clock.now();
        for part in batch.chunks(SETTLE_BATCH) {
            let mut settlements = Vec::with_capacity(part.len());
            for delivery in part {
                let is_late = self.clock.now().since_ms(fetched_at) > BEGIN_WITHIN_MS;
                let settlement = if is_late || stop.is_soft() {
                    Settlement::Retry(Duration::ZERO)
                } else {
                    match self.carry_out(delivery).await {
                        Ok(settlement) => settlement,
                        Err(reason) => self.refuse(delivery, reason).await,
                    }
                };
                settlements.push((delivery.receipt, settlement));
            }
            self.broker.settle(&Self::QUEUE, &settlements).await?;
        }
        Ok(batch.len())
    }
}

impl TriggerRequests {
    /// Returns why the request is refused, if it is.
    async fn carry_out(&self, delivery: &Delivery) -> Result<Settlement, String> {
        let request = decode::<RequestMessage>(&delivery.payload).map_err(|e| e.to_string())?;
        check_address(&delivery.topic, &request.job)?;
        if let Some(key) = request.key.as_ref().filter(|k| k.len() > MAX_KEY_BYTES) {
            return Err(format!(
                "failed to trigger {}: `key` takes a text of at most {MAX_KEY_BYTES} bytes; this one has {}",
                request.job,
                key.len()
            ));
        }
        let by = request.by.as_deref().unwrap_or(UNNAMED);
        let request = TriggerRequest {
            job: request.job,
            params: request.params,
            idempotency_key: request.key,
            run_at: request.at,
            by: Actor::new(ActorKind::Message, by),
            condition: cueline_store::Precondition::None,
        };
        match self.trigger.trigger(&request).await {
            Ok(_) => Ok(Settlement::Ack),
            Err(TriggerError::Store(e))
                if matches!(e.kind(), ErrorKind::Transient | ErrorKind::Broken) =>
            {
                tracing::warn!(job = %request.job, error = %e, "failed to carry out a trigger request; trying again. Check the database");
                Ok(Settlement::Retry(RETRY_AFTER))
            }
            Err(TriggerError::Store(e)) => Err(format!("failed to trigger {}: {e}", request.job)),
            Err(TriggerError::Quota(refusal)) => Err(format!(
                "failed to trigger {}: {}",
                request.job, refusal.reason
            )),
        }
    }

    /// Stores the request as a dead letter of the namespace that it was published for: the broker's permissions are about
    /// that address, and not about what the message says.
    async fn refuse(&self, delivery: &Delivery, reason: String) -> Settlement {
        let origin = LetterOrigin::scheduler(addressed(&delivery.topic).ok());
        let letter = self.refused.letter(&Self::QUEUE, delivery, reason, origin);
        match self.refused.keep(&[letter]).await {
            Ok(()) => Settlement::Ack,
            Err(error) => {
                tracing::warn!(%error, "failed to store a dead letter; trying again. Check the database");
                Settlement::Retry(RETRY_AFTER)
            }
        }
    }
}

/// Returns why the address of a request, which the broker's permissions are about, is not that of its job. A sender who
/// may publish to the addresses of one namespace cannot request the jobs of another.
fn check_address(topic: &str, job: &JobName) -> Result<(), String> {
    match addressed(topic) {
        Ok(namespace) if job.is_in(&namespace) => Ok(()),
        Ok(namespace) => Err(format!(
            "failed to trigger {job}: the request was published for the namespace {namespace}; publish it for {}",
            job.namespace()
        )),
        Err(error) => Err(format!(
            "failed to trigger {job}: the request was published for {topic:?}, which is not a job: {error}"
        )),
    }
}

/// The namespace that a request was published for.
fn addressed(topic: &str) -> Result<Namespace, NameError> {
    if topic.contains('/') {
        topic.parse::<JobName>().map(|name| name.namespace())
    } else {
        Ok(Namespace::default())
    }
}

#[cfg(test)]
mod tests {
    use super::check_address;

    #[test]
    fn a_request_is_for_the_namespace_that_it_was_published_for() {
        let check = |topic: &str, job: &str| check_address(topic, &job.parse().expect("a name"));
        for (topic, job) in [
            ("report", "report"),
            // The address names the namespace; the message names the job.
            ("test", "report"),
            ("", "report"),
            ("default/report", "report"),
            ("team-a/report", "team-a/report"),
            ("team-a/other", "team-a/report"),
        ] {
            assert_eq!(check(topic, job), Ok(()), "{topic} {job}");
        }
        for (topic, job) in [
            ("report", "team-a/report"),
            ("team-a/report", "report"),
            ("team-a/report", "team-b/report"),
            ("team-a.report", "team-a/report"),
            ("team-a/x/y", "team-a/report"),
            // What drivers make of one token with a slash.
            ("team-a%2Freport", "team-a/report"),
            ("team-a/x%2Fy", "team-a/report"),
            ("/report", "report"),
        ] {
            let error = check(topic, job).expect_err("is refused");
            assert!(error.contains("was published for"), "{error}");
        }
    }
}
