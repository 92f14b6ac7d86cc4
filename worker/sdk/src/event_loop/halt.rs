//! Why the event loop ends before everything has ended.

use crate::error::Error;
use crate::journal::JournalError;

/// Why the event loop ends before everything has ended.
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
