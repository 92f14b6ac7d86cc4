//! Broker driver that keeps its queues in one `SQLite` file, for one process.
//!
//! One writer task commits what all callers wait for in one transaction at a time; what is handed out, since when and
//! how often lives in memory, because one process owns the file. So a fetch writes nothing, and a fetch of messages
//! that were just published does not even read. After a restart everything unsettled is handed out again.
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
mod statements;
mod writer;

pub use driver::EmbeddedDriver;
pub use options::EmbeddedOptions;
