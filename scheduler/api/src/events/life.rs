//! What bounds the life of a stream, and keeps it alive.

use std::future::Future;
use std::time::Duration;

use cueline_runtime::Stop;
use tokio::time::{Instant, sleep_until};

use super::places::Place;

/// Proxies close connections that are silent for longer. A client notices by the silence that its connection is dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// A stream ends after this time. The rights of the caller are checked again when the client comes back.
const LONGEST: Duration = Duration::from_mins(10);

/// The life of one stream.
#[derive(Debug)]
pub(super) struct Life {
    stop: Stop,
    ends_at: Instant,
    heartbeat_at: Instant,
    _place: Place,
}

/// Why a wait was over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Waited<T> {
    News(T),
    /// Nothing was sent for a while.
    Heartbeat,
    /// The stream has to end.
    End,
}

impl Life {
    /// A stream that begins now, at this place among the streams.
    pub(super) fn new(stop: Stop, place: Place) -> Self {
        let now = Instant::now();
        Self {
            stop,
            ends_at: now + LONGEST,
            heartbeat_at: now + HEARTBEAT,
            _place: place,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.is_soft() || Instant::now() >= self.ends_at
    }

    /// Something was sent.
    pub(super) fn sent(&mut self) {
        self.heartbeat_at = Instant::now() + HEARTBEAT;
    }

    /// Waits for news, the next heartbeat, or the end.
    pub(super) async fn wait<T>(&self, news: impl Future<Output = T>) -> Waited<T> {
        tokio::select! {
            biased;
            () = self.stop.soft() => Waited::End,
            () = sleep_until(self.ends_at) => Waited::End,
            news = news => Waited::News(news),
            () = sleep_until(self.heartbeat_at) => Waited::Heartbeat,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::super::places::{Holder, Places};
    use super::*;

    fn life(stop: &Stop) -> Life {
        let place = Places::new(1).take(Holder::AdminToken).expect("a place");
        Life::new(stop.clone(), place)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_has_heartbeats_until_its_time_is_over() {
        let mut life = life(&Stop::new());
        let begun = Instant::now();
        let mut heartbeats = 0;
        while life.wait(pending::<()>()).await == Waited::Heartbeat {
            heartbeats += 1;
            life.sent();
        }
        assert_eq!(heartbeats, 39);
        assert_eq!(begun.elapsed(), LONGEST);
        assert!(life.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_a_stream_before_all_else() {
        let stop = Stop::new();
        let life = life(&stop);
        assert_eq!(life.wait(ready(1)).await, Waited::News(1));
        stop.ask_soft();
        assert_eq!(life.wait(ready(1)).await, Waited::End);
        assert!(life.is_over());
    }
}
