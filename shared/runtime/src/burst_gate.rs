//! A gate that holds back work of low urgency while a burst of urgent work is under way.
//!
//! Runs that are due at the same instant should start at once. The records of their publication, acceptance and end can
//! be written a moment later. Both kinds of work compete for the same processor and disk.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// This many urgent items within [`WINDOW`] start or extend a burst.
const BURST_ITEMS: usize = 64;
/// A broker may deliver what is due at one instant in many small batches.
const WINDOW: Duration = Duration::from_millis(10);
/// The gate opens when no urgent items have arrived for this long.
const QUIET: Duration = Duration::from_millis(10);
/// A burst of at least this many items is large.
const LARGE_BURST_ITEMS: usize = 1_000;
/// A large burst needs a longer quiet time: it is processed in large batches, and each one takes long on a busy
/// machine.
const QUIET_AFTER_LARGE_BURST: Duration = Duration::from_millis(100);
/// The gate is closed for at most this long. Urgent work that continues is a steady load, not a burst.
const MAX_CLOSED: Duration = Duration::from_millis(400);
/// Items that arrive after a pause of this length start a new burst.
const NEW_BURST_AFTER: Duration = Duration::from_millis(200);

/// Holds back work of low urgency during a burst.
#[derive(Debug, Default)]
pub struct BurstGate(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    burst: Option<Burst>,
    /// The start of the present window, and the items in it that no burst has.
    window: Option<(Instant, usize)>,
}

#[derive(Debug, Clone, Copy)]
struct Burst {
    first: Instant,
    last: Instant,
    items: usize,
}

impl Burst {
    const fn is_large(&self) -> bool {
        self.items >= LARGE_BURST_ITEMS
    }
}

impl BurstGate {
    /// Records that `items` urgent items have arrived. A small number within [`WINDOW`] leaves the gate as it is.
    pub fn record_urgent(&self, items: usize) {
        let now = Instant::now();
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, items) = match recent.window {
            Some((since, before)) if now < since + WINDOW => (since, before + items),
            _ => (now, items),
        };
        if items < BURST_ITEMS {
            recent.window = Some((since, items));
            return;
        }
        recent.window = None;
        let burst = &mut recent.burst;
        let (first, before) = match *burst {
            Some(burst) if now < burst.last + NEW_BURST_AFTER => (burst.first, burst.items),
            _ => (now, 0),
        };
        *burst = Some(Burst {
            first,
            last: now,
            items: before + items,
        });
    }

    /// Returns when no burst is under way, or after 400 ms.
    pub async fn wait_until_open(&self) {
        let give_up_at = Instant::now() + MAX_CLOSED;
        while let Some(opens_at) = self.opens_at() {
            let until = opens_at.min(give_up_at);
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Whether a burst is under way.
    pub fn is_closed(&self) -> bool {
        self.opens_at().is_some_and(|at| Instant::now() < at)
    }

    /// Whether a large burst is under way: its rate counts more than the delay of one item.
    pub fn is_closed_by_large_burst(&self) -> bool {
        self.is_closed() && self.burst().is_some_and(|burst| burst.is_large())
    }

    fn burst(&self) -> Option<Burst> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).burst
    }

    /// When the gate opens if no more urgent items arrive; `None` before the first burst.
    fn opens_at(&self) -> Option<Instant> {
        let burst = self.burst()?;
        let quiet = if burst.is_large() {
            QUIET_AFTER_LARGE_BURST
        } else {
            QUIET
        };
        Some((burst.last + quiet).min(burst.first + MAX_CLOSED))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    async fn waits(gate: &BurstGate) -> Duration {
        let start = Instant::now();
        gate.wait_until_open().await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_closes_the_gate_for_a_while_and_a_lasting_load_does_not() {
        let gate = BurstGate::default();
        assert_eq!(waits(&gate).await, Duration::ZERO);
        gate.record_urgent(BURST_ITEMS - 1);
        assert_eq!(waits(&gate).await, Duration::ZERO, "few items");
        gate.record_urgent(BURST_ITEMS);
        let waited = waits(&gate).await;
        assert!((QUIET..QUIET * 2).contains(&waited), "{waited:?}");

        advance(NEW_BURST_AFTER).await;
        for _ in 0..8 {
            gate.record_urgent(BURST_ITEMS / 8);
            advance(WINDOW / 10).await;
        }
        assert!(gate.is_closed(), "many in small batches");
        assert!(!gate.is_closed_by_large_burst());
        advance(NEW_BURST_AFTER).await;
        for _ in 0..80 {
            gate.record_urgent(BURST_ITEMS / 8);
            assert!(!gate.is_closed(), "an even load");
            advance(WINDOW / 4).await;
        }
        advance(NEW_BURST_AFTER).await;
        for _ in 0..100 {
            gate.record_urgent(BURST_ITEMS);
            advance(QUIET / 2).await;
        }
        assert_eq!(waits(&gate).await, Duration::ZERO, "a lasting load");
        advance(NEW_BURST_AFTER).await;
        gate.record_urgent(BURST_ITEMS);
        assert!(waits(&gate).await >= QUIET, "a new burst");

        advance(NEW_BURST_AFTER).await;
        gate.record_urgent(LARGE_BURST_ITEMS);
        assert!(gate.is_closed_by_large_burst());
        let waited = waits(&gate).await;
        assert!(waited >= QUIET_AFTER_LARGE_BURST, "a large one: {waited:?}");
        assert!(!gate.is_closed_by_large_burst());
    }
}
