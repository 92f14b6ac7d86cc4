//! What is particular to NATS, on real servers.

mod ground;
mod jetstream;
mod logins;
mod outages;
mod permissions;
