//! Waiting for what must come.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How long something is waited for.
#[derive(Debug)]
pub struct Patience {
    end: Instant,
}

const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Patience {
    /// For so long from now on.
    pub fn of(within: Duration) -> Self {
        Self {
            end: Instant::now() + within,
        }
    }

    /// Waits a moment. False when there is no patience left.
    pub async fn pause(&self) -> bool {
        let left = Instant::now() <= self.end;
        if left {
            sleep(LOOK_EVERY).await;
        }
        left
    }
}

/// Looks again and again until `look` has found something; fails when it has not within the time.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let patience = Patience::of(within);
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if !patience.pause().await {
            bail!("not within {within:?}: {what}");
        }
    }
}
