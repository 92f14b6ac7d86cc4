//! The handler of all benchmarks: counts and times the attempts, does nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use cueline_worker::{Context, Failure, Handler, Output};
use hdrhistogram::Histogram;

/// Lateness in microseconds, from 1 µs to an hour with three digits.
pub(super) type Lateness = Histogram<u64>;

/// An empty one.
pub(super) fn lateness() -> Lateness {
    Histogram::new_with_max(3_600_000_000, 3).expect("3 digits up to an hour are valid bounds")
}

/// Counts and times.
pub(super) struct Noop {
    attempts: AtomicU64,
    /// While measuring.
    lateness: Mutex<Option<Lateness>>,
}

impl Default for Noop {
    fn default() -> Self {
        Self {
            attempts: AtomicU64::new(0),
            lateness: Mutex::new(None),
        }
    }
}

impl Noop {
    /// Attempts so far.
    pub(super) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Relaxed)
    }

    /// Measures from now on, from the beginning.
    pub(super) fn measure(&self) {
        *self.lock() = Some(lateness());
    }

    /// What was measured; measures no more.
    pub(super) fn measured(&self) -> Lateness {
        self.lock().take().unwrap_or_else(lateness)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Lateness>> {
        self.lateness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Microseconds since the Unix epoch.
#[expect(
    clippy::disallowed_methods,
    reason = "lateness is measured in microseconds, finer than a Clock tells"
)]
pub(super) fn now_us() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

#[async_trait]
impl Handler for Noop {
    /// Late is what starts after its fire time, or after the instant that its parameter names (in microseconds).
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        let now = now_us();
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if let Some(measured) = self.lock().as_mut() {
            let due = cx.params_text().parse();
            let due = due.unwrap_or_else(|_| cx.fire_at().as_millis() * 1_000);
            measured.saturating_record(u64::try_from(now - due).unwrap_or(0));
        }
        Ok(Output::default())
    }
}
