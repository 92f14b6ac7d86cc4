//! The policies of a job for late, overlapping, failed and lost runs.

use serde::{Deserialize, Serialize};

use crate::duration::DurationMs;
use crate::run::RunState;

/// The treatment of fire times that were found too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MisfirePolicy {
    /// All missed fire times become one `skipped` run.
    Skip,
    /// The newest missed fire time runs now. The older ones become one `skipped` run.
    #[default]
    FireOnce,
    /// Missed fire times run, oldest first, up to a limit. The ones before those become one `skipped` run.
    CatchUp,
}

/// When a fire time counts as missed, and its treatment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misfire {
    /// The treatment of missed fire times.
    #[serde(default)]
    pub policy: MisfirePolicy,
    /// A fire time that is found later than this is missed; 5 s by default.
    #[serde(default = "Misfire::default_grace")]
    pub grace: DurationMs,
    /// The most runs that `catch_up` creates at once; 100 by default, at most 10,000.
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

/// The treatment of a trigger that meets a busy lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// Triggers run one after another, in the order of publication.
    #[default]
    Serial,
    /// A trigger that meets a busy lane ends `discarded`.
    Discard,
    /// The newest trigger wins. Waiting triggers end `covered`, and the running attempt is stopped first.
    Cover,
    /// At most this many run at a time.
    Parallel(u32),
}

/// The extent of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All executors of the group share one lane. The runs of a `broadcast` fire have a lane for each executor all the
    /// same, because each executor has to run its part.
    #[default]
    Group,
    /// Each executor has a lane of its own.
    Executor,
}

/// The growth of the wait before a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backoff {
    /// Each wait equals `first`.
    #[default]
    Fixed,
    /// The wait starts at `first` and doubles each time, up to `cap`.
    Exponential,
}

/// Whether and how failed attempts are retried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// The most retries after the first attempt; 0 by default, at most 1,000.
    #[serde(default)]
    pub max: u32,
    /// The growth of the wait.
    #[serde(default)]
    pub backoff: Backoff,
    /// The first wait; 10 s by default.
    #[serde(default = "Retry::default_first")]
    pub first: DurationMs,
    /// The longest wait; 1 h by default.
    #[serde(default = "Retry::default_cap")]
    pub cap: DurationMs,
    /// The wait is shortened by a random part, up to this percentage; 10 by default. Attempts that failed together then
    /// do not retry together.
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

    /// The wait before retry number `retry` (from 1), in milliseconds. `seed` determines the jitter: the same run and
    /// attempt always get the same wait.
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
        // Divide first, so that the product cannot overflow.
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

/// Maps `seed` to an evenly spread number (the finaliser of `SplitMix64`). The result is the same on every machine.
pub fn spread(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The treatment of an attempt that was started and will never have an outcome, because its executor died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// The run ends `lost`, unless its retry policy allows another attempt. No work is repeated without the user's
    /// consent.
    #[default]
    Fail,
    /// A new attempt follows at once and does not count as a retry. After three of these the run ends as with `fail`.
    Rerun,
}

impl OnLost {
    /// The most times that `rerun` repeats a run. A run that crashes its executor each time must end at some point.
    pub const MAX_RERUNS: u32 = 3;
}

/// What happens to running attempts when their executor cannot reach the schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// The executor stops them before the schedulers may give their work to another executor. No two attempts overlap.
    #[default]
    Stop,
    /// They continue, and may overlap with the attempts that replace them.
    Keep,
}

impl Fence {
    /// Whether this is the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
