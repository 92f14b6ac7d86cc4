//! Instants in requests.

use std::ops::RangeInclusive;

use cueline_model::Timestamp;

/// The first and the last millisecond that can be written as a date. The schema `InstantText` has the same bounds.
const INSTANTS_MS: RangeInclusive<i64> = -377_705_023_201_000..=253_402_207_200_999;

/// Why a text is not an instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not an instant: write it as 2027-01-31T12:00:00Z, with an offset as \
     2027-01-31T12:00:00+01:00, or as milliseconds since 1970-01-01T00:00:00Z"
)]
pub struct InstantError {
    given: String,
}

/// Reads an instant: RFC 3339, or milliseconds since the Unix epoch.
pub fn instant(text: &str) -> Result<Timestamp, InstantError> {
    let millis = match text.parse::<i64>() {
        Ok(millis) => Some(millis).filter(|millis| INSTANTS_MS.contains(millis)),
        Err(_) => text
            .parse::<jiff::Timestamp>()
            .ok()
            .map(jiff::Timestamp::as_millisecond),
    };
    millis
        .map(Timestamp::from_millis)
        .ok_or_else(|| InstantError {
            given: text.to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::{INSTANTS_MS, instant};

    #[test]
    fn the_bounds_are_those_of_dates() {
        let (first, last) = INSTANTS_MS.into_inner();
        assert_eq!(first, jiff::Timestamp::MIN.as_millisecond());
        assert_eq!(last, jiff::Timestamp::MAX.as_millisecond());
        for good in [first, last] {
            assert!(instant(&good.to_string()).is_ok(), "{good}");
        }
        for wrong in [first - 1, last + 1] {
            assert!(instant(&wrong.to_string()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dates_and_numbers_are_the_same_instants() {
        let at = instant("2027-01-31T12:00:00Z").expect("an instant");
        assert_eq!(instant(&at.as_millis().to_string()), Ok(at));
        assert_eq!(instant("2027-01-31T13:00:00+01:00"), Ok(at));
    }

    #[test]
    fn what_is_no_instant_is_refused_with_a_hint() {
        for wrong in [
            "",
            "now",
            "2027-01-31",
            "2027-13-31T12:00:00Z",
            "9223372036854775807",
            "1e9",
        ] {
            let error = instant(wrong).expect_err(wrong).to_string();
            assert!(error.contains("2027-01-31T12:00:00Z"), "{error}");
        }
    }
}
