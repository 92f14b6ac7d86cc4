//! Built-in handlers: scripts, commands and HTTP requests.
//!
//! They know what an attempt is ([`cueline_worker::Context`]) and nothing of triggers, lanes or the journal. Whether a
//! worker offers them at all, and whether a trigger may reach them, is decided before they are called.
//!
//! A worker calls [`kill_orphans`] with its marker before it starts its first attempt; see [`orphans`].

#![warn(clippy::missing_errors_doc)]

mod account;
pub mod command;
mod environment;
mod group;
pub mod guard;
pub mod http;
mod lines;
pub mod orphans;
mod process;
#[cfg(target_os = "linux")]
mod procfs;
mod program;
mod script;
pub mod shell;

pub use command::CommandHandler;
pub use environment::GuardId;
pub use guard::Guard;
pub use http::HttpHandler;
pub use orphans::kill_orphans;
pub use shell::ShellHandler;

use cueline_worker::Failure;
use cueline_worker::model::HandlerSpec;

/// The failure of a handler that was given another one's work.
fn mismatch(wanted: &str, given: &HandlerSpec) -> Failure {
    Failure::new(format!(
        "the {wanted} handler was given work for {}",
        given.capability()
    ))
}
