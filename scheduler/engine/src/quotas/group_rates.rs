//! The rate limits of groups, as this node knows them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cueline_model::{GroupName, Rate};
use cueline_store::GroupRate;

use crate::lock::lock;

/// Read from the store every second. Nearly always empty.
#[derive(Debug, Default)]
pub(crate) struct GroupRates(Mutex<Arc<HashMap<GroupName, Rate>>>);

impl GroupRates {
    /// Takes over what was read from the store.
    pub(crate) fn replace(&self, rates: Vec<GroupRate>) {
        let rates = rates.into_iter().map(|one| (one.group, one.rate));
        *lock(&self.0) = Arc::new(rates.collect());
    }

    /// Those of now, for one batch.
    pub(crate) fn present(&self) -> Arc<HashMap<GroupName, Rate>> {
        lock(&self.0).clone()
    }
}
