//! Turns lists into columns. Statements take each column of a list as an array.

use cueline_model::{AttemptId, JobId, RunState};

/// One column of a list.
pub(crate) fn column<'a, R, T>(rows: &'a [R], value: impl FnMut(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// One column of a list in which few rows have a value: the position of each row's value, from 1, or 0, and the values.
/// PostgreSQL searches an array with NULL or with texts from its start, so it gets only what is there.
pub(crate) fn sparse<R, T>(rows: &[R], value: impl Fn(&R) -> Option<T>) -> (Vec<i32>, Vec<T>) {
    let mut values = Vec::new();
    let positions = rows.iter().map(|row| {
        let Some(value) = value(row) else { return 0 };
        values.push(value);
        i32::try_from(values.len()).unwrap_or_default()
    });
    (positions.collect(), values)
}

/// A small count as PostgreSQL's `integer`. A count out of range becomes the highest one.
pub(crate) fn to_i32(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The stored code of a state.
pub(crate) fn state_code(state: RunState) -> i16 {
    i16::from(state.code())
}

/// Ids of jobs.
pub(crate) fn job_ids(jobs: &[JobId]) -> Vec<i64> {
    column(jobs, |id| id.0)
}

/// The lowest and the highest id. Used as bounds, they exclude the partitions of all other days.
pub(crate) fn id_range(ids: impl IntoIterator<Item = i64>) -> (i64, i64) {
    ids.into_iter()
        .fold((i64::MAX, i64::MIN), |(low, high), id| {
            (low.min(id), high.max(id))
        })
}

/// Attempts as two columns, sorted by run id.
pub(crate) fn attempt_columns(attempts: &[AttemptId]) -> (Vec<i64>, Vec<i32>) {
    let mut sorted = attempts.to_vec();
    sorted.sort_unstable();
    sorted
        .iter()
        .map(|id| (id.run.0, to_i32(id.attempt)))
        .unzip()
}
