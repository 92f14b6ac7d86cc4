//! Orders from schedulers.

use super::decisions::Decisions;
use super::state::EventLoop;
use crate::control::{HoldingsQuery, Order};

impl EventLoop {
    /// Carries out cancellations, and returns the queries to answer after the turn.
    pub(super) fn take_orders(
        &mut self,
        orders: impl Iterator<Item = Order>,
        decisions: &mut Decisions,
    ) -> Vec<HoldingsQuery> {
        let mut queries = Vec::new();
        for order in orders {
            match order {
                Order::Cancel(run) => {
                    if self.lanes.newest_attempt(run).is_none() {
                        self.early_cancels.insert(run);
                    }
                    let mut steps = Vec::new();
                    self.lanes.cancel(run, &mut steps);
                    self.follow(steps, decisions);
                }
                Order::Holdings(query) => queries.push(query),
            }
        }
        queries
    }
}
