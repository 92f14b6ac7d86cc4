//! The task of one attempt.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use cueline_model::{Outcome, OutcomeKind};
use futures_util::FutureExt as _;
use tokio::time::timeout;

use super::log::AttemptLog;
use super::outcome::{End, outcome_of};
use super::watch::Watch;
use crate::contact::{Contact, Obeyed};
use crate::context::{Context, StopReason};
use crate::handler::Handler;
use crate::outbox::Report;
use crate::stores::AttemptKey;

/// A handler that was told to stop has its kill grace and this long before its future is dropped: handlers of
/// processes need it for the final stop.
const BEYOND_GRACE: Duration = Duration::from_secs(2);

/// An attempt that is to be made.
pub(crate) struct Attempt {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) cx: Context,
    pub(crate) log: Arc<AttemptLog>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) contact: Arc<Contact>,
    /// It goes on without contact.
    pub(crate) keep: bool,
}

/// An attempt that was made.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) id: AttemptKey,
    pub(crate) outcome: Outcome,
    /// Log lines to report before the outcome.
    pub(crate) rest: Vec<Report>,
}

impl Attempt {
    /// Makes it.
    pub(crate) async fn make(self) -> Ended {
        // The process may have been paused since the start was decided on.
        let outcome =
            if self.contact.is_fenced() || self.cx.stop_reason() == Some(StopReason::Fenced) {
                Outcome::new(OutcomeKind::Returned, self.log.now()).because(self.contact.why())
            } else {
                let end = self.run_handler().await;
                outcome_of(end, self.cx.stop_reason(), &self.log, &self.contact)
            };
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
            () = self.fenced() => self.cx.stop_fenced(&self.contact),
            () = limit => self.cx.stop(StopReason::TimedOut),
        }
        let grace =
            Duration::from_millis(facts.kill_grace.as_millis()).saturating_add(BEYOND_GRACE);
        tokio::select! {
            biased;
            end = timeout(grace, work) => end.unwrap_or(End::Dropped),
            () = self.dead_by() => End::Dropped,
        }
    }

    /// Returns when the attempt has to stop for want of contact.
    async fn fenced(&self) {
        if self.keep {
            return std::future::pending().await;
        }
        self.contact.turned(Obeyed::Not).await;
    }

    /// Returns when it has to have ended for want of contact.
    async fn dead_by(&self) {
        if self.keep {
            return std::future::pending().await;
        }
        self.contact.dead_by().await;
    }
}
