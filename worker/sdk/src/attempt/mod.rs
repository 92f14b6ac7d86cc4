//! One attempt: its task, its log, and what is reported while it runs.
//!
//! It knows nothing of lanes and of the journal. It is handed a handler and a context, and returns an outcome.

mod buffer;
mod log;
mod outcome;
mod task;
#[cfg(test)]
mod tests;
mod ticker;

pub(crate) use log::{AttemptLog, LogSink};
pub(crate) use task::{Attempt, EndedAttempt};
pub(crate) use ticker::AttemptTicker;
