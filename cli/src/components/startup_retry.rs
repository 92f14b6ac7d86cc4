//! Retries at the start: stores, brokers and schedulers may be started in any order.

use std::time::Duration;

use cueline_runtime::Backoff;
use tokio::time::Instant;

use crate::adapters::OpenError;

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// When to stop retrying.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartupRetry {
    deadline: Option<Instant>,
}

impl StartupRetry {
    /// Retries for `limit` from now on, or forever.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        // A limit beyond the clock's range means forever.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { deadline }
    }

    /// One attempt, without retries.
    pub(crate) fn none() -> Self {
        Self::new(Some(Duration::ZERO))
    }

    /// Calls until it succeeds, and logs each failure. An error that is not transient is returned at once.
    pub(crate) async fn with<T>(
        &self,
        what: &str,
        mut call: impl AsyncFnMut() -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            let error = match call().await {
                Err(error) if error.is_transient => error,
                done => return done,
            };
            let wait = backoff.next_wait();
            if self
                .deadline
                .is_some_and(|deadline| Instant::now() + wait >= deadline)
            {
                return Err(error);
            }
            tracing::warn!(%error, wait_ms = wait.as_millis(), "{what} is unavailable; retrying");
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(is_transient: bool) -> OpenError {
        OpenError {
            message: "failed".to_owned(),
            is_transient,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn transient_errors_are_retried_and_others_are_returned_at_once() {
        let mut tries = 0;
        let done = StartupRetry::new(None)
            .with("it", async || {
                tries += 1;
                if tries < 20 {
                    Err(error(true))
                } else {
                    Ok(tries)
                }
            })
            .await;
        assert_eq!(done, Ok(20));

        let mut tries = 0;
        let done = StartupRetry::new(None)
            .with("it", async || {
                tries += 1;
                Err::<(), _>(error(false))
            })
            .await;
        assert_eq!((done, tries), (Err(error(false)), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_end_at_the_limit() {
        let begin = Instant::now();
        let mut tries = 0;
        let limit = Duration::from_secs(10);
        let done = StartupRetry::new(Some(limit))
            .with("it", async || {
                tries += 1;
                Err::<(), _>(error(true))
            })
            .await;
        assert!(done.is_err() && tries > 3 && begin.elapsed() <= limit);
        let none = StartupRetry::none();
        let once = none.with("it", async || Err::<(), _>(error(true)));
        assert!(once.await.is_err());
    }
}
