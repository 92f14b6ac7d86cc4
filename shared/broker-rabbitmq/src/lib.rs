//! Broker driver on `RabbitMQ` 3.10 and later.
//!
//! Queues are quorum queues behind topic exchanges; a publish is pipelined, mandatory and confirmed; a queue is consumed with
//! a prefetch that follows what callers ask for. Two connections: the server stops reading one that publishes while it is short
//! of memory or disk, and acks must not wait behind that. Both are opened again for ever, by a loop of their own; what was
//! fetched before a cut is delivered again, and its receipts are ignored.
//!
//! Topology, permissions and what the product cannot do: `docs/rabbitmq.md`.
//!
//! ```no_run
//! # async fn example() -> Result<(), cueline_broker::BrokerError> {
//! use cueline_broker::{Broker, BrokerOptions};
//! use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
//!
//! let driver = RabbitDriver::open("amqp://cueline:secret@mq.example:5672/cueline", RabbitOptions::default()).await?;
//! let broker = Broker::new(driver, BrokerOptions::default());
//! # Ok(()) }
//! ```

mod channels;
mod confirms;
mod delivery;
mod driver;
mod error;
mod link;
mod names;
mod options;
mod publish;
mod settle;
mod silence;
mod started;
mod tap;
mod topology;

pub use driver::RabbitDriver;
pub use options::{ClientCertificate, RabbitOptions};
