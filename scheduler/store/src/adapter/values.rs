//! Values on their way into and out of a database, whichever it is.

use std::borrow::Cow;

use cueline_model::{RunKind, RunState};

use crate::{ErrorKind, StoreError};

/// Something in the store is not as it was written.
pub fn damaged(
    what: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StoreError {
    StoreError::new(ErrorKind::Broken, what).caused_by(source)
}

/// A count as databases keep it; counts past their range stop there.
pub fn int(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// A number that was written as unsigned.
pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A small number that was written as unsigned.
pub fn small(number: impl Into<i64>) -> u32 {
    let number = number.into();
    u32::try_from(number).unwrap_or(if number < 0 { 0 } else { u32::MAX })
}

/// The state with that number.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if there is none.
pub fn state(code: impl Into<i64>) -> Result<RunState, StoreError> {
    let code = code.into();
    u8::try_from(code)
        .ok()
        .and_then(RunState::from_code)
        .ok_or_else(|| damaged("failed to read a run", format!("unknown run state {code}")))
}

/// The kind with that number.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if there is none.
pub fn kind(code: impl Into<i64>) -> Result<RunKind, StoreError> {
    let code = code.into();
    u8::try_from(code)
        .ok()
        .and_then(RunKind::from_code)
        .ok_or_else(|| damaged("failed to read a run", format!("unknown run kind {code}")))
}

/// Text from outside as databases can keep it: no NUL characters.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// A name that was checked when it was written.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if it is not one.
pub fn name<T>(text: &str) -> Result<T, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse()
        .map_err(|e| damaged(format!("failed to read the name {text:?}"), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_stop_at_its_end() {
        assert_eq!(int(u64::MAX), i64::MAX);
        assert_eq!(unsigned(-1), 0);
        assert_eq!(small(-1_i64), 0);
        assert_eq!(small(i64::MAX), u32::MAX);
        assert_eq!(small(7_i32), 7);
    }

    #[test]
    fn states_and_kinds_come_back_as_they_were_written() {
        assert_eq!(
            state(i64::from(RunState::Succeeded.code())).ok(),
            Some(RunState::Succeeded)
        );
        assert_eq!(
            kind(i64::from(RunKind::Manual.code())).ok(),
            Some(RunKind::Manual)
        );
    }

    #[test]
    fn an_unknown_number_is_damage() {
        for code in [-1_i64, 99, 256] {
            assert!(state(code).is_err_and(|e| e.kind() == ErrorKind::Broken));
            assert!(kind(code).is_err_and(|e| e.kind() == ErrorKind::Broken));
        }
    }

    #[test]
    fn text_loses_only_its_nul_characters() {
        assert_eq!(clean("a\0b"), "a\u{fffd}b");
        assert!(matches!(clean("plain"), Cow::Borrowed("plain")));
    }
}
