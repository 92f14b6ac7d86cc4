//! How far the worker has read its queue.

use std::collections::HashMap;

use cueline_model::{StoreId, Timestamp};

/// The most stores whose position is remembered. Schedulers of further stores learn none.
const MAX_STORES: usize = 16;

/// The deadline of the last trigger of each store that came from the queue. Deadlines grow with the time at which
/// triggers are written.
///
/// It is the last one and not the latest one: a trigger with a wrong deadline counts only until the next trigger.
#[derive(Debug, Default)]
pub(super) struct QueuePosition(HashMap<StoreId, Timestamp>);

impl QueuePosition {
    /// Notes a trigger that came from the queue.
    pub(super) fn set(&mut self, store: StoreId, deadline: Timestamp) {
        if self.0.len() < MAX_STORES || self.0.contains_key(&store) {
            self.0.insert(store, deadline);
        }
    }

    pub(super) fn of(&self, store: StoreId) -> Option<Timestamp> {
        self.0.get(&store).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_has_its_own_position_up_to_a_number_of_stores() {
        let mut position = QueuePosition::default();
        let at = Timestamp::from_millis;
        for store in 0..100 {
            position.set(StoreId(store), at(7));
        }
        position.set(StoreId(0), at(5));
        assert_eq!(position.0.len(), MAX_STORES);
        assert_eq!(position.of(StoreId(0)), Some(at(5)), "the last one counts");
        assert_eq!(position.of(StoreId(1)), Some(at(7)));
        assert_eq!(position.of(StoreId(99)), None);
    }
}
