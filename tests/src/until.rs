//! Waiting for what must come.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How long something is waited for. A time in which this process itself stood still does not count: nothing could have come of it.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    last: Instant,
}

/// Between two looks at the most; what is longer was a standstill, or a call that did not answer.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Patience {
    /// For so long from now on.
    pub fn of(within: Duration) -> Self {
        Self {
            left: within,
            last: Instant::now(),
        }
    }

    /// Waits a moment. False when there is no patience left.
    pub async fn pause(&mut self) -> bool {
        let before = !self.left.is_zero();
        let now = Instant::now();
        let passed = now.duration_since(self.last).min(LONGEST_LOOK);
        self.left = self.left.saturating_sub(passed);
        self.last = now;
        if before {
            sleep(LOOK_EVERY).await;
        }
        before
    }
}

/// Looks again and again until `look` has found something; fails when it has not within the time.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut patience = Patience::of(within);
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if !patience.pause().await {
            bail!("not within {within:?}: {what}");
        }
    }
}
