//! Lists on their way into and out of SQLite as one JSON text each.

use std::borrow::Cow;

use cueline_model::{RunKind, RunState};
use cueline_store::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::damaged;

/// Reads a list that a statement collected with `json_group_array`.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, StoreError> {
    serde_json::from_str(text).map_err(|e| {
        damaged(
            "failed to read rows: the store holds a value of another kind",
            e,
        )
    })
}

/// Writes a list for `json_each`.
pub(crate) fn encode<T: Serialize>(list: &[T]) -> Result<String, StoreError> {
    serde_json::to_string(list).map_err(|e| damaged("failed to write a list as JSON", e))
}

/// A count as SQLite keeps it; counts past its range stop there.
pub(crate) fn int(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// A number that was written as unsigned.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A small number that was written as unsigned.
pub(crate) fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(if number < 0 { 0 } else { u32::MAX })
}

/// The state with that number.
pub(crate) fn state(code: i64) -> Result<RunState, StoreError> {
    u8::try_from(code)
        .ok()
        .and_then(RunState::from_code)
        .ok_or_else(|| damaged("failed to read a run", format!("unknown run state {code}")))
}

/// The kind with that number.
pub(crate) fn kind(code: i64) -> Result<RunKind, StoreError> {
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
