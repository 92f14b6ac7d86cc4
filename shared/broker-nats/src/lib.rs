//! Broker driver on NATS `JetStream`.
//!
//! All triggers lie in one stream, with a durable pull consumer for each executor; results, requests and dead letters in
//! one each. `docs/nats.md` has the subjects, the permissions and what the server promises.
//!
//! The way of a batch: every message and every ack goes out at once and is answered by the server, in any order; the
//! `pipeline` gives the answers to those who wait, in one window for the whole process. So a batch costs one round trip, and an
//! answer that does not come is an error, never a guess.
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

mod api;
mod channels;
mod clock;
mod declare;
mod delivered;
mod doubts;
mod driver;
mod error;
mod fence;
mod fetch;
mod link;
mod names;
mod options;
mod pipeline;
mod publish;
mod puller;
mod queues;
mod receipts;
mod settle;

pub use driver::NatsDriver;
pub use options::{Identity, Login, NatsOptions, StreamLimits, Tls};
