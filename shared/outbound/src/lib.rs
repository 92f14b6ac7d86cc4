//! What requests to other machines share, of HTTP jobs and of alarms: which addresses they may reach, and where the values
//! of secrets are.

#![warn(clippy::missing_errors_doc)]

mod policy;
mod resolver;
pub mod secrets;

pub use ipnet::IpNet;
pub use policy::{AddressPolicy, RefusedAddress, parse_network};
pub use resolver::{PolicyResolver, SystemResolver, permitted};
