//! The concrete stores and brokers, chosen by address. Nothing outside of this module names one.
//!
//! Each adapter is behind a cargo feature of its name. Addresses of adapters that were not compiled in are refused. The
//! error lists the available ones.

mod broker;
#[cfg(any(feature = "sqlite", feature = "embedded"))]
mod private_file;
mod product;
mod store;

use std::pin::Pin;

pub(crate) use broker::{BrokerSettings, BrokerUrl, ClientIdentity, OpenBroker};
pub(crate) use store::{OpenStore, StoreSettings, StoreUrl};

/// Ends an adapter's connections after its pending writes are done.
type Close = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Why a store or a broker cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct OpenError {
    /// The cause, without secrets.
    pub(crate) message: String,
    /// Whether another attempt may succeed.
    pub(crate) is_transient: bool,
}
