//! Alarms: makes messages of events, sends them, and looks at what raises an alarm without the end of a run.
//!
//! The events that follow from ends of runs and from fires are in the store already: it writes them with their causes.
//! The engine knows no protocol of a channel. It hands each message to an [`AlarmTransport`].

pub(crate) mod checks;
pub(crate) mod sender;

use std::fmt::Debug;

use async_trait::async_trait;
use cueline_model::AlarmChannel;
use cueline_store::ClaimedDelivery;

/// Sends messages through channels.
#[async_trait]
pub trait AlarmTransport: Debug + Send + Sync + 'static {
    /// Sends a message, and returns the answer of the channel. After 20 s the call is dropped.
    ///
    /// # Errors
    ///
    /// [`SendFailure`] if the channel has not accepted it.
    async fn send(
        &self,
        channel: &AlarmChannel,
        delivery: &ClaimedDelivery,
    ) -> Result<String, SendFailure>;
}

/// Why a message was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendFailure {
    /// What the channel answered, or why it was not reached.
    pub answer: String,
    /// Whether the same message would be refused again.
    pub is_permanent: bool,
}
