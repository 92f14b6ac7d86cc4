//! Lists on their way into and out of SQLite as one JSON text each.

use cueline_store::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::damaged;

pub(crate) use cueline_store::adapter::values::{clean, int, kind, name, small, state, unsigned};

/// Reads a list that a statement collected with `json_group_array`.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, StoreError> {
    serde_json::from_str(text).map_err(|e| {
        damaged(
            "failed to read rows: the store holds a value of another kind",
            e,
        )
    })
}

/// Writes a list for `json_each`.
pub(crate) fn encode<T: Serialize>(list: &[T]) -> Result<String, StoreError> {
    serde_json::to_string(list).map_err(|e| damaged("failed to write a list as JSON", e))
}
