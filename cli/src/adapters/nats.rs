//! The broker on NATS.

use std::sync::Arc;

use cueline_broker::BrokerError;
use cueline_broker_nats::{
    ClientCertificate, Identity, Login, NatsDriver, NatsOptions, StreamLimits, Tls,
};

use super::{BrokerSettings, OpenBroker, Who};

pub(super) async fn open(
    url: &str,
    who: &Who,
    settings: &BrokerSettings,
) -> Result<OpenBroker, BrokerError> {
    let identity = who.executor.clone();
    let credentials = settings.credentials.clone();
    let certificate = settings.certificate.clone();
    let usual = NatsOptions::default();
    let longest = settings.longest_wait;
    let options = NatsOptions {
        max_reconnect_delay: longest.map_or(usual.max_reconnect_delay, |wait| {
            wait.min(usual.max_reconnect_delay)
        }),
        prefix: settings.prefix.clone(),
        identity: identity.map(|(group, executor)| Identity { group, executor }),
        login: credentials.map_or(Login::None, Login::CredentialsFile),
        tls: Tls {
            ca_file: settings.ca.clone(),
            client_certificate: certificate
                .map(|(certificate, key)| ClientCertificate { certificate, key }),
            ..Tls::default()
        },
        connection_name: who.connection.clone(),
        limits: StreamLimits {
            replicas: settings.replicas.map(usize::from),
            ..StreamLimits::default()
        },
        ..usual
    };
    let driver = Arc::new(NatsDriver::connect(url, options).await?);
    Ok(OpenBroker::new(driver, |driver| {
        Box::pin(async move { driver.close().await })
    }))
}
