//! Which broker a role uses, and how.

use std::path::PathBuf;
use std::time::Duration;

use cueline_model::DurationMs;

use super::reader::Reader;
use crate::adapters::BrokerUrl;

/// How a broker is used, whichever it is.
#[derive(Debug, Clone, Default)]
pub struct BrokerSettings {
    /// What all names start with.
    pub prefix: String,
    /// Authorities in place of the system's.
    pub ca: Option<PathBuf>,
    /// This side's certificate and key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A NATS credentials file.
    pub credentials: Option<PathBuf>,
    /// How many servers keep each message.
    pub replicas: Option<u16>,
    /// The longest wait between two tries to connect; the driver's own by default.
    pub longest_wait: Option<Duration>,
    /// A broker that expects signs of life from its clients takes one for dead after twice this time, and hands out again what that one held; the
    /// driver's own by default.
    pub heartbeat: Option<Duration>,
}

impl BrokerSettings {
    /// Whoever has lost a connection has a new one long before it is missed. And what a dead one had been handed out is back in its queue by then.
    pub(super) fn in_step_with(self, failover_after: Option<DurationMs>) -> Self {
        Self {
            longest_wait: failover_after.map(|after| Duration::from_millis(after.as_millis()) / 6),
            heartbeat: failover_after.map(|after| Duration::from_millis(after.as_millis()) / 3),
            ..self
        }
    }
}

/// A broker that several processes use.
pub(super) fn shared_broker(r: &mut Reader) -> Option<BrokerUrl> {
    if !r.is_given("broker") && !r.is_given("broker_file") {
        r.require("broker", &BrokerUrl::expected());
    }
    r.secret(("broker", "broker_file"), |text| {
        let url = BrokerUrl::parse(text)?;
        if url.is_embedded() {
            return Err(format!(
                "{url} given: the embedded broker is for `cueline standalone` only, no other process can use it; {} is expected",
                BrokerUrl::expected()
            ));
        }
        Ok(url)
    })
}

pub(super) fn broker_settings(r: &mut Reader, broker: Option<&BrokerUrl>) -> BrokerSettings {
    let prefix = r.read("broker_prefix", |text| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !text.is_empty() && text.len() <= 64 && text.chars().all(plain) {
            Ok(text.to_owned())
        } else {
            Err(format!(
                "{text:?} given; up to 64 letters, digits, '-' and '_' are expected"
            ))
        }
    });
    let ca = r.read("broker_ca", file);
    let certificate = r.read("broker_certificate", file);
    let key = r.read("broker_key", file);
    for (given, missing) in [
        ("broker_certificate", "broker_key"),
        ("broker_key", "broker_certificate"),
    ] {
        if r.is_given(given) && !r.is_given(missing) {
            r.require(missing, &format!("{given} needs it"));
        }
    }
    let credentials = r.read("broker_credentials", |text| {
        if broker.is_some_and(|broker| !broker.is_nats()) {
            return Err("is for NATS only; put user and password into the broker's URL".to_owned());
        }
        file(text)
    });
    let replicas = r.number("broker_replicas", 1..=9);
    BrokerSettings {
        prefix: prefix.unwrap_or_default(),
        ca,
        certificate: certificate.zip(key),
        credentials,
        replicas: replicas.and_then(|n| u16::try_from(n).ok()),
        longest_wait: None,
        heartbeat: None,
    }
}

fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => Ok(path),
        Ok(_) => Err(format!("{text:?} given; it is not a file")),
        Err(error) => Err(format!("{text:?} given; failed to look at it: {error}")),
    }
}
