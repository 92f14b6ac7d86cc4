//! The broker port: durable queues with acks, and logs of starts.
//!
//! A [`Driver`] adapts one broker product, without retries. The rest of Cueline uses [`Broker`], which adds retries and
//! limits to all drivers. Nothing here interprets the messages.
//!
//! Beside the queues, each executor has a [`StartLog`]. Reading a log removes nothing from it. Heartbeats are
//! announcements; [`Driver::announce_stored`] proves that one has reached the majority of the broker's servers.

#![warn(clippy::missing_errors_doc)]

pub mod address;
pub mod broker;
pub mod dead;
pub mod dead_letter_seal;
pub mod driver;
pub mod error;
pub mod listener;
pub mod start_log;

pub use address::{Channel, QueueId};
pub use broker::{Broker, BrokerOptions};
pub use dead::DeadLetter;
pub use dead_letter_seal::DeadLetterSeal;
pub use driver::{
    BrokerStats, Capabilities, Coverage, Delivery, Driver, Outgoing, QueueStats, Receipt, Refusal,
    SettledTo, Settlement,
};
pub use error::{BrokerError, ErrorKind};
pub use listener::{Announcement, Listener, ListenerSender};
pub use start_log::{MAX_START_RECORD_BYTES, START_LOG_RECORDS, StartLog};

#[cfg(feature = "conformance")]
pub mod conformance;
