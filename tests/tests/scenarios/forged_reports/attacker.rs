//! A client of the broker product itself, with the account of a worker `two`.

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream;
use cueline_tests::cluster::WITHIN;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use reqwest::Url;

pub(super) struct Attacker {
    /// The group and the name of the worker, as they are in the subjects that it may use.
    place: &'static str,
    client: Client,
}

enum Client {
    Nats(Box<OnNats>),
    Rabbitmq(Box<OnRabbitmq>),
}

struct OnNats {
    client: async_nats::Client,
    streams: jetstream::Context,
}

struct OnRabbitmq {
    _connection: Connection,
    channel: Channel,
}

impl Attacker {
    pub(super) async fn connect(url: &str, place: &'static str) -> Result<Self> {
        let client = Client::connect(url, place).await?;
        Ok(Self { place, client })
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
        match &self.client {
            Client::Nats(nats) => {
                // Workers may use their own subjects only.
                let subject = format!("cueline.{subject}.{}.held", self.place);
                nats.streams.publish(subject, payload.into()).await?.await?;
                Ok(())
            }
            Client::Rabbitmq(rabbit) => {
                let exchange = format!("cueline.{exchange}");
                rabbit.publish(&exchange, "held", &payload).await
            }
        }
    }

    /// Sends a message to all schedulers that listen for heartbeats.
    pub(super) async fn heartbeat(&self, payload: Vec<u8>) -> Result<()> {
        match &self.client {
            Client::Nats(nats) => {
                let subject = format!("cueline.heartbeat.{}", self.place);
                nats.client.publish(subject, payload.into()).await?;
                Ok(nats.client.flush().await?)
            }
            Client::Rabbitmq(rabbit) => rabbit.publish("cueline.live", "heartbeat", &payload).await,
        }
    }
}

impl Client {
    async fn connect(url: &str, place: &str) -> Result<Self> {
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
            .custom_inbox_prefix(format!("cueline.inbox.{place}"))
            .connection_timeout(WITHIN)
            .connect(server)
            .await?;
        let mut streams = jetstream::new(client.clone());
        streams.set_timeout(WITHIN);
        Ok(Self::Nats(Box::new(OnNats { client, streams })))
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
