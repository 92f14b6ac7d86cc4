//! The channels of alarms, for the engine.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use cueline_channels::{ChannelOptions, Channels, Outgoing};
use cueline_engine::{AlarmTransport, SendFailure};
use cueline_handlers::AddressPolicy;
use cueline_model::AlarmChannel;
use cueline_runtime::SystemClock;
use cueline_store::ClaimedDelivery;

#[derive(Debug)]
struct ChannelTransport(Channels);

#[async_trait]
impl AlarmTransport for ChannelTransport {
    async fn send(
        &self,
        channel: &AlarmChannel,
        delivery: &ClaimedDelivery,
    ) -> Result<String, SendFailure> {
        let outgoing = Outgoing {
            batch: delivery.batch,
            rule: &delivery.rule,
            count: delivery.count,
            events: &delivery.events,
        };
        let sent = self.0.send(channel, outgoing).await;
        sent.map_err(|refused| SendFailure {
            answer: refused.answer,
            is_permanent: refused.is_permanent,
        })
    }
}

/// What sends messages, with the address policy and the secrets of this process.
pub(crate) fn transport(
    policy: AddressPolicy,
    secrets_dir: Option<PathBuf>,
) -> Result<Arc<dyn AlarmTransport>> {
    let options = ChannelOptions {
        policy,
        secrets_dir,
        authorities: None,
    };
    let channels = Channels::new(options, Arc::new(SystemClock));
    let channels = channels.context("failed to set up the channels of alarms")?;
    Ok(Arc::new(ChannelTransport(channels)))
}
