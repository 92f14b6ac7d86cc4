//! Behaviour that is particular to NATS, on real servers.

mod authentication;
mod cluster;
mod dead_letters;
mod deadlines;
mod declarations;
mod deduplication;
mod deliveries;
mod fixture;
mod outages;
mod partition;
mod permissions;
mod replies;
