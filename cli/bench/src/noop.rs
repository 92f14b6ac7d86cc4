//! The handler of all benchmarks: counts and times attempts, and works only if its parameter says so.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cueline_worker::{Context, Failure, Handler, Output};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The parameter of a run that works. Its lateness is not measured.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Work {
    /// How long it works.
    pub(crate) ms: u64,
    /// Whether the time since the end of the run before it in its lane is measured.
    pub(crate) measures_gap: bool,
}

/// Lateness in microseconds, from 1 µs to an hour with three digits.
pub(crate) type Lateness = Histogram<u64>;

/// An empty histogram.
pub(crate) fn lateness() -> Lateness {
    Histogram::new_with_max(3_600_000_000, 3).expect("3 digits up to an hour are valid bounds")
}

/// A handler that counts attempts. It measures their lateness while the benchmark asks for it.
#[derive(Debug, Default)]
pub struct Noop {
    attempts: AtomicU64,
    /// `None` while nothing is measured.
    lateness: Mutex<Option<Lateness>>,
    /// When the last run that works has ended, of each job.
    ends: Mutex<HashMap<String, i64>>,
}

impl Noop {
    /// Attempts so far.
    pub(crate) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Relaxed)
    }

    /// Starts measuring with an empty histogram.
    pub(crate) fn measure(&self) {
        *self.lock() = Some(lateness());
    }

    /// Stops measuring, and returns the lateness.
    pub(crate) fn measured(&self) -> Lateness {
        self.lock().take().unwrap_or_else(lateness)
    }

    /// Works. Measures the gap before a run that waited for the one before it, if that is asked for.
    async fn work(&self, cx: &Context, work: Work, began_us: i64) {
        let job = cx.job().as_str();
        let due_us = cx.fire_at().as_millis() * 1_000;
        let ended_us = self.ends().get(job).copied();
        let ended_us = ended_us.filter(|ended| work.measures_gap && *ended >= due_us);
        if let Some(ended_us) = ended_us
            && let Some(measured) = self.lock().as_mut()
        {
            measured.saturating_record(u64::try_from(began_us - ended_us).unwrap_or(0));
        }
        tokio::time::sleep(Duration::from_millis(work.ms)).await;
        self.ends().insert(job.to_owned(), now_us());
    }

    fn ends(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lateness>> {
        self.lateness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Microseconds since the Unix epoch.
#[expect(
    clippy::disallowed_methods,
    reason = "lateness is measured in microseconds, finer than a Clock tells"
)]
pub(crate) fn now_us() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

#[async_trait]
impl Handler for Noop {
    /// Lateness is the time since the fire time, or since the instant in the parameter (in microseconds).
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        let now = now_us();
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if let Ok(work) = serde_json::from_str::<Work>(cx.params_text()) {
            self.work(&cx, work, now).await;
            return Ok(Output::default());
        }
        if let Some(measured) = self.lock().as_mut() {
            let due = cx.params_text().parse();
            let due = due.unwrap_or_else(|_| cx.fire_at().as_millis() * 1_000);
            measured.saturating_record(u64::try_from(now - due).unwrap_or(0));
        }
        Ok(Output::default())
    }
}
