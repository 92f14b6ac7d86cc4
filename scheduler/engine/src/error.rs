//! Errors of the engine.

use cueline_broker::BrokerError;
use cueline_store::StoreError;
use cueline_store::admin::AdminError;

/// Why the engine could not start, or why a stage could not finish its turn. Stages retry on their own.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

impl From<EngineError> for AdminError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => Self::Store(error),
            EngineError::Broker(error) => Self::Broker(error.to_string()),
        }
    }
}
