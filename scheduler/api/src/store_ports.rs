//! The ports that one store implements.

use std::sync::Arc;

use cueline_store::{Accounts, Audit, Store};

/// One store, as each of its ports.
#[derive(Clone)]
pub struct StorePorts {
    /// Jobs and runs.
    pub store: Arc<dyn Store>,
    /// Users, sessions and API tokens.
    pub accounts: Arc<dyn Accounts>,
    /// The audit log.
    pub audit: Arc<dyn Audit>,
}

impl<S: Store + Accounts + Audit> From<Arc<S>> for StorePorts {
    fn from(store: Arc<S>) -> Self {
        Self {
            accounts: store.clone(),
            audit: store.clone(),
            store,
        }
    }
}
