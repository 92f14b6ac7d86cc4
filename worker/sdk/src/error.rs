//! What can keep a worker from running.

use cueline_broker::BrokerError;

use crate::journal::JournalError;

/// Any error, as a hook returns it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a worker could not be built, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting does not make sense.
    #[error("failed to build the worker: {field}: {given:?}: {problem}")]
    Setting {
        /// Which.
        field: &'static str,
        /// What was given.
        given: String,
        /// What is wrong with it, and what would be accepted.
        problem: String,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The broker cannot be used.
    #[error("failed to reach the broker: {0}")]
    Broker(#[from] BrokerError),
    /// The hook before the start failed.
    #[error("failed to prepare the start: {0}")]
    BeforeStart(#[source] BoxError),
    /// A part of the worker ended by itself: a bug.
    #[error("failed to go on: the {0} ended unexpectedly")]
    Broken(&'static str),
}

/// What the functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
