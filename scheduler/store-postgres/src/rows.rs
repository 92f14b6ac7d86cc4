//! Values on their way into and out of PostgreSQL.

use std::borrow::Cow;

use cueline_model::{RunKind, RunState};
use cueline_store::StoreError;

use crate::error::damaged;

/// A count as PostgreSQL keeps it; counts past its range stop there.
pub(crate) fn int(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// A small count as PostgreSQL keeps it; counts past its range stop there.
pub(crate) fn int4(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A number that was written as unsigned.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A small number that was written as unsigned.
pub(crate) fn small(number: impl Into<i64>) -> u32 {
    let number = number.into();
    u32::try_from(number).unwrap_or(if number < 0 { 0 } else { u32::MAX })
}

/// The state with that number.
pub(crate) fn state(code: i16) -> Result<RunState, StoreError> {
    u8::try_from(code)
        .ok()
        .and_then(RunState::from_code)
        .ok_or_else(|| damaged("failed to read a run", format!("unknown run state {code}")))
}

/// The number of a state.
pub(crate) fn code(state: RunState) -> i16 {
    i16::from(state.code())
}

/// The kind with that number.
pub(crate) fn kind(code: i16) -> Result<RunKind, StoreError> {
    u8::try_from(code)
        .ok()
        .and_then(RunKind::from_code)
        .ok_or_else(|| damaged("failed to read a run", format!("unknown run kind {code}")))
}

/// Text from outside as databases can keep it: no NUL characters.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// A name that was checked when it was written.
pub(crate) fn name<T>(text: &str) -> Result<T, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse()
        .map_err(|e| damaged(format!("failed to read the name {text:?}"), e))
}

/// The lowest and the highest of the ids: with them as bounds only the partitions of these days are looked at.
pub(crate) fn bounds(ids: impl IntoIterator<Item = i64>) -> (i64, i64) {
    ids.into_iter()
        .fold((i64::MAX, i64::MIN), |(low, high), id| {
            (low.min(id), high.max(id))
        })
}
