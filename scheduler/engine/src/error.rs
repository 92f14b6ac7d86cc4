//! What can go wrong in an engine.

use cueline_broker::BrokerError;
use cueline_store::StoreError;

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store.
    #[error("failed to start the engine: {0}")]
    Store(#[from] StoreError),
    /// The broker.
    #[error("failed to start the engine: {0}")]
    Broker(#[from] BrokerError),
}

/// Why a stage could not do its turn; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

impl From<StageError> for EngineError {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Store(e) => Self::Store(e),
            StageError::Broker(e) => Self::Broker(e),
        }
    }
}
