//! Decides when to leave a server at which `JetStream` does not answer. No I/O.
//!
//! A server that a cut network parts from the others of its cluster keeps its clients and answers their pings, so
//! async-nats stays with it. Its `JetStream` has no majority: it stores nothing and leads nothing.

use std::time::Duration;

use tokio::time::Instant;

/// `JetStream` may be silent for this long. It is longer than an election (4 to 9 s), because no server is better then.
const PATIENCE: Duration = Duration::from_secs(10);
/// The patience if a connection leads to the server that was left before it.
const SAME_SERVER: Duration = Duration::from_secs(1);
/// The patience doubles with each connection that is given up, up to this. Perhaps no server has a majority, or the
/// stream that is asked for has lost its own.
const MAX_PATIENCE: Duration = Duration::from_mins(5);

/// What a request asks for. A leader without a majority may answer questions and store nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// The API, about streams and consumers.
    Api,
    /// A stream or a consumer, to store a message or an ack.
    ToStore,
}

/// A connection to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// How many connections were made before it.
    pub(crate) connects: u64,
    pub(crate) server_id: String,
}

#[derive(Debug, Default)]
pub(crate) struct Silence {
    connects: u64,
    api: Option<Unanswered>,
    to_store: Option<Unanswered>,
    /// The connection that was given up last, until `JetStream` stores something.
    left: Option<Place>,
    /// Connections that were given up since then.
    left_count: u32,
}

/// Requests that got no answer, with none to another one in between.
#[derive(Debug, Clone, Copy)]
struct Unanswered {
    first_sent: Instant,
    last_failed: Instant,
}

impl Silence {
    pub(crate) fn answered(&mut self, asks: Asks) {
        self.api = None;
        if asks == Asks::ToStore {
            (self.to_store, self.left, self.left_count) = (None, None, 0);
        }
    }

    /// Records a request without an answer. Returns how long `JetStream` has been silent if the connection is to be
    /// given up, once for each connection.
    pub(crate) fn unanswered(
        &mut self,
        asks: Asks,
        sent_at: Instant,
        now: Instant,
        at: Place,
    ) -> Option<Duration> {
        let left = self.left.as_ref();
        if left.is_some_and(|left| left.connects == at.connects) {
            return None;
        }
        if self.connects != at.connects {
            (self.api, self.to_store) = (None, None);
            self.connects = at.connects;
        }
        let is_same_server = left.is_some_and(|left| left.server_id == at.server_id);
        let unanswered = match asks {
            Asks::Api => &mut self.api,
            Asks::ToStore => &mut self.to_store,
        };
        // Two requests far apart say nothing about the time between them.
        let first_sent = unanswered
            .filter(|before| sent_at.saturating_duration_since(before.last_failed) < PATIENCE)
            .map_or(sent_at, |before| before.first_sent);
        *unanswered = Some(Unanswered {
            first_sent,
            last_failed: now,
        });
        let patience = if is_same_server {
            SAME_SERVER
        } else {
            PATIENCE
        };
        let doubled = patience.saturating_mul(2_u32.saturating_pow(self.left_count));
        let silent = now.saturating_duration_since(first_sent);
        if silent < doubled.min(MAX_PATIENCE) {
            return None;
        }
        self.left = Some(at);
        self.left_count = self.left_count.saturating_add(1);
        Some(silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock {
        silence: Silence,
        start: Instant,
    }

    impl Clock {
        fn new() -> Self {
            let (silence, start) = (Silence::default(), Instant::now());
            Self { silence, start }
        }

        /// Requests without an answer, one after the other, during these seconds on a connection to a server. Whether
        /// the connection is given up at the last one, and not before.
        fn fail(&mut self, asks: Asks, seconds: [u64; 2], connects: u64, server: &str) -> bool {
            let [first, last] = seconds;
            let left: Vec<u64> = (first..last)
                .filter(|sent_at| self.fails(asks, *sent_at, connects, server))
                .collect();
            assert!(left.iter().all(|sent_at| sent_at + 1 == last), "{left:?}");
            !left.is_empty()
        }

        /// A request without an answer that is given up after a second.
        fn fails(&mut self, asks: Asks, sent_at: u64, connects: u64, server: &str) -> bool {
            let [sent_at, now] =
                [sent_at, sent_at + 1].map(|s| self.start + Duration::from_secs(s));
            let at = Place {
                connects,
                server_id: server.to_owned(),
            };
            self.silence.unanswered(asks, sent_at, now, at).is_some()
        }
    }

    #[test]
    fn a_server_is_left_once_after_ten_seconds_without_an_answer() {
        let mut clock = Clock::new();
        assert!(!clock.fail(Asks::ToStore, [0, 9], 1, "a"));
        assert!(clock.fail(Asks::ToStore, [9, 10], 1, "a"));
        assert!(!clock.fail(Asks::ToStore, [10, 60], 1, "a"));
    }

    #[test]
    fn an_answer_to_a_question_does_not_prove_that_anything_is_stored() {
        for (answered, is_left) in [(Asks::Api, true), (Asks::ToStore, false)] {
            let mut clock = Clock::new();
            assert!(!clock.fail(Asks::ToStore, [0, 9], 1, "a"));
            clock.silence.answered(answered);
            assert_eq!(clock.fail(Asks::ToStore, [9, 10], 1, "a"), is_left);
        }
        let mut clock = Clock::new();
        assert!(!clock.fail(Asks::Api, [0, 9], 1, "a"));
        clock.silence.answered(Asks::ToStore);
        assert!(!clock.fail(Asks::Api, [9, 10], 1, "a"));
    }

    #[test]
    fn requests_far_apart_are_no_silence() {
        let mut clock = Clock::new();
        assert!(!clock.fails(Asks::Api, 0, 1, "a"));
        assert!(!clock.fails(Asks::Api, 3_600, 1, "a"));
        assert!(clock.fail(Asks::Api, [3_601, 3_610], 1, "a"));
    }

    #[test]
    fn a_new_connection_begins_anew_and_is_given_up_earlier_at_the_server_that_was_left() {
        let mut clock = Clock::new();
        assert!(!clock.fail(Asks::Api, [0, 9], 1, "a"));
        assert!(clock.fail(Asks::Api, [9, 19], 2, "b"));
        assert!(clock.fail(Asks::Api, [19, 21], 3, "b"), "it came back");
        assert!(clock.fail(Asks::Api, [21, 25], 4, "b"));
        assert!(!clock.fail(Asks::Api, [25, 40], 5, "a"));
    }

    #[test]
    fn the_patience_doubles_until_something_is_stored() {
        let mut clock = Clock::new();
        assert!(clock.fail(Asks::Api, [0, 10], 1, "a"));
        assert!(clock.fail(Asks::Api, [10, 30], 2, "b"));
        assert!(clock.fail(Asks::Api, [30, 70], 3, "a"));
        for (connects, server) in (4..).zip(["b", "a", "b", "a"]) {
            let left = (0..300).filter(|s| clock.fails(Asks::Api, *s, connects, server));
            assert_eq!(left.count(), 1, "{connects}");
        }
        assert!(clock.fail(Asks::Api, [0, 300], 9, "c"), "at most 5 min");
        clock.silence.answered(Asks::Api);
        assert!(
            !clock.fail(Asks::Api, [0, 10], 10, "a"),
            "nothing is stored"
        );
        clock.silence.answered(Asks::ToStore);
        assert!(clock.fail(Asks::Api, [0, 10], 11, "a"));
    }
}
