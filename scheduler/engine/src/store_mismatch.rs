//! Detects messages that belong to another store.

use cueline_model::StoreId;

/// Why a scheduler of the store `ours` refuses a message about a run of the store `theirs`; `None` when both are the
/// same. Run ids mean nothing outside their store.
pub(crate) fn store_mismatch(ours: StoreId, theirs: StoreId) -> Option<String> {
    (theirs != ours).then(|| {
        format!("it is about a run of another store, {theirs}; this scheduler uses store {ours}")
    })
}
