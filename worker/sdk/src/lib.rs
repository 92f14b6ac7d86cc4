//! Worker SDK: what a process needs to run Cueline's jobs.
//!
//! A worker takes triggers from its queue, writes them into its journal, acks them, treats them lane by lane, runs the
//! handlers and reports. It knows nothing of schedules or of the store.

pub mod context;
pub mod handler;
pub mod testing;

pub use context::{Context, Facts, StopReason, Stopped};
/// The words that [`Facts`] are made of; handlers need no other internal crate.
pub use cueline_model as model;
pub use cueline_protocol::Stream;
pub use handler::{Failure, Handler, Output, from_fn};
