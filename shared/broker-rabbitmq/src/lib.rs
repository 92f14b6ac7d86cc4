//! Broker driver on `RabbitMQ` 3.10 and later.
//!
//! Queues are quorum queues behind topic exchanges, and start logs are streams. The driver publishes in batches with
//! publisher confirms. It consumes with a prefetch that adapts to the fetches. When memory or disk is short, the server
//! stops reading connections that publish. Acks therefore use a second connection.
//!
//! `docs/rabbitmq.md` describes the topology, the permissions, the states of the driver, and the effect of each
//! failure.
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

mod announcements;
mod connection;
mod consumer;
mod context;
mod counts;
mod dead_letters;
mod driver;
mod error;
mod names;
mod options;
mod publish;
mod received;
mod settle;
mod start_logs;
mod topology;

pub use driver::RabbitDriver;
pub use options::{ClientCertificate, RabbitOptions};
