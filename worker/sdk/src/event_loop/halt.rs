//! Early ends of the event loop.

use crate::error::Error;
use crate::journal::JournalError;

/// Why the event loop ends before all attempts have ended.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The worker was asked to end at once.
    HardStop,
    Failed(Error),
}

impl From<JournalError> for Halt {
    fn from(error: JournalError) -> Self {
        Self::Failed(error.into())
    }
}
