//! Values on their way into and out of PostgreSQL.

use cueline_model::{JobId, RunState};

pub(crate) use cueline_store::adapter::values::{clean, int, kind, name, small, state, unsigned};

/// A small count as PostgreSQL keeps it; counts past its range stop there.
pub(crate) fn int4(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The number of a state.
pub(crate) fn code(state: RunState) -> i16 {
    i16::from(state.code())
}

/// Jobs as a column.
pub(crate) fn numbers(jobs: &[JobId]) -> Vec<i64> {
    jobs.iter().map(|id| id.0).collect()
}

/// The lowest and the highest of the ids: with them as bounds only the partitions of these days are looked at.
pub(crate) fn bounds(ids: impl IntoIterator<Item = i64>) -> (i64, i64) {
    ids.into_iter()
        .fold((i64::MAX, i64::MIN), |(low, high), id| {
            (low.min(id), high.max(id))
        })
}
