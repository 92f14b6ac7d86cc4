//! The built binary, run as a person runs it.

mod bad_input;
mod command;
mod offline;
mod server;
