//! The task of one attempt.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use cueline_model::{Fence, Outcome, OutcomeKind};
use futures_util::FutureExt as _;
use tokio::time::timeout;

use super::log::AttemptLog;
use super::outcome::{HandlerEnd, outcome_of};
use super::ticker::AttemptTicker;
use crate::context::{Context, StopReason};
use crate::handler::Handler;
use crate::identity::AttemptKey;
use crate::lease::BrokerLease;
use crate::report::Report;

/// A handler that was asked to stop is dropped this long after its kill grace. Handlers that run processes need this
/// time to kill them.
const BEYOND_GRACE: Duration = Duration::from_secs(2);

/// An attempt that is about to start.
pub(crate) struct Attempt {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) cx: Context,
    pub(crate) log: Arc<AttemptLog>,
    pub(crate) ticker: Arc<AttemptTicker>,
    pub(crate) lease: Arc<BrokerLease>,
}

/// An attempt that has ended.
#[derive(Debug)]
pub(crate) struct EndedAttempt {
    pub(crate) key: AttemptKey,
    pub(crate) outcome: Outcome,
    /// Log lines to report before the outcome.
    pub(crate) reports: Vec<Report>,
}

impl Attempt {
    /// Runs the handler to its end.
    pub(crate) async fn run(self) -> EndedAttempt {
        let outcome = if let Some(outcome) = self.unstarted() {
            outcome
        } else {
            let end = self.run_handler().await;
            outcome_of(end, self.cx.stop_reason(), &self.log, &self.lease)
        };
        EndedAttempt {
            key: self.log.key(),
            outcome,
            reports: self.log.close(),
        }
    }

    /// The outcome of an attempt whose handler must not run any more. The process may have been paused since the event
    /// loop decided to start it, and an order may have come in that time.
    fn unstarted(&self) -> Option<Outcome> {
        let reason = self.cx.stop_reason();
        let is_fenced = self.lease.is_fenced() || reason == Some(StopReason::Fenced);
        let (kind, why) = if is_fenced {
            (OutcomeKind::Returned, self.lease.fence_reason())
        } else {
            let (kind, why) = match reason? {
                StopReason::Cancelled => (OutcomeKind::Cancelled, "it was cancelled"),
                StopReason::Covered => (OutcomeKind::Covered, "a newer run replaced it"),
                StopReason::Drained | StopReason::Fenced | StopReason::TimedOut => {
                    (OutcomeKind::Returned, "the executor stopped")
                }
            };
            (kind, format!("{why} before it started"))
        };
        Some(Outcome::new(kind, self.log.now()).because(why))
    }

    async fn run_handler(&self) -> HandlerEnd {
        // `run` is called inside the future, so that a panic before the first await is caught as well.
        let work = AssertUnwindSafe(async { self.handler.run(self.cx.clone()).await })
            .catch_unwind()
            .map(|result| match result {
                Ok(returned) => HandlerEnd::Returned(returned),
                Err(payload) => HandlerEnd::Panicked(payload),
            });
        tokio::pin!(work);
        // Many handlers return at the first poll. They need no timer and no ticks.
        if let Poll::Ready(end) = futures_util::poll!(work.as_mut()) {
            return end;
        }
        self.ticker.add(Arc::clone(&self.log));
        self.supervise(work).await
    }

    /// Waits for the end of the handler. Asks it to stop when that is due, and drops it if it does not stop in time.
    async fn supervise(&self, mut work: Pin<&mut impl Future<Output = HandlerEnd>>) -> HandlerEnd {
        let info = self.cx.info();
        let time_limit = async {
            match info.timeout {
                Some(limit) => tokio::time::sleep(Duration::from_millis(limit.as_millis())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            end = work.as_mut() => return end,
            _ = self.cx.stopped() => {}
            () = self.fenced() => self.cx.stop_fenced(),
            () = time_limit => self.cx.stop(StopReason::TimedOut),
        }
        let grace = Duration::from_millis(info.kill_grace.as_millis()).saturating_add(BEYOND_GRACE);
        // The failover does not wait for a kill grace, so a fenced attempt may have less time.
        tokio::select! {
            biased;
            end = timeout(grace, work) => end.unwrap_or(HandlerEnd::Dropped),
            () = self.must_end() => HandlerEnd::Dropped,
        }
    }

    /// Returns when the worker is fenced, unless the job ignores that.
    async fn fenced(&self) {
        match self.cx.info().fence {
            Fence::Stop => self.lease.fenced().await,
            Fence::Keep => std::future::pending().await,
        }
    }

    /// Returns when a fenced attempt must have ended, unless the job ignores that.
    async fn must_end(&self) {
        match self.cx.info().fence {
            Fence::Stop => self.lease.must_end().await,
            Fence::Keep => std::future::pending().await,
        }
    }
}
