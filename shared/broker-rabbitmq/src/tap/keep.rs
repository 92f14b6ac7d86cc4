//! What has to happen in time: what is not settled is given back, and a queue that nobody fetches from is let go.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use cueline_broker::BrokerError;

use super::{Session, State, Tap};
use crate::error::failed;

/// Until the tap or the driver ends.
pub(super) async fn keep(tap: Arc<Tap>) {
    let (gone, stop) = (tap.gone.clone(), tap.around.stop.clone());
    loop {
        let next = tap.next_time();
        tokio::select! {
            () = sleep_until(next) => {}
            () = tap.timing.notified() => continue,
            () = gone.cancelled() => return,
            () = stop.cancelled() => return,
        }
        tap.give_back_due();
        tap.rest_if_idle().await;
    }
}

impl Tap {
    /// When there may be something to do next.
    fn next_time(&self) -> Instant {
        let state = self.lock();
        let idle_after = self.around.options.idle_after;
        let look_again = Instant::now() + idle_after;
        let idle = if state.fetching > 0 {
            look_again
        } else {
            // In the past once it rests already.
            let idle = state.last_fetch + idle_after;
            if idle > Instant::now() {
                idle
            } else {
                look_again
            }
        };
        let due = state.session.as_ref().and_then(Session::next_due);
        due.map_or(idle, |due| due.min(idle))
    }

    fn give_back_due(&self) {
        let given_back = self.with_session(|session| session.give_back_due(Instant::now()));
        if let Some(Err(error)) = given_back {
            // The channel has ended, and the server gives back everything by itself.
            tracing::debug!(queue = %self.queue, %error, "nothing could be given back");
        }
    }

    /// A queue that is not fetched from is let go as soon as nothing of it is handed out: closing the channel gives back what was
    /// sent ahead, and what is still on its way. That is at most the ack wait later, or the longest delay of a retry.
    async fn rest_if_idle(&self) {
        let _one = self.opening.lock().await;
        let mut state = self.lock();
        let idle = state.last_fetch + self.around.options.idle_after <= Instant::now();
        if state.fetching > 0 || !idle {
            return;
        }
        let ended = Self::unless_handed_out(&mut state);
        drop(state);
        self.close_later(ended);
    }

    fn unless_handed_out(state: &mut State) -> Option<Session> {
        let handed_out = state.session.as_ref().is_some_and(|s| s.handed_out() > 0);
        if handed_out {
            None
        } else {
            state.session.take()
        }
    }

    /// The same at once, for a queue that is to be deleted; whether nothing was handed out.
    pub(crate) async fn rest_now(&self) -> Result<bool, BrokerError> {
        let _one = self.opening.lock().await;
        let ended = Self::unless_handed_out(&mut self.lock());
        if let Some(session) = ended {
            session
                .close()
                .await
                .map_err(|e| failed("give back messages", e))?;
        }
        Ok(self.counts() == (0, 0))
    }
}
