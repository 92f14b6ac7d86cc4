//! Instants. A [`Timestamp`] counts milliseconds. Only [`crate::schedule`] knows time zones.

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

    /// This instant plus `millis`. It stops at the end of the representable range.
    #[must_use]
    pub const fn plus_ms(self, millis: u64) -> Self {
        Self(self.0.saturating_add_unsigned(millis))
    }

    /// This instant minus `millis`. It stops at the start of the representable range.
    #[must_use]
    pub const fn minus_ms(self, millis: u64) -> Self {
        Self(self.0.saturating_sub_unsigned(millis))
    }

    /// The milliseconds from `earlier` to this instant; negative if this instant is earlier.
    pub const fn since_ms(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Shows RFC 3339 in UTC with milliseconds, `2027-03-14T07:00:00.000Z`. Outside jiff's range it shows the bare number.
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

/// Parses RFC 3339 with `Z` or an offset. Fractions of a millisecond are cut off.
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

/// The serialised form of an optional instant in job definitions: RFC 3339 text. Numbers of milliseconds are accepted
/// too, and are written for instants that RFC 3339 cannot express. Messages between machines use the bare number
/// instead.
pub mod rfc3339 {
    use std::fmt;
    use std::ops::RangeInclusive;

    use serde::de::{Error, Unexpected, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Timestamp;

    /// What is written as text, in milliseconds: from the year 0, the first of RFC 3339, to 9999-12-28. Each text of these
    /// days is read back, whatever its offset.
    const WRITTEN_MS: RangeInclusive<i64> = -62_167_219_200_000..=253_402_041_599_999;

    struct MillisOrText(Timestamp);

    impl<'de> Deserialize<'de> for MillisOrText {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            // The derived form for several types tries them one after the other, and writes an error for each that is not it.
            deserializer.deserialize_any(Instant).map(Self)
        }
    }

    struct Instant;

    impl Visitor<'_> for Instant {
        type Value = Timestamp;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an instant: text as in RFC 3339, or milliseconds since 1970")
        }

        fn visit_i64<E: Error>(self, millis: i64) -> Result<Timestamp, E> {
            Ok(Timestamp::from_millis(millis))
        }

        fn visit_u64<E: Error>(self, millis: u64) -> Result<Timestamp, E> {
            let signed = i64::try_from(millis);
            let signed =
                signed.map_err(|_| E::invalid_value(Unexpected::Unsigned(millis), &self))?;
            self.visit_i64(signed)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Timestamp, E> {
            text.parse().map_err(E::custom)
        }
    }

    /// Writes the instant as text.
    pub fn serialize<S: Serializer>(
        instant: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match instant {
            None => serializer.serialize_none(),
            Some(t) if WRITTEN_MS.contains(&t.as_millis()) => serializer.collect_str(t),
            Some(t) => t.serialize(serializer),
        }
    }

    /// Reads text or a number.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let instant = Option::<MillisOrText>::deserialize(deserializer)?;
        Ok(instant.map(|MillisOrText(instant)| instant))
    }

    #[cfg(test)]
    mod tests {
        use serde_json::{Value, json};

        use super::*;

        #[derive(Serialize, Deserialize)]
        struct Holder {
            #[serde(with = "super")]
            at: Option<Timestamp>,
        }

        fn written(millis: i64) -> Value {
            let at = Some(Timestamp::from_millis(millis));
            let value = serde_json::to_value(Holder { at }).expect("JSON");
            let read: Holder = serde_json::from_value(value.clone()).expect("an instant");
            assert_eq!(read.at, at, "{value}");
            value["at"].clone()
        }

        #[test]
        fn what_is_no_instant_is_refused() {
            let refused = |at: Value| {
                let read = serde_json::from_value::<Holder>(json!({ "at": at }));
                read.err().expect("refused").to_string()
            };
            let wanted = "expected an instant: text as in RFC 3339, or milliseconds since 1970";
            for (at, found) in [
                (json!(true), "invalid type: boolean `true`"),
                (json!(1.5), "invalid type: floating point `1.5`"),
                (
                    json!(u64::MAX),
                    "invalid value: integer `18446744073709551615`",
                ),
                (json!([1]), "invalid type: sequence"),
            ] {
                assert_eq!(refused(at), format!("{found}, {wanted}"));
            }
            assert!(refused(json!("tomorrow")).contains("tomorrow"));
        }

        #[test]
        fn what_rfc_3339_does_not_have_is_written_as_a_number() {
            let (first, last) = WRITTEN_MS.into_inner();
            assert_eq!(written(first), json!("0000-01-01T00:00:00.000Z"));
            assert_eq!(written(last), json!("9999-12-28T23:59:59.999Z"));
            for other in [first - 1, last + 1, i64::MIN, i64::MAX] {
                assert_eq!(written(other), json!(other));
            }
        }
    }
}
