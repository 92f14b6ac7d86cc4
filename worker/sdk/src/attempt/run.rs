//! The task of one attempt.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use cueline_model::Outcome;
use cueline_protocol::Holding;
use futures_util::FutureExt as _;
use tokio::time::timeout;

use super::log::AttemptLog;
use super::outcome::{End, outcome_of};
use super::watch::Watch;
use crate::context::{Context, StopReason};
use crate::handler::Handler;
use crate::outbox::Report;

/// A handler that was told to stop has its kill grace and this long before its future is dropped: handlers of
/// processes need it for the final stop.
const BEYOND_GRACE: Duration = Duration::from_secs(2);

/// An attempt that is to be made.
pub(crate) struct Attempt {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) cx: Context,
    pub(crate) log: Arc<AttemptLog>,
    pub(crate) watch: Arc<Watch>,
}

/// An attempt that was made.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) id: Holding,
    pub(crate) outcome: Outcome,
    /// Log lines to report before the outcome.
    pub(crate) rest: Vec<Report>,
}

impl Attempt {
    /// Makes it.
    pub(crate) async fn make(self) -> Ended {
        let end = self.run_handler().await;
        let outcome = outcome_of(end, self.cx.stop_reason(), &self.log);
        Ended {
            id: self.log.id(),
            outcome,
            rest: self.log.close(),
        }
    }

    async fn run_handler(&self) -> End {
        // Within the future, so that a panic before the first await is caught as well.
        let work = AssertUnwindSafe(async { self.handler.run(self.cx.clone()).await })
            .catch_unwind()
            .map(|result| match result {
                Ok(returned) => End::Returned(returned),
                Err(payload) => End::Panicked(payload),
            });
        tokio::pin!(work);
        // Many handlers end at the first go: they cost no timer and are not watched.
        if let Poll::Ready(end) = futures_util::poll!(work.as_mut()) {
            return end;
        }
        self.watch.add(Arc::clone(&self.log));
        self.outlive(work).await
    }

    async fn outlive(&self, mut work: Pin<&mut impl Future<Output = End>>) -> End {
        let facts = self.cx.facts();
        let limit = async {
            match facts.timeout {
                Some(limit) => tokio::time::sleep(Duration::from_millis(limit.as_millis())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            end = work.as_mut() => return end,
            _ = self.cx.stopped() => {}
            () = limit => self.cx.stop(StopReason::TimedOut),
        }
        let grace =
            Duration::from_millis(facts.kill_grace.as_millis()).saturating_add(BEYOND_GRACE);
        timeout(grace, work).await.unwrap_or(End::Dropped)
    }
}
