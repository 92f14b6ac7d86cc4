//! Broker driver on NATS `JetStream`.
//!
//! All triggers are in one stream, with a durable pull consumer for each executor. Results, requests and dead letters
//! have a stream each. One more stream holds the start logs of all executors. `docs/nats.md` lists the subjects and
//! permissions. It also explains how the driver publishes, fetches and settles, and what each failure does.
//!
//! A batch costs one round trip: the driver sends all messages or acks of the batch and then awaits the replies
//! together. A missing reply is always an error.
//!
//! ```no_run
//! # async fn example() -> Result<(), cueline_broker::BrokerError> {
//! use cueline_broker::{Broker, BrokerOptions};
//! use cueline_broker_nats::{NatsDriver, NatsOptions};
//!
//! let driver = NatsDriver::connect("nats://localhost:4222", NatsOptions::default()).await?;
//! let broker = Broker::new(driver, BrokerOptions::default());
//! # Ok(()) }
//! ```

mod channels;
mod connect;
mod connection;
mod dead_letter;
mod deadline;
mod declare;
mod driver;
mod error;
mod fetch;
mod jetstream_api;
mod names;
mod options;
mod publish;
mod publish_ack;
mod pull;
mod queues;
mod receipts;
mod received;
mod requests;
mod settle;
mod silence;
mod start_logs;
mod unconfirmed;

pub use driver::NatsDriver;
pub use options::{ClientCertificate, Identity, Login, NatsOptions, StreamLimits, Tls};
