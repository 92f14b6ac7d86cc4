//! Steps of a process's wall clock, to show in storms that due times and leases follow the database's clock.
//!
//! Only a build with the feature `clock-steps` has them, which nothing but `infra/dev/storm` makes. In every other
//! build the offset is the constant 0.

/// Names the file with the offset in milliseconds. Read by builds with the feature only. Without the file the offset is
/// 0.
pub const VARIABLE: &str = "CUELINE_TEST_CLOCK";

/// Whether this build has clock steps.
pub const ENABLED: bool = cfg!(feature = "clock-steps");

/// What the clock shows beside the machine's time, in microseconds.
#[cfg(feature = "clock-steps")]
pub(crate) fn offset_us() -> i64 {
    static FILE: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os(VARIABLE)).as_ref();
    let text = file.and_then(|file| std::fs::read_to_string(file).ok());
    let offset_ms = text.and_then(|text| text.trim().parse::<i64>().ok());
    offset_ms.unwrap_or(0).saturating_mul(1_000)
}

/// What the clock shows beside the machine's time: nothing, because this build has no clock steps.
#[cfg(not(feature = "clock-steps"))]
pub(crate) const fn offset_us() -> i64 {
    0
}
