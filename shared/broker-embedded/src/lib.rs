//! Broker driver that keeps its queues in one `SQLite` file, for one process.
//!
//! One writer task writes the requests of all callers, one transaction at a time. Deliveries and their counts live in
//! memory, because one process owns the file. A fetch therefore writes nothing, and a fetch of messages that were just
//! published does not even read. After a restart all unsettled messages are delivered again.
//!
//! ```no_run
//! # async fn example() -> Result<(), cueline_broker::BrokerError> {
//! use cueline_broker::{Broker, BrokerOptions};
//! use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
//!
//! let driver = EmbeddedDriver::open("data/broker.db".as_ref(), EmbeddedOptions::default()).await?;
//! let broker = Broker::new(driver, BrokerOptions::default());
//! # Ok(()) }
//! ```

mod channels;
mod driver;
mod file;
mod memory;
mod options;
mod queue;
mod request;
mod start_logs;
mod statements;
mod writer;

pub use driver::EmbeddedDriver;
pub use options::EmbeddedOptions;
