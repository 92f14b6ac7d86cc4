//! One attempt to connect: address, credentials, TLS and time limit.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind};
use lapin::ConnectionProperties;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::AMQPUri;
use tokio::time::timeout;

use super::Connection;
use crate::error::{ACCESS_REFUSED, NOT_ALLOWED, failed, permanent, reply_code, timed_out};
use crate::options::RabbitOptions;

/// Opens connections with the address and the certificates of one driver.
#[derive(Clone)]
pub(crate) struct Connector {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    properties: ConnectionProperties,
    pub(super) request_timeout: Duration,
    pub(super) longest_wait: Duration,
}

impl Connector {
    /// Parses the address and reads the files that the options name.
    pub(crate) async fn new(url: &str, options: &RabbitOptions) -> Result<Self, BrokerError> {
        let mut uri = parse_address(url)?;
        uri.query.heartbeat = u16::try_from(options.heartbeat.as_secs()).ok();
        let cert_chain = match &options.ca_file {
            None => None,
            Some(path) => Some(
                String::from_utf8(read(path).await?)
                    .map_err(|_| refused(&format!("{} is no PEM file", path.display())))?,
            ),
        };
        let identity = match &options.client_certificate {
            None => None,
            Some(client) => Some(OwnedIdentity::PKCS8 {
                pem: read(&client.certificate).await?,
                key: read(&client.key).await?,
            }),
        };
        Ok(Self {
            uri,
            tls: OwnedTLSConfig {
                identity,
                cert_chain,
            },
            properties: ConnectionProperties::default()
                .with_connection_name(options.connection_name.as_str().into()),
            request_timeout: options.request_timeout,
            longest_wait: options.reconnect_wait,
        })
    }

    /// The user name in the address.
    pub(crate) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    /// A wrong password or virtual host is permanent. Any other failure is transient: the server may still be
    /// starting.
    pub(super) async fn connect(&self) -> Result<Connection, BrokerError> {
        let what = "connect to RabbitMQ";
        let runtime = lapin::runtime::default_runtime().map_err(|e| failed(what, e))?;
        let connect = lapin::Connection::connect_uri_with_config(
            self.uri.clone(),
            self.properties.clone(),
            self.tls.clone(),
            runtime,
        );
        let inner = match timeout(self.request_timeout, connect).await {
            Ok(Ok(inner)) => inner,
            Ok(Err(e)) => {
                let kind = match reply_code(&e) {
                    Some(ACCESS_REFUSED | NOT_ALLOWED) => ErrorKind::Permanent,
                    _ => ErrorKind::Transient,
                };
                let message = format!("failed to {what}: {e}");
                return Err(BrokerError::new(kind, message).caused_by(e));
            }
            Err(_) => return Err(timed_out(what, self.request_timeout)),
        };
        Ok(Connection {
            inner,
            exchanges_declared: AtomicBool::new(false),
            request_timeout: self.request_timeout,
        })
    }
}

/// The error does not repeat the address, which may hold a password. The parser's own error may: `user:password@host`
/// without a scheme is "Invalid URL: …" with all of it.
fn parse_address(url: &str) -> Result<AMQPUri, BrokerError> {
    url.parse().map_err(|_| {
        refused(
            "the address of RabbitMQ is malformed; it is `amqp://user:password@host:5672/vhost` or `amqps://…`",
        )
    })
}

async fn read(path: &Path) -> Result<Vec<u8>, BrokerError> {
    let read = tokio::fs::read(path).await;
    read.map_err(|e| refused(&format!("{} cannot be read: {e}", path.display())))
}

fn refused(why: &str) -> BrokerError {
    permanent(format!("failed to open the broker: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_address_is_refused_without_repeating_it() {
        for bad in [
            "user:secret@host:5672",
            "amqp:user:secret@host",
            "amqp://user:secret@host:no",
            "http://user:secret@host",
        ] {
            let error = parse_address(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Permanent);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(parse_address("amqps://user:secret@host/%2f").is_ok());
    }
}
