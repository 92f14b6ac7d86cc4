//! The handler of all benchmarks: counts and times attempts, and does nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cueline_worker::{Context, Failure, Handler, Output};
use hdrhistogram::Histogram;

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
        if let Some(measured) = self.lock().as_mut() {
            let due = cx.params_text().parse();
            let due = due.unwrap_or_else(|_| cx.fire_at().as_millis() * 1_000);
            measured.saturating_record(u64::try_from(now - due).unwrap_or(0));
        }
        Ok(Output::default())
    }
}
