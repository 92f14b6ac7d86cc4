//! The broker on NATS.

use std::sync::Arc;

use cueline_broker::BrokerError;
use cueline_broker_nats::{
    ClientCertificate, Identity, Login, NatsDriver, NatsOptions, StreamLimits, Tls,
};

use super::{BrokerSettings, ClientIdentity, OpenBroker};

pub(super) async fn open(
    url: &str,
    identity: &ClientIdentity,
    settings: &BrokerSettings,
) -> Result<OpenBroker, BrokerError> {
    let executor = identity.executor.as_ref();
    let credentials = settings.credentials.clone();
    let certificate = settings.certificate.clone();
    let usual = NatsOptions::default();
    let longest = settings.longest_wait;
    let options = NatsOptions {
        max_reconnect_delay: longest.map_or(usual.max_reconnect_delay, |wait| {
            wait.min(usual.max_reconnect_delay)
        }),
        prefix: settings.prefix.clone(),
        identity: executor.map(|id| Identity {
            group: id.group.to_string(),
            executor: id.name.to_string(),
        }),
        login: credentials.map_or(Login::None, Login::CredentialsFile),
        tls: Tls {
            ca_file: settings.ca.clone(),
            client_certificate: certificate
                .map(|(certificate, key)| ClientCertificate { certificate, key }),
            ..Tls::default()
        },
        connection_name: identity.connection_name.clone(),
        seal_dead_letters: settings.seal_dead_letters.clone(),
        limits: StreamLimits {
            replicas: settings.replicas.map(usize::from),
            ..StreamLimits::default()
        },
        ..usual
    };
    let driver = Arc::new(NatsDriver::connect(url, options).await?);
    let closed = driver.clone();
    let close = move || {
        let driver = closed.clone();
        Box::pin(async move { driver.close().await }) as _
    };
    Ok(OpenBroker::new(driver, Box::new(close)))
}
