//! The broker port: durable queues with acks.
//!
//! A [`Driver`] is what one broker product can do, in nine methods, without retries. [`Broker`] is what the rest of
//! Cueline uses: retry of what is worth retrying, bounds, and the discipline of acks live there, once for all drivers.
//! Nothing here knows what the messages mean.

#![warn(clippy::missing_errors_doc)]

pub mod address;
pub mod broker;
pub mod dead;
pub mod driver;
pub mod error;

pub use address::{Channel, QueueId};
pub use broker::{Broker, BrokerOptions};
pub use dead::DeadLetter;
pub use driver::{
    Announcement, Capabilities, Delivery, Driver, Listener, Outgoing, QueueStats, Receipt, Refusal,
    Settlement,
};
pub use error::{BrokerError, ErrorKind};

#[cfg(feature = "conformance")]
pub mod conformance;
