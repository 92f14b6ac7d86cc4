//! What is particular to NATS, on real servers.

mod ground;
mod jetstream;
mod outages;
mod permissions;
