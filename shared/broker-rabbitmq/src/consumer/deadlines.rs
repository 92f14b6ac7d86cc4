//! Requeues overdue deliveries, and stops consuming a queue without fetches.

use std::sync::Arc;

use cueline_broker::BrokerError;
use tokio::time::{Instant, sleep_until};

use super::{Consumer, Session, State};

/// Runs until the queue is deleted or the driver ends.
pub(super) async fn watch(consumer: Arc<Consumer>) {
    let (deleted, stop) = (consumer.deleted.clone(), consumer.context.stop.clone());
    loop {
        tokio::select! {
            () = sleep_until(consumer.next_wakeup()) => {}
            () = consumer.deadline_moved.notified() => continue,
            () = deleted.cancelled() => return,
            () = stop.cancelled() => return,
        }
        consumer.requeue_overdue();
        consumer.pause_if_idle().await;
    }
}

impl Consumer {
    fn next_wakeup(&self) -> Instant {
        let now = Instant::now();
        let idle_after = self.context.options.idle_after;
        let state = self.lock();
        let idle_at = state.last_fetch + idle_after;
        let idle_check = if state.active_fetches == 0 && idle_at > now {
            idle_at
        } else {
            now + idle_after
        };
        let deadline = state.session.as_ref().and_then(Session::next_deadline);
        deadline.map_or(idle_check, |deadline| deadline.min(idle_check))
    }

    fn requeue_overdue(&self) {
        let requeued = self.with_session(|session| session.requeue_overdue(Instant::now()));
        if let Some(Err(e)) = requeued {
            // The channel has ended, so the server requeues everything by itself.
            tracing::debug!(queue = %self.queue, error = %e.error, "failed to requeue overdue deliveries");
        }
    }

    /// Stops consuming a queue without fetches, once nothing of it is unsettled. Closing the channel returns buffered
    /// messages to the queue. This takes at most an ack wait, or the longest delay of a retry, after the last fetch.
    async fn pause_if_idle(&self) {
        let _alone = self.subscribing.lock().await;
        let mut state = self.lock();
        let idle_at = state.last_fetch + self.context.options.idle_after;
        if state.active_fetches > 0 || Instant::now() < idle_at {
            return;
        }
        let paused = take_settled(&mut state);
        drop(state);
        self.close_in_background(paused);
    }

    /// Stops consuming now. Returns `false` if deliveries are unsettled.
    pub(crate) async fn pause(&self) -> Result<bool, BrokerError> {
        let _alone = self.subscribing.lock().await;
        let paused = take_settled(&mut self.lock());
        if let Some(session) = paused {
            session.close().await?;
        }
        Ok(self.counts() == (0, 0))
    }
}

/// Takes the session if it has no unsettled deliveries.
fn take_settled(state: &mut State) -> Option<Session> {
    state.session.take_if(|session| session.unsettled() == 0)
}
