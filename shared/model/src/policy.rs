//! What a job wants done when things are late, busy, failing or lost.

use serde::{Deserialize, Serialize};

use crate::duration::DurationMs;
use crate::run::RunState;

/// What becomes of fire times that were found too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MisfirePolicy {
    /// One `skipped` run that covers all that was missed.
    Skip,
    /// One run now for the newest missed fire time; the older ones become one `skipped` run.
    #[default]
    FireOnce,
    /// Each missed fire time, oldest first, up to a limit; what is older than that is one `skipped` run.
    CatchUp,
}

/// When a fire time counts as missed, and what then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misfire {
    /// What to do.
    #[serde(default)]
    pub policy: MisfirePolicy,
    /// A fire time found later than this is missed; 5 s by default.
    #[serde(default = "Misfire::default_grace")]
    pub grace: DurationMs,
    /// The most runs that `catch_up` creates at once; 100 by default, 10,000 at the most.
    #[serde(default = "Misfire::default_limit")]
    pub catch_up_limit: u32,
}

impl Misfire {
    fn default_grace() -> DurationMs {
        DurationMs::secs(5)
    }

    fn default_limit() -> u32 {
        100
    }
}

impl Default for Misfire {
    fn default() -> Self {
        Self {
            policy: MisfirePolicy::default(),
            grace: Self::default_grace(),
            catch_up_limit: Self::default_limit(),
        }
    }
}

/// How an executor treats a trigger that meets a busy lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// One after the other, in order of publication.
    #[default]
    Serial,
    /// A trigger that meets a busy lane ends `discarded`.
    Discard,
    /// The newest trigger wins: queued ones end `covered`, the running one is stopped first.
    Cover,
    /// At most this number at a time.
    Parallel(u32),
}

/// What a lane spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// A lane on each executor.
    #[default]
    Executor,
}

/// How long to wait before each retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backoff {
    /// `first` each time.
    #[default]
    Fixed,
    /// `first`, then twice as long each time, up to `cap`.
    Exponential,
}

/// Whether and how failed attempts are repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Attempts after the first; 0 is none, 1,000 the most.
    #[serde(default)]
    pub max: u32,
    /// Growth of the wait.
    #[serde(default)]
    pub backoff: Backoff,
    /// The first wait; 10 s by default.
    #[serde(default = "Retry::default_first")]
    pub first: DurationMs,
    /// The longest wait; 1 h by default.
    #[serde(default = "Retry::default_cap")]
    pub cap: DurationMs,
    /// The wait is shortened by up to this percentage, so that attempts that failed together do not retry together; 10 by default.
    #[serde(default = "Retry::default_jitter")]
    pub jitter_percent: u8,
    /// The outcomes that are retried: `failed`, `timed_out`, `lost`, `unroutable`; all four by default.
    #[serde(default = "Retry::default_on")]
    pub on: Vec<RunState>,
}

impl Retry {
    fn default_first() -> DurationMs {
        DurationMs::secs(10)
    }

    fn default_cap() -> DurationMs {
        DurationMs::secs(3_600)
    }

    fn default_jitter() -> u8 {
        10
    }

    fn default_on() -> Vec<RunState> {
        RunState::FAILURES.to_vec()
    }

    /// Milliseconds to wait before retry number `retry` (from 1). `seed` spreads the jitter and makes it the same
    /// for the same run and attempt.
    pub fn wait_ms(&self, retry: u32, seed: u64) -> u64 {
        let first = self.first.as_millis();
        let wait = match self.backoff {
            Backoff::Fixed => first,
            Backoff::Exponential => first.saturating_mul(
                1_u64
                    .checked_shl(retry.saturating_sub(1))
                    .unwrap_or(u64::MAX),
            ),
        }
        .min(self.cap.as_millis());
        let most = wait / 100 * u64::from(self.jitter_percent.min(100));
        if most == 0 {
            wait
        } else {
            wait - spread(seed) % (most + 1)
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max: 0,
            backoff: Backoff::default(),
            first: Self::default_first(),
            cap: Self::default_cap(),
            jitter_percent: Self::default_jitter(),
            on: Self::default_on(),
        }
    }
}

/// A well-spread number from `seed` (the finaliser of `SplitMix64`), the same on every machine.
pub fn spread(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What becomes of an attempt that was started and of which no outcome will ever come, because its executor died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// The run ends `lost`, unless its retry policy gives it another attempt. Nothing runs twice unasked.
    #[default]
    Fail,
    /// A new attempt at once, not counted as a retry; after three such the run ends as with `fail`.
    Rerun,
}

impl OnLost {
    /// The most times that `rerun` repeats a run. A run that crashes its executor each time must come to an end.
    pub const MAX_RERUNS: u32 = 3;
}

/// What an executor that cannot reach the schedulers any more does with the attempts that it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// It stops them before the schedulers may give them to another executor: no two attempts overlap.
    #[default]
    Stop,
    /// They go on, and may overlap with the attempts that take their place.
    Keep,
}

impl Fence {
    /// Whether it is what a definition that says nothing means.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
