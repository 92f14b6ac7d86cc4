//! The broker on `RabbitMQ`.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::BrokerError;
use cueline_broker_rabbitmq::{ClientCertificate, RabbitDriver, RabbitOptions};

use super::{BrokerSettings, ClientIdentity, OpenBroker};

pub(super) async fn open(
    url: &str,
    identity: &ClientIdentity,
    settings: &BrokerSettings,
) -> Result<OpenBroker, BrokerError> {
    let certificate = settings.certificate.clone();
    let usual = RabbitOptions::default();
    let longest = settings.longest_wait;
    let options = RabbitOptions {
        reconnect_wait: longest.map_or(usual.reconnect_wait, |wait| wait.min(usual.reconnect_wait)),
        // The protocol counts whole seconds.
        heartbeat: settings.heartbeat.map_or(usual.heartbeat, |every| {
            every.clamp(Duration::from_secs(1), usual.heartbeat)
        }),
        prefix: settings.prefix.clone(),
        replicas: settings.replicas,
        ca_file: settings.ca.clone(),
        client_certificate: certificate
            .map(|(certificate, key)| ClientCertificate { certificate, key }),
        connection_name: identity.connection_name.clone(),
        seal_dead_letters: settings.seal_dead_letters.clone(),
        ..usual
    };
    let driver = Arc::new(RabbitDriver::open(url, options).await?);
    let closed = driver.clone();
    let close = move || {
        let driver = closed.clone();
        Box::pin(async move { driver.close().await }) as _
    };
    Ok(OpenBroker::new(driver, Box::new(close)))
}
