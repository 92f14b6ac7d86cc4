//! How long a batch waits for more entries.
//!
//! A disk sync, a commit and a publish cost the same for one entry and for hundreds. What is not urgent therefore
//! waits a moment, so that a burst needs few of them.

use std::time::Duration;

/// A batch with fewer than `max_items` entries waits up to `max_wait` for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linger {
    /// A batch of this size does not wait.
    pub max_items: usize,
    /// The longest wait.
    pub max_wait: Duration,
}

impl Linger {
    /// A rule for a batch.
    pub const fn new(max_items: usize, max_wait: Duration) -> Self {
        Self {
            max_items,
            max_wait,
        }
    }

    /// Whether a batch of this size is sent without waiting.
    pub const fn is_full(&self, items: usize) -> bool {
        items >= self.max_items
    }

    /// Pauses after a batch that was not full. The first entry of the next batch waits at most `max_wait`; a lone
    /// entry does not wait at all.
    pub async fn pause_after(&self, items: usize) {
        if !self.is_full(items) {
            tokio::time::sleep(self.max_wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_batch_that_is_not_full_is_followed_by_a_pause() {
        let linger = Linger::new(10, Duration::from_millis(5));
        let start = Instant::now();
        linger.pause_after(10).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        linger.pause_after(9).await;
        assert_eq!(start.elapsed(), linger.max_wait);
    }
}
