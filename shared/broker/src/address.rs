//! Where messages go. Drivers map these to streams and subjects, or exchanges and routing keys.

use std::fmt;

/// A durable queue: each message in it goes to one consumer, and stays until it is settled.
///
/// Names are used as given; a driver whose product forbids a character escapes it, reversibly.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueId {
    /// The triggers of one executor.
    Executor {
        /// Executor group.
        group: String,
        /// Executor name.
        executor: String,
    },
    /// What executors report.
    Results,
    /// Requests to trigger a job.
    Requests,
    /// Messages that could not be understood or were refused, each with a reason.
    Dead,
}

/// `x.<group>.<executor>`, `results`, `requests`, `dead`.
impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Executor { group, executor } => write!(f, "x.{group}.{executor}"),
            Self::Results => f.write_str("results"),
            Self::Requests => f.write_str("requests"),
            Self::Dead => f.write_str("dead"),
        }
    }
}

/// A channel of messages that reach the present listeners and are not stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// Heartbeats of all executors.
    Heartbeats,
    /// Control messages to one executor.
    Control {
        /// Executor group.
        group: String,
        /// Executor name.
        executor: String,
    },
    /// Answers to requests; each request has a channel of its own.
    Replies(String),
}
