//! Instants. A [`Timestamp`] is a count of milliseconds; time zones live in [`crate::schedule`] only.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A UTC instant, in milliseconds since 1970-01-01T00:00:00Z.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant, `millis` later; stops at the end of the representable range.
    #[must_use]
    pub const fn plus_ms(self, millis: u64) -> Self {
        Self(self.0.saturating_add_unsigned(millis))
    }

    /// This instant, `millis` earlier; stops at the start of the representable range.
    #[must_use]
    pub const fn minus_ms(self, millis: u64) -> Self {
        Self(self.0.saturating_sub_unsigned(millis))
    }

    /// Milliseconds from `earlier` to this instant; negative when this one is the earlier.
    pub const fn since_ms(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// RFC 3339 in UTC with milliseconds, `2027-03-14T07:00:00.000Z`; the bare number outside jiff's range.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => write!(f, "{t:.3}"),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

/// Why a text is not an instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not an instant: write it as RFC 3339, such as 2027-01-01T00:00:00Z")]
pub struct TimestampError {
    given: String,
}

/// RFC 3339 with `Z` or an offset; what is finer than a millisecond is cut off.
impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<jiff::Timestamp>()
            .map(|t| Self(t.as_millisecond()))
            .map_err(|_| TimestampError {
                given: text.chars().take(80).collect(),
            })
    }
}

/// The serde form of an optional instant in job definitions: RFC 3339 text. A number of milliseconds is
/// accepted too, and written for an instant that RFC 3339 cannot express. For fields of definitions; everything
/// between machines keeps the bare number.
pub mod rfc3339 {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Timestamp;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum MillisOrText {
        Millis(i64),
        Text(String),
    }

    /// Writes the instant as text.
    pub fn serialize<S: Serializer>(
        instant: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match instant {
            None => serializer.serialize_none(),
            Some(t) => match jiff::Timestamp::from_millisecond(t.as_millis()) {
                Ok(_) => serializer.collect_str(t),
                Err(_) => t.serialize(serializer),
            },
        }
    }

    /// Reads text or a number.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        Ok(match Option::<MillisOrText>::deserialize(deserializer)? {
            None => None,
            Some(MillisOrText::Millis(millis)) => Some(Timestamp::from_millis(millis)),
            Some(MillisOrText::Text(text)) => Some(text.parse().map_err(serde::de::Error::custom)?),
        })
    }
}
