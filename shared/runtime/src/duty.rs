//! Periodic duties.
//!
//! A duty is an idempotent `activate()` without input: it looks at the state of the world, does what is due, and says
//! when it wants to look again. It is woken by its timer or by an [`Activator`]; being woken too often does no harm.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backoff::Backoff;
use crate::lifecycle::Stop;

/// Wakes a duty. Cheap to clone; a wake while the duty is at work makes it look once more.
#[derive(Debug, Clone, Default)]
pub struct Activator(Arc<Notify>);

impl Activator {
    /// An activator that was not woken yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the duty.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Returns when it has been woken since the last return.
    pub async fn woken(&self) {
        self.0.notified().await;
    }
}

/// When a duty wants to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At once: there was more than one activation may take.
    Now,
    /// After this long, unless woken before.
    After(Duration),
}

/// Something that is done again and again.
pub trait Duty: Send + 'static {
    /// What is reported when it fails.
    type Error: std::fmt::Display + Send;

    /// Its name, for logs.
    fn name(&self) -> &'static str;

    /// Looks, and does what is due.
    fn activate(&mut self) -> impl Future<Output = Result<Next, Self::Error>> + Send;
}

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Activates `duty` until `stop` is asked to stop softly. A failure is logged and tried again with a growing wait; it never ends
/// the duty.
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
                // Not to be woken early out of a failure: what wakes it may be what fails.
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
