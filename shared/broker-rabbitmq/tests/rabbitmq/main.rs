//! What is true of `RabbitMQ` and not of every broker, on a real server. See `docs/rabbitmq.md`.

mod faults;
mod permissions;
mod sharing;
mod silence;
mod tls;
mod topology;
mod world;
