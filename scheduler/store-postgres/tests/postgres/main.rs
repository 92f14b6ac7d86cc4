//! The adapter against real PostgreSQL servers.
//!
//! One test binary: all tests that leave their server unharmed share one, each with a database of its own.

mod concurrency;
mod conformance;
mod opening;
mod partitions;
mod recovery;
mod round_trips;
mod test_database;
mod tls;
