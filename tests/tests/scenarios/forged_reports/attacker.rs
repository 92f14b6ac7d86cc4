//! A client of the broker product itself, with the account of worker `two`.

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream;
use cueline_tests::cluster::WITHIN;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use reqwest::Url;

pub(super) enum Attacker {
    Nats(Box<OnNats>),
    Rabbitmq(Box<OnRabbitmq>),
}

pub(super) struct OnNats {
    client: async_nats::Client,
    streams: jetstream::Context,
}

pub(super) struct OnRabbitmq {
    _connection: Connection,
    channel: Channel,
}

impl Attacker {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        if url.starts_with("amqp:") {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            channel
                .confirm_select(ConfirmSelectOptions::default())
                .await?;
            return Ok(Self::Rabbitmq(Box::new(OnRabbitmq {
                _connection: connection,
                channel,
            })));
        }
        let url = Url::parse(url)?;
        let password = url.password().context("a password")?;
        let options = async_nats::ConnectOptions::with_user_and_password(
            url.username().to_owned(),
            password.to_owned(),
        );
        let server = format!(
            "{}:{}",
            url.host_str().context("a host")?,
            url.port().context("a port")?
        );
        let client = options
            .custom_inbox_prefix("cueline.inbox.default.two")
            .connection_timeout(WITHIN)
            .connect(server)
            .await?;
        let mut streams = jetstream::new(client.clone());
        streams.set_timeout(WITHIN);
        Ok(Self::Nats(Box::new(OnNats { client, streams })))
    }

    /// Publishes to the results queue.
    pub(super) async fn report(&self, payload: Vec<u8>) -> Result<()> {
        self.store("result", "results", payload).await
    }

    /// Publishes to the dead-letter queue.
    pub(super) async fn dead_letter(&self, payload: Vec<u8>) -> Result<()> {
        self.store("dead", "dead", payload).await
    }

    /// Publishes a message that the broker stores. Fails if it refuses it.
    async fn store(&self, subject: &str, exchange: &str, payload: Vec<u8>) -> Result<()> {
        match self {
            Self::Nats(nats) => {
                // Workers may use their own subjects only.
                let subject = format!("cueline.{subject}.default.two.held");
                nats.streams.publish(subject, payload.into()).await?.await?;
                Ok(())
            }
            Self::Rabbitmq(rabbit) => {
                let exchange = format!("cueline.{exchange}");
                rabbit.publish(&exchange, "held", &payload).await
            }
        }
    }

    /// Sends a message to all schedulers that listen for heartbeats.
    pub(super) async fn heartbeat(&self, payload: Vec<u8>) -> Result<()> {
        match self {
            Self::Nats(nats) => {
                let subject = "cueline.heartbeat.default.two";
                nats.client.publish(subject, payload.into()).await?;
                Ok(nats.client.flush().await?)
            }
            Self::Rabbitmq(rabbit) => rabbit.publish("cueline.live", "heartbeat", &payload).await,
        }
    }
}

impl OnRabbitmq {
    async fn publish(&self, exchange: &str, key: &str, payload: &[u8]) -> Result<()> {
        let sent = self
            .channel
            .basic_publish(
                exchange.into(),
                key.into(),
                BasicPublishOptions::default(),
                payload,
                BasicProperties::default(),
            )
            .await?;
        ensure!(sent.await?.is_ack(), "the broker refused it");
        Ok(())
    }
}
