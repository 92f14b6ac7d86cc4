//! One attempt: its task, its log, and what is reported of it while it runs.
//!
//! It knows nothing of lanes and of the journal; it gets a handler and a context and gives back an outcome.

pub(crate) mod log;
mod outcome;
mod run;
pub(crate) mod watch;

pub(crate) use log::AttemptLog;
pub(crate) use run::{Attempt, Ended};

#[cfg(test)]
mod tests;
