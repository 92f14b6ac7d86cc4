//! What requests to other machines share, of HTTP jobs and of alarms: which addresses they may reach, and where the values
//! of secrets are.

#![warn(clippy::missing_errors_doc)]

mod authorities;
mod client;
mod policy;
mod resolver;
pub mod secrets;
mod tls_error;

pub use client::{CONNECT_TIMEOUT, OutboundClient};
pub use ipnet::IpNet;
pub use policy::{AddressPolicy, RefusedAddress, parse_network};
pub use resolver::{SystemResolver, permitted};
pub use tls_error::TlsSetupError;
