//! Whoever is in no hurry lets a crowd pass that is.
//!
//! What is due at the same instant should start at once; that it was published, taken and ended can be written down a moment later. Both want the same
//! processor and the same disk.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// So many at once are a crowd.
const CROWD: usize = 64;
/// When nothing has come for so long, it has passed.
const LULL: Duration = Duration::from_millis(10);
/// With so many it is a large one,
const LARGE: usize = 1_000;
/// and passes in large batches: each of them takes a while on a machine that is busy with it.
const LULL_IN_A_LARGE_ONE: Duration = Duration::from_millis(100);
/// Nobody waits any more when it has gone on for so long: then it is not a crowd, but the load.
const LONGEST: Duration = Duration::from_millis(400);
/// What comes after so long is another one.
const ANOTHER: Duration = Duration::from_millis(200);

/// Tells whether a crowd is passing.
#[derive(Debug, Default)]
pub struct Rush(Mutex<Option<Span>>);

#[derive(Debug, Clone, Copy)]
struct Span {
    first: Instant,
    last: Instant,
    count: usize,
}

impl Rush {
    /// So many have come at once.
    pub fn came(&self, count: usize) {
        if count < CROWD {
            return;
        }
        let now = Instant::now();
        let mut span = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, before) = match *span {
            Some(span) if now < span.last + ANOTHER => (span.first, span.count),
            _ => (now, 0),
        };
        *span = Some(Span {
            first,
            last: now,
            count: before + count,
        });
    }

    /// Returns when no crowd is passing, after [`LONGEST`] at the latest.
    pub async fn pass(&self) {
        let give_up = Instant::now() + LONGEST;
        while let Some(lull) = self.lull() {
            if lull.min(give_up) <= Instant::now() {
                return;
            }
            sleep_until(lull.min(give_up)).await;
        }
    }

    /// A crowd is passing.
    pub fn is_on(&self) -> bool {
        self.lull().is_some_and(|lull| Instant::now() < lull)
    }

    /// When it will have passed if no more come.
    fn lull(&self) -> Option<Instant> {
        let span = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let lull = if span.count < LARGE {
            LULL
        } else {
            LULL_IN_A_LARGE_ONE
        };
        Some((span.last + lull).min(span.first + LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    async fn waits(rush: &Rush) -> Duration {
        let start = Instant::now();
        rush.pass().await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_let_pass_and_a_load_is_not() {
        let rush = Rush::default();
        assert_eq!(waits(&rush).await, Duration::ZERO);
        rush.came(CROWD - 1);
        assert_eq!(waits(&rush).await, Duration::ZERO, "they are few");
        rush.came(CROWD);
        let waited = waits(&rush).await;
        assert!((LULL..LULL * 2).contains(&waited), "{waited:?}");

        advance(ANOTHER).await;
        for _ in 0..100 {
            rush.came(CROWD);
            advance(LULL / 2).await;
        }
        assert_eq!(waits(&rush).await, Duration::ZERO, "it goes on and on");
        advance(ANOTHER).await;
        rush.came(CROWD);
        assert!(waits(&rush).await >= LULL, "another one");

        advance(ANOTHER).await;
        rush.came(LARGE);
        let waited = waits(&rush).await;
        assert!(waited >= LULL_IN_A_LARGE_ONE, "a large one: {waited:?}");
    }
}
