//! Real servers for tests: PostgreSQL, NATS and RabbitMQ on free ports in temporary folders, started, stopped (SIGSTOP), killed
//! (SIGKILL) and started again on the same folder, as often as a test likes; and a proxy that cuts them off.
//!
//! No server outlives the process that started it, however that ends: see [`Guarded`]. The programs are found where
//! `infra/dev/servers` put them; a missing one is an error that says so, never a test that is passed over.

pub mod nats;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod rabbitmq;

pub use process::{Guarded, free_port};
