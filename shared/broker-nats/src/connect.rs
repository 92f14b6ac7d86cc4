//! Converts our options to those of async-nats: addresses, credentials, TLS and reconnect delays.

use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use cueline_broker::BrokerError;

use crate::connection::Connection;
use crate::error::permanent;
use crate::names::{Names, unescaped};
use crate::options::{Login, NatsOptions};

/// Messages that one subscription may buffer. async-nats drops further ones.
const SUBSCRIPTION_CAPACITY: usize = 65_536;
/// Commands that may wait for the connection; further callers wait for room. The limit is small: after a reconnect
/// async-nats sends the waiting commands, although their callers were told that they failed.
const COMMAND_CAPACITY: usize = 256;
/// The first letters of the seed of a user's NKEY.
const NKEY_SEED: &str = "SU";
const FIRST_RECONNECT_DELAY: Duration = Duration::from_millis(50);

pub(crate) async fn connect(
    address: &str,
    options: &NatsOptions,
    names: &Names,
) -> Result<Connection, BrokerError> {
    let servers = parse_servers(address)?;
    let login = login(&servers, &options.login);
    let mut connect = with_login(ConnectOptions::new(), login).await?;
    let max_delay = options.max_reconnect_delay;
    connect = connect
        .name(&options.connection_name)
        .custom_inbox_prefix(names.inbox())
        .ping_interval(options.ping_interval)
        .connection_timeout(options.connect_timeout)
        .request_timeout(Some(options.request_timeout))
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .client_capacity(COMMAND_CAPACITY)
        .require_tls(options.tls.required)
        .reconnect_delay_callback(move |attempts| reconnect_delay(attempts, max_delay));
    if options.retry_on_initial_connect {
        connect = connect.retry_on_initial_connect();
    }
    if options.tls.handshake_first {
        connect = connect.tls_first();
    }
    if let Some(ca_file) = &options.tls.ca_file {
        connect = connect.add_root_certificates(ca_file.clone());
    }
    if let Some(own) = &options.tls.client_certificate {
        connect = connect.add_client_certificate(own.certificate.clone(), own.key.clone());
    }
    Connection::open(servers, connect).await
}

/// Parses one address, or several separated by commas. The default port is 4222.
fn parse_servers(address: &str) -> Result<Vec<ServerAddr>, BrokerError> {
    let servers = address.split(',').map(|one| one.trim().parse());
    // The error does not repeat the address, which may hold a password.
    servers.collect::<Result<_, _>>().map_err(|_| {
        permanent(
            "failed to connect to NATS: an address is `nats://host:port` or `tls://host:port`, \
             several are separated by commas",
        )
    })
}

/// Reads `user:password@` and `token@` from addresses, which async-nats ignores.
fn login(servers: &[ServerAddr], configured: &Login) -> Login {
    let named = servers
        .iter()
        .find_map(|server| server.username().map(|user| (server, user)));
    let Some((server, user)) = named else {
        return configured.clone();
    };
    match server.password() {
        Some(password) => Login::Password {
            user: unescaped(user),
            password: unescaped(password),
        },
        None => Login::Token(unescaped(user)),
    }
}

async fn with_login(connect: ConnectOptions, login: Login) -> Result<ConnectOptions, BrokerError> {
    let path = match login {
        Login::None => return Ok(connect),
        Login::Password { user, password } => return Ok(connect.user_and_password(user, password)),
        Login::Token(token) => return Ok(connect.token(token)),
        Login::CredentialsFile(path) => path,
    };
    let unreadable = |e: std::io::Error| {
        let message = format!("failed to read {} for NATS: {e}", path.display());
        permanent(message).caused_by(e)
    };
    let text = tokio::fs::read_to_string(&path).await.map_err(unreadable)?;
    if text.starts_with(NKEY_SEED) {
        return Ok(connect.nkey(text.trim().to_owned()));
    }
    connect.credentials(&text).map_err(unreadable)
}

/// No delay before the first attempt, then 50 ms, doubled each time up to `max`.
fn reconnect_delay(attempts: usize, max: Duration) -> Duration {
    let Some(doublings) = attempts.checked_sub(2) else {
        return Duration::ZERO;
    };
    let doublings = u32::try_from(doublings).unwrap_or(u32::MAX).min(20);
    (FIRST_RECONNECT_DELAY * 2_u32.pow(doublings)).min(max)
}

#[cfg(test)]
mod tests {
    use cueline_broker::ErrorKind;

    use super::*;

    #[test]
    fn the_reconnect_delay_doubles_up_to_its_maximum() {
        let max = Duration::from_secs(2);
        let delays: Vec<u128> = [0, 1, 2, 3, 4, 7, 8, 9, usize::MAX]
            .map(|attempts| reconnect_delay(attempts, max).as_millis())
            .to_vec();
        assert_eq!(delays, [0, 0, 50, 100, 200, 1_600, 2_000, 2_000, 2_000]);
    }

    #[test]
    fn credentials_in_the_address_override_the_configured_login() {
        let other = Login::Token("other".into());
        let chosen = |address| login(&parse_servers(address).unwrap(), &other);
        let ann = Login::Password {
            user: "ann".into(),
            password: "p@ss".into(),
        };
        assert_eq!(chosen("nats://ann:p%40ss@127.0.0.1"), ann);
        assert_eq!(chosen("nats://a:1, nats://ann:p%40ss@b:2"), ann);
        assert_eq!(chosen("nats://secret@host"), Login::Token("secret".into()));
        assert_eq!(chosen("host:4222"), other);
    }

    #[test]
    fn a_malformed_address_is_refused_without_repeating_it() {
        let error = parse_servers("nats://u:secret@:no").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent);
        assert!(!error.to_string().contains("secret"));
    }
}
