//! The state of the event loop.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::Timestamp;
use cueline_runtime::Stop;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::decisions::StartableAttempt;
use super::early_cancels::EarlyCancels;
use super::queue_position::QueuePosition;
use super::resend_backoff::ResendBackoff;
use crate::attempt::{AttemptTicker, EndedAttempt};
use crate::context::Context;
use crate::identity::AttemptKey;
use crate::journal::Journal;
use crate::lanes::Lanes;
use crate::lease::{BrokerLease, FenceStage};
use crate::report::ReportQueue;
use crate::settings::Settings;
use crate::settle::Settlements;
use crate::starts::StartQueue;
use crate::status::WorkerStatus;

/// Services and channels that the event loop shares with other tasks.
pub(crate) struct Services {
    pub(crate) settings: Arc<Settings>,
    pub(crate) lease: Arc<BrokerLease>,
    pub(crate) status: Arc<WorkerStatus>,
    pub(crate) reports: Arc<ReportQueue>,
    /// `None` if the schedulers run in this process. They end with the worker, so the log would have no reader.
    pub(crate) starts: Option<Arc<StartQueue>>,
    pub(crate) ticker: Arc<AttemptTicker>,
    pub(crate) settlements: mpsc::Sender<Settlements>,
    pub(crate) ended: mpsc::Sender<EndedAttempt>,
    pub(crate) stop: Stop,
}

/// The event loop.
pub(crate) struct EventLoop {
    pub(super) services: Services,
    pub(super) journal: Journal,
    pub(super) lanes: Lanes,
    /// Accepted, and not started yet.
    pub(super) waiting: HashMap<AttemptKey, StartableAttempt>,
    /// Their lanes let them start, and their handlers run once that is recorded.
    pub(super) starting: HashMap<AttemptKey, StartableAttempt>,
    pub(super) running: HashMap<AttemptKey, RunningAttempt>,
    pub(super) early_cancels: EarlyCancels,
    pub(super) resend_backoff: ResendBackoff,
    pub(super) queue_position: QueuePosition,
    /// The order of acceptance of the newest attempt.
    pub(super) last_seq: i64,
    pub(super) draining: bool,
    /// The end of the drain timeout, once a drain has begun.
    pub(crate) drain_ends_at: Option<Instant>,
    pub(super) fence_stage: FenceStage,
    /// As of this turn, the lease is overdue and has not ended.
    pub(super) lease_overdue: bool,
    /// Attempts of `starting` whose start is recorded and that wait for the renewal of an overdue lease.
    pub(super) recorded: Vec<AttemptKey>,
    /// No start could be recorded for so long that everything is returned.
    pub(super) unrecordable: bool,
    /// How many attempts the last turn started.
    pub(super) last_started: usize,
}

/// An attempt whose handler runs. Dropping it drops the handler: after a hard stop no task would journal its end.
pub(super) struct RunningAttempt {
    pub(super) cx: Context,
    pub(super) task: AbortHandle,
}

impl Drop for RunningAttempt {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EventLoop {
    pub(crate) fn new(services: Services, journal: Journal) -> Self {
        Self {
            lanes: Lanes::new(services.settings.concurrency),
            services,
            journal,
            waiting: HashMap::new(),
            starting: HashMap::new(),
            running: HashMap::new(),
            early_cancels: EarlyCancels::default(),
            resend_backoff: ResendBackoff::default(),
            queue_position: QueuePosition::default(),
            last_seq: 0,
            draining: false,
            drain_ends_at: None,
            fence_stage: FenceStage::NotHandled,
            lease_overdue: false,
            recorded: Vec::new(),
            unrecordable: false,
            last_started: 0,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.services.settings.clock.now_ms())
    }
}
