//! Cron expressions.

use super::{Dialect, DstRule};
use crate::time::Timestamp;

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// The expression itself.
    #[error("{0}")]
    Expression(String),
    /// The name of the time zone.
    #[error("{0}")]
    TimeZone(String),
}

/// A cron expression in a time zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronSchedule {
    expression: String,
    timezone: String,
    dialect: Dialect,
    dst: Option<DstRule>,
}

impl CronSchedule {
    /// Reads an expression.
    pub fn parse(
        expression: &str,
        timezone: &str,
        dialect: Option<Dialect>,
        dst: Option<DstRule>,
    ) -> Result<Self, CronError> {
        Ok(Self {
            expression: expression.to_owned(),
            timezone: timezone.to_owned(),
            dialect: dialect.unwrap_or(Dialect::Unix),
            dst,
        })
    }

    /// The expression as given.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The IANA time zone name.
    pub fn timezone(&self) -> &str {
        &self.timezone
    }

    /// The dialect it was read in.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The rule that was set, if any.
    pub fn dst(&self) -> Option<DstRule> {
        self.dst
    }

    /// The first match strictly after `after`.
    pub fn next_after(&self, _after: Timestamp) -> Option<Timestamp> {
        None
    }
}
