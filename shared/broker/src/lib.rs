//! The broker port: durable queues with acks.
//!
//! A [`Driver`] adapts one broker product, in nine methods, without retries. The rest of Cueline uses [`Broker`], which
//! adds retries and limits to all drivers. Nothing here interprets the messages.

#![warn(clippy::missing_errors_doc)]

pub mod address;
pub mod broker;
pub mod dead;
pub mod driver;
pub mod error;
pub mod listener;

pub use address::{Channel, QueueId};
pub use broker::{Broker, BrokerOptions};
pub use dead::DeadLetter;
pub use driver::{
    Capabilities, Delivery, Driver, Outgoing, QueueStats, Receipt, Refusal, Settlement,
};
pub use error::{BrokerError, ErrorKind};
pub use listener::{Announcement, Listener, ListenerSender};

#[cfg(feature = "conformance")]
pub mod conformance;
