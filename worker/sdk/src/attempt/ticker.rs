//! Ticks for running attempts: ten a second, all from one timer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::log::AttemptLog;

const EVERY: Duration = Duration::from_millis(100);

/// The attempts that did not end at once.
#[derive(Debug, Default)]
pub(crate) struct AttemptTicker(Mutex<Vec<Arc<AttemptLog>>>);

impl AttemptTicker {
    /// Adds an attempt. It is removed when it has ended.
    pub(super) fn add(&self, log: Arc<AttemptLog>) {
        self.lock().push(log);
    }

    /// Ticks all attempts ten times a second. Never returns.
    pub(crate) async fn run(&self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.lock().retain(|log| log.tick());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<AttemptLog>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
