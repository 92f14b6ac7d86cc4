//! The built binary, run as a user runs it.

mod bad_input;
mod command;
mod config;
mod keys;
mod migrate;
mod offline;
mod server;
