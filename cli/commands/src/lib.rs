//! The commands of the `cueline` program that ask a server, or need none.
//!
//! A command prints its answer on standard output and its errors on standard error. Its exit status is 0 (done), 1
//! (the server refused or did not answer) or 2 (the input is wrong).

mod access;
mod accounts;
mod alarm;
mod args;
mod audit;
mod backfill;
mod bulk;
mod calendar;
mod client;
mod context;
mod cron;
mod dlq;
mod doctor;
mod event_stream;
mod events;
mod executor;
mod explain;
mod flow;
mod forecast;
mod health;
mod human;
mod import;
mod import_args;
mod job;
mod job_change;
mod job_history;
mod jobdiff;
mod jobs;
pub mod keys;
mod limit;
mod list_args;
mod lists;
mod login;
mod namespace;
mod namespaces;
mod opaque;
mod pause;
mod prerequisites;
mod progress;
mod prompt;
mod queue;
mod retention;
mod run;
mod script;
mod trigger;
mod watch;
mod window;
mod worker_key;

use std::pin::Pin;

use cueline_interface::Failure;

pub use access::AccessCommand;
pub use context::server_args::ServerArgs;
pub use jobs::JobsCommand;

use client::Api;

/// A command at work. Boxed, so that the code of the commands is in this crate only: a process that serves maps little
/// of what it does not use.
pub type Running = Pin<Box<dyn Future<Output = Result<(), Failure>>>>;

/// The server, asked for what belongs to no namespace.
fn in_no_namespace(api: impl FnOnce() -> Result<Api, Failure>) -> Result<Api, Failure> {
    api().map(|api| api.in_no_namespace())
}
