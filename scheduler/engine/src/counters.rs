//! Counts since the start of the node.

use std::sync::atomic::{AtomicU64, Ordering};

use cueline_model::RunState;
use cueline_store::admin::SinceStart;
use cueline_store::{IngestSummary, SchedulerCounts};

use crate::times::{Times, distribution};

/// For operators, except for `ingested_messages`: failover and reconcile use it to measure the progress of ingest.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) published: AtomicU64,
    pub(crate) reconciled: AtomicU64,
    pub(crate) failovers: AtomicU64,
    pub(crate) failed_over: AtomicU64,
    pub(crate) forged_reports: AtomicU64,
    pub(crate) forged_heartbeats: AtomicU64,
    pub(crate) forged_answers: AtomicU64,
    pub(crate) forged_letters: AtomicU64,
    pub(crate) foreign_reports: AtomicU64,
    /// Messages of the results queue that this node has ingested.
    pub(crate) ingested_messages: AtomicU64,
    /// Messages of the results queue that the broker may have delivered before.
    pub(crate) redelivered_messages: AtomicU64,
    /// Runs that were written for fire times.
    pub(crate) fires: AtomicU64,
    /// Runs that the claim stage has claimed, those of fire times included.
    pub(crate) claimed_runs: AtomicU64,
    pub(crate) stored_heartbeats: AtomicU64,
    /// Dead letters that were handed to the store, repeated ones included.
    pub(crate) dead_letters: AtomicU64,
    /// Reports that this node has applied and by which attempts have started or ended.
    left_queue: AtomicU64,
    /// Runs that the node may fire before others start or end.
    room_for_fires: AtomicU64,
    pub(crate) times: Times,
    /// Runs that ended by reports which this node has applied, in the order of [`RunState::ALL`].
    ended: [AtomicU64; RunState::ALL.len()],
}

impl Counters {
    /// Counts the runs and the attempts that these reports have ended.
    pub(crate) fn note_ended(&self, ingested: &IngestSummary) {
        let attempts = ingested.ended + ingested.rescheduled;
        add(&self.left_queue, attempts);
        for (counter, state) in self.ended.iter().zip(RunState::ALL) {
            if let Some(count) = ingested.ended_in.get(&state) {
                add(counter, *count);
            }
        }
    }

    /// Long attempts have started.
    pub(crate) fn note_started(&self, attempts: usize) {
        add(&self.left_queue, attempts);
    }

    pub(crate) fn left_queue(&self) -> u64 {
        self.left_queue.load(Ordering::Relaxed)
    }

    pub(crate) fn set_room_for_fires(&self, runs: usize) {
        self.room_for_fires.store(runs as u64, Ordering::Relaxed);
    }

    /// Without what the node holds now.
    pub(crate) fn scheduler_counts(&self) -> SchedulerCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ended = RunState::ALL.into_iter().zip(self.ended.iter().map(read));
        SchedulerCounts {
            fires: read(&self.fires),
            claimed_runs: read(&self.claimed_runs),
            ingested_messages: read(&self.ingested_messages),
            redelivered_messages: read(&self.redelivered_messages),
            stored_heartbeats: read(&self.stored_heartbeats),
            dead_letters: read(&self.dead_letters),
            room_for_fires: read(&self.room_for_fires),
            ended: ended.filter(|(state, _)| state.is_terminal()).collect(),
            dispatch_lateness: distribution(&self.times.dispatch_lateness),
            trigger_lateness: distribution(&self.times.trigger_lateness),
            attempt_duration: distribution(&self.times.attempt_duration),
            report_delay: distribution(&self.times.report_delay),
            ..SchedulerCounts::default()
        }
    }

    pub(crate) fn since_start(&self) -> SinceStart {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SinceStart {
            published: read(&self.published),
            reconciled: read(&self.reconciled),
            failovers: read(&self.failovers),
            failed_over: read(&self.failed_over),
            forged_reports: read(&self.forged_reports),
            forged_heartbeats: read(&self.forged_heartbeats),
            forged_answers: read(&self.forged_answers),
            forged_letters: read(&self.forged_letters),
            foreign_reports: read(&self.foreign_reports),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
