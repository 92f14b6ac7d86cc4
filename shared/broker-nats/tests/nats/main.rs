//! What is particular to NATS, on real servers.

mod ground;
mod jetstream;
mod late;
mod logins;
mod outages;
mod permissions;
