//! Runs the built binary as a user does.

mod bad_input;
mod bad_values;
mod command;
mod config;
mod contexts;
mod generated;
mod http;
mod imports;
mod keys;
mod migrate;
mod offline;
mod program;
mod repeated;
mod server;
mod tls;
mod worker_key;
