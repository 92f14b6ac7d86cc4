//! The broker on `RabbitMQ`.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::BrokerError;
use cueline_broker_rabbitmq::{ClientCertificate, RabbitDriver, RabbitOptions};

use super::{BrokerSettings, OpenBroker, Who};

pub(super) async fn open(
    url: &str,
    who: &Who,
    settings: &BrokerSettings,
) -> Result<OpenBroker, BrokerError> {
    let certificate = settings.certificate.clone();
    let usual = RabbitOptions::default();
    let longest = settings.longest_wait;
    let options = RabbitOptions {
        reconnect_wait: longest.map_or(usual.reconnect_wait, |wait| wait.min(usual.reconnect_wait)),
        // In whole seconds, as the protocol has it.
        heartbeat: settings.heartbeat.map_or(usual.heartbeat, |every| {
            every.clamp(Duration::from_secs(1), usual.heartbeat)
        }),
        prefix: settings.prefix.clone(),
        replicas: settings.replicas,
        ca_file: settings.ca.clone(),
        client_certificate: certificate
            .map(|(certificate, key)| ClientCertificate { certificate, key }),
        connection_name: who.connection.clone(),
        ..usual
    };
    let driver = Arc::new(RabbitDriver::open(url, options).await?);
    Ok(OpenBroker::new(driver, |driver| {
        Box::pin(async move { driver.close().await })
    }))
}
