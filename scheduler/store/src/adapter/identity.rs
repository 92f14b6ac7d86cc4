//! Which store this is.

use cueline_model::StoreId;
use cueline_model::store_id::NoStoreId;

use crate::{ErrorKind, StoreError};

/// What the row of the store's id says.
///
/// # Errors
///
/// [`ErrorKind::Broken`] when there is none, or something else.
pub fn understood(found: Option<String>) -> Result<StoreId, StoreError> {
    let broken = |why: String| {
        StoreError::new(
            ErrorKind::Broken,
            format!("failed to read the store's id: {why}"),
        )
    };
    found
        .ok_or_else(|| broken("the table store_identity is empty".to_owned()))?
        .parse()
        .map_err(|e: NoStoreId| broken(e.to_string()))
}
