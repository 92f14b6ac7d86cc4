//! Publishes single messages with publisher confirms: records of start logs, and proofs.
//!
//! A queue that does not answer delays only its own callers. Single messages take no slot of the batches, and are not
//! held back like those of a queue: the caller waits for its answer anyway.

use std::sync::Arc;

use cueline_broker::{BrokerError, StartLog};
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Confirms, Outcome, Publisher, SingleMessage, ensure_unblocked, publish_error};
use crate::connection::Connection;
use crate::error::{timed_out, transient};
use crate::names::Names;

/// Where a single message goes. `what` completes "failed to …".
struct Destination {
    what: &'static str,
    exchange: ShortString,
    key: ShortString,
}

impl Publisher {
    /// Appends a message to a start log and returns the server's answer. After an error, or if the call is dropped, the
    /// server may have appended it.
    pub(crate) async fn append(
        &self,
        log: &StartLog,
        message: SingleMessage,
    ) -> Result<Outcome, BrokerError> {
        let to = Destination {
            what: "append to a start log",
            exchange: self.context.names.log_exchange(),
            key: Names::log_key(log)?,
        };
        self.publish_one(&self.append_slots, to, message, None)
            .await
    }

    /// Stores a proof and returns the server's answer. It fails if `connection` is not the present one.
    pub(crate) async fn store_proof(
        &self,
        connection: &Arc<Connection>,
    ) -> Result<Outcome, BrokerError> {
        let to = Destination {
            what: "store an announcement",
            exchange: self.context.names.announcement_exchange(),
            key: Names::proof_key(),
        };
        let proof = SingleMessage::empty();
        self.publish_one(&self.proof_slots, to, proof, Some(connection))
            .await
    }

    async fn publish_one(
        &self,
        slots: &Semaphore,
        to: Destination,
        message: SingleMessage,
        only_on: Option<&Arc<Connection>>,
    ) -> Result<Outcome, BrokerError> {
        let what = to.what;
        let within = self.context.publishing.request_timeout;
        let Ok(Ok(_slot)) = timeout(within, slots.acquire()).await else {
            return Err(timed_out(what, within));
        };
        let channel = self.confirm_channel().await?;
        if only_on.is_some_and(|connection| !Arc::ptr_eq(connection, &channel.connection)) {
            let text = format!("failed to {what}: the connection was lost");
            self.idle().push(channel);
            return Err(transient(text));
        }
        ensure_unblocked(&channel)?;
        let give_up = Instant::now() + within;
        let mandatory = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let publish = channel.amqp.basic_publish(
            to.exchange,
            to.key,
            mandatory,
            &message.payload,
            // The place in a batch of one; see `confirms.rs`.
            message.properties.with_correlation_id("0".into()),
        );
        let confirm = match timeout_at(give_up, publish).await {
            Ok(sent) => sent.map_err(|e| publish_error(&channel, e))?,
            Err(_) => return Err(timed_out(what, within)),
        };
        let mut confirms = Confirms::new(1, [(0, confirm)]);
        confirms.wait(within, give_up).await;
        if let Some(e) = confirms.failed.take() {
            return Err(publish_error(&channel, e));
        }
        if !confirms.open.is_empty() {
            // The channel is not used again: a late answer could be matched to the next message.
            return Err(timed_out(what, within));
        }
        self.idle().push(channel);
        Ok(confirms.outcomes[0])
    }
}
