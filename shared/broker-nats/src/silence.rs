//! Decides when to leave a server at which `JetStream` does not answer. No I/O.
//!
//! A server that a cut network parts from the others of its cluster keeps its clients and answers their pings, so
//! async-nats stays with it. Its `JetStream` has no majority: it stores nothing and leads nothing.

use std::time::Duration;

use tokio::time::Instant;

/// `JetStream` may be silent for this long. It is longer than an election (4 to 9 s), because no server is better then.
const PATIENCE: Duration = Duration::from_secs(10);
/// The patience doubles with each server that is left, up to this. Perhaps no server has a majority.
const MAX_PATIENCE: Duration = Duration::from_mins(5);
/// The patience if the next connection leads to the server that was just left.
const SAME_SERVER: Duration = Duration::from_secs(1);

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
    /// When the first request was sent that got no answer, with no answer to another one since.
    api: Option<Instant>,
    to_store: Option<Instant>,
    /// The server that was left last, until `JetStream` stores something.
    left: Option<String>,
    /// Servers that were left since then.
    left_count: u32,
}

impl Silence {
    pub(crate) fn answered(&mut self, asks: Asks) {
        *self.since(asks) = None;
        if asks == Asks::ToStore {
            (self.left, self.left_count) = (None, 0);
        }
    }

    /// Records a request without an answer. Returns how long `JetStream` has been silent if the server is to be left.
    pub(crate) fn unanswered(
        &mut self,
        asks: Asks,
        sent_at: Instant,
        now: Instant,
        at: Place,
    ) -> Option<Duration> {
        if self.connects != at.connects {
            (self.api, self.to_store) = (None, None);
            self.connects = at.connects;
        }
        let since = *self.since(asks).get_or_insert(sent_at);
        let silent = now.saturating_duration_since(since);
        let doubled = PATIENCE.saturating_mul(2_u32.saturating_pow(self.left_count));
        let patience = if self.left.as_ref() == Some(&at.server_id) {
            SAME_SERVER
        } else {
            doubled.min(MAX_PATIENCE)
        };
        if silent < patience {
            return None;
        }
        (self.api, self.to_store) = (None, None);
        if self.left.as_ref() != Some(&at.server_id) {
            self.left = Some(at.server_id);
            self.left_count = self.left_count.saturating_add(1);
        }
        Some(silent)
    }

    fn since(&mut self, asks: Asks) -> &mut Option<Instant> {
        match asks {
            Asks::Api => &mut self.api,
            Asks::ToStore => &mut self.to_store,
        }
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

        /// A request without an answer, sent and given up at these seconds, on a connection to a server.
        fn fails(&mut self, asks: Asks, seconds: [u64; 2], connects: u64, server: &str) -> bool {
            let [sent_at, now] = seconds.map(|s| self.start + Duration::from_secs(s));
            let server_id = server.to_owned();
            let at = Place {
                connects,
                server_id,
            };
            let left = self.silence.unanswered(asks, sent_at, now, at);
            left.is_some()
        }
    }

    #[test]
    fn a_server_is_left_after_ten_seconds_without_an_answer() {
        let mut clock = Clock::new();
        assert!(!clock.fails(Asks::ToStore, [0, 5], 1, "a"));
        assert!(!clock.fails(Asks::ToStore, [4, 9], 1, "a"));
        assert!(clock.fails(Asks::ToStore, [5, 10], 1, "a"));
    }

    #[test]
    fn an_answer_to_a_question_does_not_prove_that_anything_is_stored() {
        let mut clock = Clock::new();
        assert!(!clock.fails(Asks::ToStore, [0, 5], 1, "a"));
        clock.silence.answered(Asks::Api);
        assert!(clock.fails(Asks::ToStore, [5, 10], 1, "a"));
        let mut clock = Clock::new();
        assert!(!clock.fails(Asks::ToStore, [0, 5], 1, "a"));
        clock.silence.answered(Asks::ToStore);
        assert!(!clock.fails(Asks::ToStore, [5, 10], 1, "a"));
    }

    #[test]
    fn a_new_connection_begins_anew_and_the_server_that_was_left_gets_one_second() {
        let mut clock = Clock::new();
        assert!(!clock.fails(Asks::Api, [0, 5], 1, "a"));
        assert!(!clock.fails(Asks::Api, [11, 16], 2, "b"));
        assert!(clock.fails(Asks::Api, [16, 21], 2, "b"));
        assert!(clock.fails(Asks::Api, [22, 23], 3, "b"), "it came back");
    }

    #[test]
    fn the_patience_doubles_until_there_is_an_answer() {
        let mut clock = Clock::new();
        assert!(clock.fails(Asks::Api, [0, 10], 1, "a"));
        assert!(!clock.fails(Asks::Api, [10, 29], 2, "b"));
        assert!(clock.fails(Asks::Api, [29, 30], 2, "b"));
        assert!(!clock.fails(Asks::Api, [30, 69], 3, "a"));
        assert!(clock.fails(Asks::Api, [69, 70], 3, "a"));
        for server in ["b", "a", "b", "a", "b", "a"] {
            clock.fails(Asks::Api, [0, 300], 4, server);
        }
        assert!(clock.fails(Asks::Api, [0, 300], 5, "c"), "at most 5 min");
        clock.silence.answered(Asks::Api);
        assert!(
            !clock.fails(Asks::Api, [0, 10], 6, "a"),
            "nothing is stored"
        );
        clock.silence.answered(Asks::ToStore);
        assert!(clock.fails(Asks::Api, [0, 10], 7, "a"));
    }
}
