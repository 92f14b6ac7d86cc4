//! Worker SDK: what a process needs to run Cueline's jobs.
//!
//! A worker takes triggers from its queue, writes them into its journal, acks them, treats them lane by lane, runs the
//! handlers and reports. It knows nothing of schedules or of the store.

mod attempt;
mod beat;
mod builder;
pub mod context;
mod control;
mod core;
pub mod error;
pub mod handler;
mod intake;
mod journal;
mod lanes;
mod outbox;
mod registry;
mod reporter;
mod settle;
pub mod testing;
mod worker;

pub use builder::{BoxError, Builder};
pub use context::{Context, Facts, StopReason, Stopped};
/// The words that [`Facts`] are made of; handlers need no other internal crate.
pub use cueline_model as model;
pub use cueline_protocol::Stream;
pub use cueline_protocol::VerifyingKeys;
pub use cueline_runtime::Stop;
pub use error::{Error, Result};
pub use handler::{Failure, Handler, Output, from_fn};
pub use journal::JournalError;
pub use worker::Worker;
