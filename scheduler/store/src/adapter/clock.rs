//! A clock for tests.

use std::fmt;
use std::sync::Arc;

use cueline_model::Timestamp;

/// A clock that replaces the database's, for tests.
#[derive(Clone)]
pub struct ClockOverride(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl ClockOverride {
    /// A clock whose time is the result of `now`.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for ClockOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockOverride")
    }
}
