//! Limits of dispatches: how many begin within an interval, and how many attempts are at work at the same time.

mod window;

use serde::{Deserialize, Serialize};

pub use window::RateWindow;

/// The largest number of dispatches in an interval that a limit may allow.
pub const MAX_RATE: u32 = 1_000_000;

/// The largest number of attempts at work that a limit may allow.
pub const MAX_CONCURRENCY: u32 = 1_000;

/// The interval of a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RatePer {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3,600 s.
    Hour,
}

impl RatePer {
    /// Its length.
    pub const fn as_millis(self) -> u64 {
        match self {
            Self::Second => 1_000,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
        }
    }

    /// All of them, with their words.
    pub const ALL: [(&'static str, Self); 3] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
    ];

    /// The word for it in job files and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }
}

/// How many dispatches begin in any interval of this length, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// The number; from 1 to [`MAX_RATE`].
    pub count: u32,
    /// The interval.
    pub per: RatePer,
}

/// The rate limit of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// The rate.
    #[serde(flatten)]
    pub rate: Rate,
    /// The jobs of the namespace with the same key share the limit. Without a key, the job has it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The concurrency limit of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    /// The jobs of the namespace with the same key share the limit.
    pub key: String,
    /// How many of their attempts are at work at the same time, over all executors; from 1 to [`MAX_CONCURRENCY`].
    pub limit: u32,
}
