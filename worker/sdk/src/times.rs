//! How long the steps of attempts take in this worker, for metrics.

use cueline_model::{Outcome, RunKind, Timestamp};
use cueline_protocol::Trigger;
use cueline_runtime::time_histogram::{DELAY_BOUNDS_MS, DURATION_BOUNDS_MS};
use cueline_runtime::{TimeCounts, TimeHistogram};
use tokio::time::Instant;

/// Histograms since the start of the worker.
#[derive(Debug)]
pub(crate) struct AttemptTimes {
    start_lateness: TimeHistogram,
    start_wait: TimeHistogram,
    duration: TimeHistogram,
}

/// How long the steps of attempts took since the start of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerTimes {
    /// From the fire time of a scheduled run to the start of its first attempt, by the worker's clock.
    pub start_lateness: TimeCounts,
    /// From the arrival of a trigger to the start of its attempt. Attempts that never start are left out.
    pub start_wait: TimeCounts,
    /// From the start to the end of an attempt.
    pub duration: TimeCounts,
}

impl Default for AttemptTimes {
    fn default() -> Self {
        Self {
            start_lateness: TimeHistogram::new(DELAY_BOUNDS_MS),
            start_wait: TimeHistogram::new(DELAY_BOUNDS_MS),
            duration: TimeHistogram::new(DURATION_BOUNDS_MS),
        }
    }
}

impl AttemptTimes {
    /// An attempt whose trigger arrived at `fetched_at` starts now.
    pub(crate) fn note_start(&self, trigger: &Trigger, fetched_at: Instant, now: Timestamp) {
        let waited_ms = u64::try_from(fetched_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.start_wait.record([waited_ms]);
        // The due times of other attempts and runs are not in their triggers.
        if trigger.kind == RunKind::Schedule && trigger.attempt == 1 {
            self.start_lateness
                .record([elapsed_ms(trigger.fire_at, now)]);
        }
    }

    /// An attempt has ended. One that never started has no duration.
    pub(crate) fn note_end(&self, outcome: &Outcome) {
        let duration = outcome
            .started_at
            .map(|started_at| elapsed_ms(started_at, outcome.ended_at));
        self.duration.record(duration);
    }

    pub(crate) fn counts(&self) -> WorkerTimes {
        WorkerTimes {
            start_lateness: self.start_lateness.counts(),
            start_wait: self.start_wait.counts(),
            duration: self.duration.counts(),
        }
    }
}

/// The time between two instants in milliseconds; 0 if the clock was set back meanwhile.
fn elapsed_ms(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.since_ms(from)).unwrap_or(0)
}
