//! Durations in text form: `250ms`, `10s`, `1h30m`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in whole milliseconds, written `250ms`, `10s`, `5m`, `1h30m`, `2d`.
///
/// A bare number is refused, so that readers of a job file need not guess the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DurationMs(pub u64);

impl DurationMs {
    /// `n` milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(n)
    }

    /// `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(n * 1_000)
    }

    /// The length in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a duration: write a number with a unit, such as 250ms, 10s, 5m, 1h30m or 2d"
)]
pub struct DurationError {
    given: String,
}

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

impl FromStr for DurationMs {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || DurationError {
            given: text.to_owned(),
        };
        let mut rest = text.trim();
        let mut total: u64 = 0;
        if rest.is_empty() {
            return Err(error());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
            let number: u64 = rest[..digits].parse().map_err(|_| error())?;
            let after = &rest[digits..];
            let unit_len = after
                .find(|c: char| !c.is_ascii_alphabetic())
                .unwrap_or(after.len());
            let (_, factor) = UNITS
                .into_iter()
                .find(|(unit, _)| *unit == &after[..unit_len])
                .ok_or_else(error)?;
            total = number
                .checked_mul(factor)
                .and_then(|part| total.checked_add(part))
                .ok_or_else(error)?;
            rest = after[unit_len..].trim_start();
        }
        Ok(Self(total))
    }
}

impl fmt::Display for DurationMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, factor) in UNITS {
            let n = rest / factor;
            if n > 0 {
                write!(f, "{n}{unit}")?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

impl Serialize for DurationMs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurationMs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}
