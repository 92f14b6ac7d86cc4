//! The log in which an executor records its starts. Only failover reads it, when the executor is dead.

use std::fmt;

use bytes::Bytes;

use crate::error::{BrokerError, ErrorKind};

/// The newest records of a log that a driver keeps, if its product counts records. Older ones are dropped.
pub const START_LOG_RECORDS: u64 = 10_000;

/// The largest record, in bytes. A larger one is refused.
pub const MAX_START_RECORD_BYTES: usize = 16 << 10;

/// The start log of one executor.
///
/// Names are used as given. A driver escapes characters that its product forbids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StartLog {
    /// Executor group.
    pub group: String,
    /// Executor name.
    pub executor: String,
}

/// Shows `starts.<group>.<executor>`.
impl fmt::Display for StartLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "starts.{}.{}", self.group, self.executor)
    }
}

impl StartLog {
    /// Checks the size of a record, for drivers.
    ///
    /// # Errors
    ///
    /// Permanent if the record has more than [`MAX_START_RECORD_BYTES`].
    pub fn check_size(&self, record: &Bytes) -> Result<(), BrokerError> {
        let bytes = record.len();
        if bytes <= MAX_START_RECORD_BYTES {
            return Ok(());
        }
        Err(BrokerError::new(
            ErrorKind::Permanent,
            format!(
                "failed to append to {self}: the record has {bytes} bytes, more than the limit of {MAX_START_RECORD_BYTES}"
            ),
        ))
    }

    /// The error of an append to a log that does not exist, for drivers.
    pub fn missing(&self) -> BrokerError {
        BrokerError::new(
            ErrorKind::Permanent,
            format!("failed to append to {self}: there is no such log; a scheduler declares it"),
        )
    }
}
