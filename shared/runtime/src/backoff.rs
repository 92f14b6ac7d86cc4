//! Growing waits between tries.

use std::time::Duration;

/// Waits that double from `first` to `most`.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Makes waits that start at `first` and double each time, up to `most`.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (self.next * 2).min(self.most);
        wait
    }

    /// Call this after a success. The next failure starts from the first wait again.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}
