//! Built-in handlers: scripts, commands and HTTP requests.
//!
//! They know what an attempt is ([`cueline_worker::Context`]) and nothing of triggers, lanes or the journal. The SDK
//! decides whether a worker offers them, and whether a trigger may reach them.
//!
//! A worker calls [`kill_orphans`] with its marker before it starts its first attempt; see [`orphans`].

#![warn(clippy::missing_errors_doc)]

mod account;
pub mod command;
mod environment;
pub mod guard;
pub mod http;
mod marks;
mod masks;
mod orphan_error;
pub mod orphans;
mod process;
mod program;
mod script;
mod secrets;
mod setup;
pub mod shell;
mod shortage;
#[cfg(target_os = "linux")]
mod sweep;

pub use command::CommandHandler;
pub use guard::Guard;
pub use http::{AddressPolicy, HttpHandler};
pub use marks::GuardId;
pub use orphans::kill_orphans;
pub use secrets::SecretSources;
pub use shell::ShellHandler;

use cueline_worker::Failure;
use cueline_worker::model::HandlerSpec;

/// The failure of a handler that was given a job of another kind.
fn mismatch(expected: &str, given: &HandlerSpec) -> Failure {
    Failure::new(format!(
        "the {expected} handler was given a job of kind {}",
        given.capability()
    ))
}
