//! What is particular to NATS, on real servers.

mod answers;
mod cluster;
mod credentials;
mod ground;
mod jetstream;
mod late;
mod logins;
mod outages;
mod permissions;
