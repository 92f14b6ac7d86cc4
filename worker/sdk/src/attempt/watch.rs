//! Looks at the running attempts ten times a second, all with one timer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::AttemptLog;

const EVERY: Duration = Duration::from_millis(100);

/// The attempts that did not end at once.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<Vec<Arc<AttemptLog>>>);

impl Watch {
    /// Looks at this one as well, until it has ended.
    pub(crate) fn add(&self, log: Arc<AttemptLog>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(log);
    }

    fn look(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|log| log.look());
    }

    /// Looks until it is dropped.
    pub(crate) async fn run(&self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look();
        }
    }
}
