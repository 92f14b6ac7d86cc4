//! The adapter against real PostgreSQL servers.
//!
//! There is one test binary. Tests share a server unless they damage it, and each has a database of its own.

mod audit;
mod concurrency;
mod conformance;
mod lost_commits;
mod opening;
mod partitions;
mod recovery;
mod retention;
mod round_trips;
mod test_database;
mod tls;
