//! Real servers for tests: PostgreSQL, NATS, RabbitMQ and Canaille on free ports in temporary folders. A test may pause them
//! (SIGSTOP), kill them (SIGKILL) and start them again on the same data. A proxy before a server can delay or cut its
//! connections.
//!
//! No server outlives the process that started it, however that process ends: see [`Guarded`]. `infra/dev/servers`
//! installs the programs. A missing program is an error, never a skipped test. Only a test with the provider of
//! [`canaille`] is skipped without it, and says so.

pub mod canaille;
pub mod nats;
pub mod nats_cluster;
mod port;
pub mod postgres;
pub mod postgres_pair;
pub mod process;
pub mod proxy;
pub mod rabbitmq;
pub mod rabbitmq_cluster;

pub use nats_cluster::NatsCluster;
pub use port::free_port;
pub use process::Guarded;
