//! Messages that belong to another store.

use cueline_model::StoreId;

/// Why a message about a run of the store `theirs` is refused by a scheduler of the store `ours`; `None` when both
/// are the same. Run ids mean nothing outside their store.
pub(crate) fn store_mismatch(ours: StoreId, theirs: StoreId) -> Option<String> {
    (theirs != ours).then(|| {
        format!("it is about a run of another store, {theirs}; this scheduler uses store {ours}")
    })
}
