//! Destinations of messages. Drivers map them to streams and subjects, or to exchanges and routing keys.

use std::fmt;

/// A durable queue. It delivers each message to one consumer and keeps it until it is settled.
///
/// Names are used as given. A driver escapes characters that its product forbids, in a reversible way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueId {
    /// The triggers of one executor.
    Executor {
        /// Executor group.
        group: String,
        /// Executor name.
        executor: String,
    },
    /// Reports of executors.
    Results,
    /// Requests to trigger a job.
    Requests,
    /// Messages that were refused or could not be understood, each with a reason.
    Dead,
}

/// Shows `x.<group>.<executor>`, `results`, `requests` or `dead`.
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

/// A channel whose messages reach the present listeners and are not stored.
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
    /// Answers to requests. Each request has a channel of its own.
    Replies(String),
}
