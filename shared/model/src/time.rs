//! Instants. A [`Timestamp`] is a count of milliseconds; time zones live in [`crate::schedule`] only.

use std::fmt;

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
