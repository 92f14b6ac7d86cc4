//! The identity of the store.

use cueline_model::StoreId;
use cueline_model::store_id::NoStoreId;

use crate::{ErrorKind, StoreError};

/// Reads the store's id from its row.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if the row is missing or holds no id.
pub fn parse_store_id(stored: Option<String>) -> Result<StoreId, StoreError> {
    let broken = |why: String| {
        StoreError::new(
            ErrorKind::Broken,
            format!("failed to read the store's id: {why}"),
        )
    };
    stored
        .ok_or_else(|| broken("the table store_identity is empty".to_owned()))?
        .parse()
        .map_err(|e: NoStoreId| broken(e.to_string()))
}
