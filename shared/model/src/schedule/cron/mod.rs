//! Cron expressions in a time zone.
//!
//! `fields` reads the text. `pattern` finds matches on a calendar without clock changes. `zone` maps these matches to
//! real time. Only `zone` knows time zones, and only `fields` knows the grammar of the dialects.

mod field;
mod fields;
mod pattern;
mod zone;

use std::sync::Arc;

use super::zones::{UnknownZone, Zone};
use super::{Dialect, DstRule};
use crate::time::Timestamp;
use pattern::Pattern;
use zone::Changes;

/// Why a cron schedule is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// The expression is invalid.
    #[error("{0}")]
    Expression(String),
    /// The time zone is unknown.
    #[error("{0}")]
    TimeZone(UnknownZone),
}

impl CronError {
    /// The message. For an unknown time zone, it has the [known name](UnknownZone::with_suggestion) that was probably meant.
    pub fn with_suggestion(&self) -> String {
        match self {
            Self::Expression(message) => message.clone(),
            Self::TimeZone(zone) => zone.with_suggestion(),
        }
    }
}

/// A cron expression in a time zone.
#[derive(Debug, Clone)]
pub struct CronSchedule {
    expression: Arc<str>,
    timezone: Arc<str>,
    dialect: Dialect,
    dst: Option<DstRule>,
    compiled: Arc<Compiled>,
}

/// The compiled form of a [`CronSchedule`]. It follows from the written form alone.
#[derive(Debug)]
struct Compiled {
    pattern: Pattern,
    zone: Zone,
    changes: Changes,
}

/// Two schedules are equal if they are written equally.
impl PartialEq for CronSchedule {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression
            && self.timezone == other.timezone
            && self.dialect == other.dialect
            && self.dst == other.dst
    }
}

impl Eq for CronSchedule {}

impl CronSchedule {
    /// Parses an expression. Without a `dialect`, five fields and names such as `@daily` are Unix; six or seven fields
    /// are Quartz.
    ///
    /// It also refuses expressions that no date can ever match (30 February).
    ///
    /// ```
    /// use cueline_model::{Timestamp, schedule::CronSchedule};
    ///
    /// let cron = CronSchedule::parse("30 2 * * *", "Europe/Berlin", None, None)?;
    /// let after: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    /// assert_eq!(cron.next_after(after).unwrap().to_string(), "2027-01-01T01:30:00.000Z");
    /// # Ok::<(), cueline_model::schedule::CronError>(())
    /// ```
    pub fn parse(
        expression: &str,
        timezone: &str,
        dialect: Option<Dialect>,
        dst: Option<DstRule>,
    ) -> Result<Self, CronError> {
        let zone = Zone::get(timezone).map_err(CronError::TimeZone)?;
        let read = fields::read(expression, dialect).map_err(CronError::Expression)?;
        if read.pattern.is_impossible() {
            return Err(CronError::Expression(
                "no date ever matches day-of-month, month and day-of-week together; \
                 for a job that never fires by itself use { manual = true }"
                    .to_owned(),
            ));
        }
        let changes = Changes::from_rule(dst, read.follows_elapsed_time);
        Ok(Self {
            expression: expression.trim().into(),
            timezone: zone.name().into(),
            dialect: read.dialect,
            dst,
            compiled: Arc::new(Compiled {
                pattern: read.pattern,
                zone,
                changes,
            }),
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

    /// The dialect of the expression.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Whether the expression names years, so that it comes to an end.
    pub fn names_years(&self) -> bool {
        self.compiled.pattern.years.is_some()
    }

    /// The configured rule, if any.
    pub fn dst(&self) -> Option<DstRule> {
        self.dst
    }

    /// The first match strictly after `after`, a whole second.
    ///
    /// `None` if there is none within 100 years, or within the years that the expression names.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let first = after.as_millis().div_euclid(1_000).checked_add(1)?;
        let Compiled {
            pattern,
            zone,
            changes,
        } = &*self.compiled;
        let second = zone::next_match(pattern, &zone.rules(), *changes, first)?;
        second.checked_mul(1_000).map(Timestamp::from_millis)
    }
}

#[cfg(test)]
mod tests;
