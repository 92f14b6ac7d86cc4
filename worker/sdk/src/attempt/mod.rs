//! One attempt: its task, its log, and the reports while it runs.
//!
//! An attempt gets a handler and a context, and returns an outcome. It knows nothing of lanes and the journal.

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
