//! Periodic duties.
//!
//! A duty is an idempotent `activate()` without input. It reads the current state, does what is due, and says when to
//! run again. Its timer or an [`Activator`] wakes it; unnecessary wakes do no harm.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backoff::Backoff;
use crate::lifecycle::Stop;

/// Wakes a duty. Cheap to clone. A wake during an activation causes one more activation.
#[derive(Debug, Clone, Default)]
pub struct Activator(Arc<Notify>);

impl Activator {
    /// Makes an activator that was not woken yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the duty.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Returns once the duty was woken since the last return.
    pub async fn woken(&self) {
        self.0.notified().await;
    }
}

/// When a duty runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At once, because one activation could not do all the work.
    Now,
    /// After this time, or earlier if woken.
    After(Duration),
}

/// Work that is repeated periodically.
pub trait Duty: Send + 'static {
    /// The error of a failed activation.
    type Error: std::fmt::Display + Send;

    /// The name for logs.
    fn name(&self) -> &'static str;

    /// Reads the current state and does what is due.
    fn activate(&mut self) -> impl Future<Output = Result<Next, Self::Error>> + Send;
}

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Activates `duty` until `stop` is soft. A failure is logged and retried with a growing wait; it never ends the duty.
pub async fn run<D: Duty>(mut duty: D, activator: Activator, stop: Stop) {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    while !stop.is_soft() {
        let wait = match duty.activate().await {
            Ok(Next::Now) => {
                backoff.reset();
                tokio::task::yield_now().await;
                continue;
            }
            Ok(Next::After(wait)) => {
                backoff.reset();
                wait
            }
            Err(e) => {
                let wait = backoff.next_wait();
                tracing::error!(duty = duty.name(), error = %e, wait_ms = wait.as_millis(), "duty failed; trying again");
                // A wake does not shorten this wait: the sender of the wake may be what fails.
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = stop.soft() => {}
                }
                continue;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = activator.woken() => {}
            () = stop.soft() => {}
        }
    }
}
