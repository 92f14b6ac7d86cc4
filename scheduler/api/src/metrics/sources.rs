//! Reads the numbers that cost work of the database and of the broker. Many scrapes share one reading.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cueline_store::admin::{QueueDepth, SchedulerAdmin};
use cueline_store::{OldestQueued, Store, StoreStats};
use tokio::sync::Mutex;
use tokio::time::{Instant, error::Elapsed, timeout};

/// Counting the runs of a large store, or the messages of thousands of queues, must not happen more often than this.
const FRESH_FOR: Duration = Duration::from_secs(10);
/// Prometheus gives up after 10 s by default. The other numbers are still of use then.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The last reading.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources(Arc<Mutex<Option<Arc<Reading>>>>);

/// Numbers of one instant. `None` for what did not answer.
#[derive(Debug)]
pub(crate) struct Reading {
    at: Instant,
    pub(crate) store: Option<StoreStats>,
    pub(crate) oldest_queued: Option<Vec<OldestQueued>>,
    pub(crate) queues: Option<Vec<QueueDepth>>,
}

#[cfg(test)]
impl Reading {
    /// A reading for tests, without statistics of the store.
    pub(super) fn of(
        oldest_queued: Option<Vec<OldestQueued>>,
        queues: Option<Vec<QueueDepth>>,
    ) -> Self {
        Self {
            at: Instant::now(),
            store: None,
            oldest_queued,
            queues,
        }
    }
}

impl Sources {
    /// A reading of the last 10 s. A failed one is kept for as long, so that scrapes do not press a database that is
    /// in trouble.
    pub(crate) async fn read(&self, store: &dyn Store, admin: &dyn SchedulerAdmin) -> Arc<Reading> {
        // Held while reading: scrapes at the same time wait for one reading instead of each making their own.
        let mut last = self.0.lock().await;
        if let Some(reading) = last.as_ref().filter(|r| r.at.elapsed() < FRESH_FOR) {
            return reading.clone();
        }
        let (stats, oldest_queued, queues) = tokio::join!(
            timeout(TIME_LIMIT, store.stats()),
            timeout(TIME_LIMIT, store.oldest_queued_attempts()),
            timeout(TIME_LIMIT, admin.queues())
        );
        let reading = Arc::new(Reading {
            at: Instant::now(),
            store: answered("store", stats),
            oldest_queued: answered("store", oldest_queued),
            queues: answered("broker", queues),
        });
        *last = Some(reading.clone());
        reading
    }
}

fn answered<T, E: fmt::Display>(source: &str, answer: Result<Result<T, E>, Elapsed>) -> Option<T> {
    let error = match answer {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error.to_string(),
        Err(elapsed) => elapsed.to_string(),
    };
    tracing::warn!(
        error,
        source,
        "failed to read numbers for metrics; they are left out. Check the database and the broker"
    );
    None
}
