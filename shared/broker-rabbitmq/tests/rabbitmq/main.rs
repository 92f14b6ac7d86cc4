//! Tests of behaviour that is particular to `RabbitMQ`, on real servers. See `docs/rabbitmq.md`.

mod faults;
mod fixture;
mod permissions;
mod sharing;
mod tls;
mod topology;
mod unresponsive;
