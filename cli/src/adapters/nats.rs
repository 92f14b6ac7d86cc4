//! The broker on NATS.

use std::sync::Arc;

use cueline_broker::BrokerError;
use cueline_broker_nats::{Identity, Login, NatsDriver, NatsOptions, StreamLimits, Tls};

use super::{BrokerSettings, OpenBroker, Who};

pub(super) async fn open(
    url: &str,
    who: &Who,
    settings: &BrokerSettings,
) -> Result<OpenBroker, BrokerError> {
    let identity = who.executor.clone();
    let credentials = settings.credentials.clone();
    let usual = NatsOptions::default();
    let longest = settings.longest_wait;
    let options = NatsOptions {
        longest_reconnect_wait: longest.map_or(usual.longest_reconnect_wait, |wait| {
            wait.min(usual.longest_reconnect_wait)
        }),
        prefix: settings.prefix.clone(),
        identity: identity.map(|(group, executor)| Identity { group, executor }),
        login: credentials.map_or(Login::None, Login::CredentialsFile),
        tls: Tls {
            authorities: settings.ca.clone(),
            certificate: settings.certificate.clone(),
            ..Tls::default()
        },
        name: who.connection.clone(),
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
