//! Trying again at the start: people start stores, brokers and us in any order.

use std::time::Duration;

use cueline_runtime::Backoff;
use tokio::time::Instant;

use crate::adapters::OpenError;

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How long to try.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartupRetry {
    until: Option<Instant>,
}

impl StartupRetry {
    /// For `limit` from now on, or for ever.
    pub(crate) fn of(limit: Option<Duration>) -> Self {
        // What is beyond the clock's range is for ever.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { until }
    }

    /// Not at all.
    pub(crate) fn none() -> Self {
        Self::of(Some(Duration::ZERO))
    }

    /// Calls until it works, with a line in the log for each failure. What cannot heal fails at once.
    pub(crate) async fn with<T>(
        &self,
        what: &str,
        mut call: impl AsyncFnMut() -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            let unusable = match call().await {
                Err(unusable) if unusable.is_transient => unusable,
                done => return done,
            };
            let wait = backoff.next_wait();
            if self
                .until
                .is_some_and(|until| Instant::now() + wait >= until)
            {
                return Err(unusable);
            }
            tracing::warn!(error = %unusable, wait_ms = wait.as_millis(), "{what} cannot be used yet; trying again");
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unusable(is_transient: bool) -> OpenError {
        OpenError {
            message: "failed".to_owned(),
            is_transient,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again_and_what_may_not_is_not() {
        let mut tries = 0;
        let done = StartupRetry::of(None)
            .with("it", async || {
                tries += 1;
                if tries < 20 {
                    Err(unusable(true))
                } else {
                    Ok(tries)
                }
            })
            .await;
        assert_eq!(done, Ok(20));

        let mut tries = 0;
        let done = StartupRetry::of(None)
            .with("it", async || {
                tries += 1;
                Err::<(), _>(unusable(false))
            })
            .await;
        assert_eq!((done, tries), (Err(unusable(false)), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_its_time_is_up() {
        let begin = Instant::now();
        let mut tries = 0;
        let limit = Duration::from_secs(10);
        let done = StartupRetry::of(Some(limit))
            .with("it", async || {
                tries += 1;
                Err::<(), _>(unusable(true))
            })
            .await;
        assert!(done.is_err() && tries > 3 && begin.elapsed() <= limit);
        let none = StartupRetry::none();
        let once = none.with("it", async || Err::<(), _>(unusable(true)));
        assert!(once.await.is_err());
    }
}
