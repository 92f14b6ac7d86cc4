//! Clocks. All code that needs the time gets it from one of these.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::clock_steps;

/// Tells the time, in milliseconds since the Unix epoch.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// The present time.
    fn now_ms(&self) -> i64;

    /// The same in microseconds, for short waits.
    fn now_us(&self) -> i64 {
        self.now_ms().saturating_mul(1_000)
    }
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        self.now_us().div_euclid(1_000)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is where the time comes from"
    )]
    fn now_us(&self) -> i64 {
        let machine_us = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros())
                .unwrap_or(i64::MAX)
                .saturating_neg(),
        };
        machine_us.saturating_add(clock_steps::offset_us())
    }
}

/// A clock that a test sets. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `now_ms`.
    pub fn at(now_ms: i64) -> Self {
        Self(Arc::new(AtomicI64::new(now_ms)))
    }

    /// Sets the time.
    pub fn set(&self, now_ms: i64) {
        self.0.store(now_ms, Ordering::SeqCst);
    }

    /// Advances the time.
    pub fn advance(&self, by_ms: i64) {
        self.0.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}
