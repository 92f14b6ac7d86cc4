//! Conversions between the values of the port and of databases.

use std::borrow::Cow;
use std::fmt::Write as _;

use cueline_model::{RunKind, RunState};
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};

use crate::{ErrorKind, StoreError};

/// An error for stored data that this program cannot have written.
pub fn corrupt(
    what: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StoreError {
    StoreError::new(ErrorKind::Broken, what).caused_by(source)
}

/// A count as a signed number; a count out of range becomes the highest one.
pub fn to_i64(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// A stored count; a negative number becomes 0.
pub fn to_u64(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A stored small count; a number out of range becomes the nearest one.
pub fn to_u32(number: impl Into<i64>) -> u32 {
    let number = number.into();
    u32::try_from(number).unwrap_or(if number < 0 { 0 } else { u32::MAX })
}

/// The run state with this stored code.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unknown code.
pub fn run_state(code: impl Into<i64>) -> Result<RunState, StoreError> {
    let code = code.into();
    u8::try_from(code)
        .ok()
        .and_then(RunState::from_code)
        .ok_or_else(|| corrupt("failed to read a run", format!("unknown run state {code}")))
}

/// The run kind with this stored code.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unknown code.
pub fn run_kind(code: impl Into<i64>) -> Result<RunKind, StoreError> {
    let code = code.into();
    u8::try_from(code)
        .ok()
        .and_then(RunKind::from_code)
        .ok_or_else(|| corrupt("failed to read a run", format!("unknown run kind {code}")))
}

/// Replaces NUL characters, which databases cannot store.
pub fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// The SHA-256 of a text, in lower-case hexadecimal digits.
pub fn sha256_hex(text: &str) -> String {
    let mut hex = String::new();
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a text cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Parses a stored name, which was valid when it was written.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if it is not a valid name.
pub fn parse_name<T>(text: &str) -> Result<T, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse()
        .map_err(|e| corrupt(format!("failed to read the name {text:?}"), e))
}

/// Reads a boolean that a database stores as 0 or 1.
pub(super) fn flag<'de, D: Deserializer<'de>>(number: D) -> Result<bool, D::Error> {
    Ok(i64::deserialize(number)? != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_become_the_nearest_one() {
        assert_eq!(to_i64(u64::MAX), i64::MAX);
        assert_eq!(to_u64(-1), 0);
        assert_eq!(to_u32(-1_i64), 0);
        assert_eq!(to_u32(i64::MAX), u32::MAX);
        assert_eq!(to_u32(7_i32), 7);
    }

    #[test]
    fn states_and_kinds_are_read_as_they_were_written() {
        assert_eq!(
            run_state(i64::from(RunState::Succeeded.code())).ok(),
            Some(RunState::Succeeded)
        );
        assert_eq!(
            run_kind(i64::from(RunKind::Manual.code())).ok(),
            Some(RunKind::Manual)
        );
    }

    #[test]
    fn an_unknown_code_is_an_error() {
        for code in [-1_i64, 99, 256] {
            assert!(run_state(code).is_err_and(|e| e.kind() == ErrorKind::Broken));
            assert!(run_kind(code).is_err_and(|e| e.kind() == ErrorKind::Broken));
        }
    }

    #[test]
    fn only_nul_characters_are_replaced() {
        assert_eq!(without_nul("a\0b"), "a\u{fffd}b");
        assert!(matches!(without_nul("plain"), Cow::Borrowed("plain")));
    }
}
