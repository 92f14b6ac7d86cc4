//! Errors that keep a worker from running.

use cueline_broker::BrokerError;
use cueline_model::ExecutorId;

use crate::journal::JournalError;

/// The error of a hook.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a worker could not be built, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is invalid.
    #[error("failed to build the worker: {field}: {given:?}: {problem}")]
    Setting {
        /// The method of [`Builder`](crate::Builder) that sets it.
        field: &'static str,
        /// The given value.
        given: String,
        /// The values that are accepted.
        problem: String,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The broker refuses the worker. Brokers that cannot be reached are tried again instead.
    #[error("failed to use the broker: {0}")]
    Broker(#[from] BrokerError),
    /// The hook of [`Builder::before_start`](crate::Builder::before_start) failed.
    #[error("failed to prepare the start: {0}")]
    BeforeStart(#[source] BoxError),
    /// Another worker runs under the same name. The later one of the two ends.
    #[error(
        "failed to continue: another worker runs as executor {executor}, {other}; give each worker its own name (--name)"
    )]
    NameTaken {
        /// The name that both have.
        executor: ExecutorId,
        /// Machine and process of the other worker.
        other: String,
    },
    /// The worker has stopped softly, and the broker has not confirmed all outcomes.
    #[error(
        "failed to report {outcomes} outcomes before the stop: the broker did not confirm them; the journal keeps them, and the next start with this state directory reports them"
    )]
    Unreported {
        /// Their number.
        outcomes: usize,
    },
    /// A task of the worker ended by itself. This is a bug.
    #[error("failed to continue: the {0} ended unexpectedly")]
    TaskEnded(&'static str),
}

impl Error {
    pub(crate) fn setting(field: &'static str, given: &str, problem: &str) -> Self {
        Self::Setting {
            field,
            given: given.to_owned(),
            problem: problem.to_owned(),
        }
    }
}

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
