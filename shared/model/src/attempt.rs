//! Attempts: their identity, and the reports of executors about them.

use serde::{Deserialize, Serialize};

use crate::run::{Outcome, RunId};
use crate::time::Timestamp;

/// Identity of an attempt within its store. It lets schedulers and executors recognise a repeated message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttemptId {
    /// The run.
    pub run: RunId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

/// An event of an attempt, as its executor reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEvent {
    /// The handler is running. Sent only if it runs longer than 500 ms.
    Started {
        /// When the handler was started, by the executor's clock.
        at: Timestamp,
    },
    /// The completed part of the work.
    Progress {
        /// From 0 to 1.
        fraction: f64,
    },
    /// Lines of the attempt's log, in order. A line whose number is already stored is ignored.
    Log {
        /// The lines.
        lines: Vec<LogLine>,
    },
    /// The attempt ended.
    Ended {
        /// How it ended.
        outcome: Outcome,
    },
}

/// The source of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
    /// The handler's logger, or the worker itself.
    Log,
}

impl LogStream {
    /// All streams.
    pub const ALL: [Self; 3] = [Self::Out, Self::Err, Self::Log];

    /// The word for the stream in messages and stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
            Self::Log => "log",
        }
    }
}

impl std::str::FromStr for LogStream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|stream| stream.as_str() == text)
            .ok_or_else(|| format!("unknown log stream {text:?}; expected out, err or log"))
    }
}

/// A line of an attempt's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The number of the line within the attempt, from 0. Numbers are missing only if lines were dropped.
    pub seq: u64,
    /// When the line was written, by the executor's clock.
    pub at: Timestamp,
    /// The source of the line.
    pub stream: LogStream,
    /// The text without its line end. Invalid UTF-8 is replaced.
    pub text: String,
}
