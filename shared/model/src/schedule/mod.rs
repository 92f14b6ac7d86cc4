//! The times at which a job fires.

use serde::{Deserialize, Serialize};

use crate::duration::DurationMs;
use crate::time::Timestamp;

mod cron;
pub mod zones;

pub use cron::{CronError, CronSchedule};
pub use zones::{UnknownZone, Zone};

/// The most fire times that a preview returns.
pub const MAX_PREVIEW: usize = 10_000;

/// The rule that gives the fire times of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// Fires at the times that match a cron expression.
    Cron(CronSchedule),
    /// Fires at `anchor` plus each multiple of `every`, independent of the runs' duration.
    FixedRate {
        /// The period, at least 100 ms.
        every: DurationMs,
        /// A point of the grid; the Unix epoch by default, so that restarts and edits do not move the grid.
        anchor: Option<Timestamp>,
    },
    /// Fires a fixed delay after the end of the last run.
    FixedDelay {
        /// The delay, at least 100 ms.
        after: DurationMs,
    },
    /// Fires once.
    Once {
        /// The instant.
        at: Timestamp,
    },
    /// Fires each time that the scheduler starts (cron's `@reboot`).
    Startup,
    /// Never fires by itself. Only the API, the command line, a message or a parent triggers the job.
    Manual,
    /// Fires at the fire times of each of these. An instant that several of them have is one fire time. They are of the
    /// kinds `cron`, `every` and `at`: only these have fire times of their own.
    Several(Vec<Schedule>),
}

/// The most schedules of one job.
pub const MAX_SCHEDULES: usize = 20;

/// The serialised form of a [`Schedule`]. The present keys determine the kind.
#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ScheduleFields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timezone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dialect: Option<Dialect>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dst: Option<DstRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<DurationMs>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::time::rfc3339"
    )]
    anchor: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<DurationMs>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::time::rfc3339"
    )]
    at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    startup: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    manual: bool,
}

impl Serialize for Schedule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = ScheduleFields::default();
        match self {
            Self::Several(schedules) => return serializer.collect_seq(schedules),
            Self::Cron(cron) => {
                fields.cron = Some(cron.expression().to_owned());
                fields.timezone = Some(cron.timezone().to_owned());
                fields.dialect = Some(cron.dialect());
                fields.dst = cron.dst();
            }
            Self::FixedRate { every, anchor } => {
                fields.every = Some(*every);
                fields.anchor = *anchor;
            }
            Self::FixedDelay { after } => fields.after = Some(*after),
            Self::Once { at } => fields.at = Some(*at),
            Self::Startup => fields.startup = true,
            Self::Manual => fields.manual = true,
        }
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrSeveral)
    }
}

/// Reads a table as one schedule, and a list as several.
struct OneOrSeveral;

impl<'de> serde::de::Visitor<'de> for OneOrSeveral {
    type Value = Schedule;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a schedule, or a list of schedules")
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Schedule, A::Error> {
        let mut schedules = Vec::new();
        while let Some(schedule) = list.next_element()? {
            schedules.push(schedule);
        }
        Ok(Schedule::Several(schedules))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Schedule, A::Error> {
        let fields = serde::de::value::MapAccessDeserializer::new(map);
        ScheduleFields::deserialize(fields)?
            .try_into()
            .map_err(serde::de::Error::custom)
    }
}

impl TryFrom<ScheduleFields> for Schedule {
    type Error = String;

    fn try_from(w: ScheduleFields) -> Result<Self, String> {
        match w {
            ScheduleFields {
                cron: Some(expression),
                ..
            } => CronSchedule::parse(
                &expression,
                w.timezone.as_deref().unwrap_or("UTC"),
                w.dialect,
                w.dst,
            )
            .map(Self::Cron)
            .map_err(|error| error.to_string()),
            ScheduleFields {
                every: Some(every),
                anchor,
                ..
            } => Ok(Self::FixedRate { every, anchor }),
            ScheduleFields {
                after: Some(after), ..
            } => Ok(Self::FixedDelay { after }),
            ScheduleFields { at: Some(at), .. } => Ok(Self::Once { at }),
            ScheduleFields { startup: true, .. } => Ok(Self::Startup),
            ScheduleFields { manual: true, .. } => Ok(Self::Manual),
            _ => Err("a schedule has one of: cron, every, after, at, startup, manual".to_owned()),
        }
    }
}

/// The syntax of a cron expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// 6 or 7 fields that start with seconds; 1 is Sunday; `?`, `L`, `L-n`, `W`, `LW`, `nL`, `#` and wrap-around
    /// ranges.
    Quartz,
    /// 5 fields that start with minutes; 0 and 7 are Sunday; `@daily` and similar names.
    Unix,
}

/// The treatment of fire times around a change of the clocks.
///
/// Without a rule, expressions with a wildcard or step in the hour or minute field follow elapsed time. For all others,
/// a time that does not exist fires once at the end of the gap, and a time that happens twice fires once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DstRule {
    /// A time that does not exist does not fire; a time that happens twice fires once.
    Skip,
    /// A time that does not exist fires once at the end of the gap; a time that happens twice fires once.
    Once,
    /// A time that does not exist fires once at the end of the gap; a time that happens twice fires twice.
    Both,
}

impl Schedule {
    /// The first fire time strictly after `after`; `None` if there is none.
    ///
    /// For [`FixedDelay`](Self::FixedDelay) this is `after` plus the delay. Pass the end of the last run as `after`.
    /// [`Startup`](Self::Startup) and [`Manual`](Self::Manual) have no fire times.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron(cron) => cron.next_after(after),
            Self::FixedRate { every, anchor } => {
                let period = i64::try_from(every.as_millis()).ok().filter(|p| *p > 0)?;
                let anchor = anchor.unwrap_or_default().as_millis();
                let steps = after.as_millis().checked_sub(anchor)?.div_euclid(period) + 1;
                anchor
                    .checked_add(steps.checked_mul(period)?)
                    .map(Timestamp::from_millis)
            }
            Self::FixedDelay { after: delay } => Some(after.plus_ms(delay.as_millis())),
            Self::Once { at } => (*at > after).then_some(*at),
            Self::Startup | Self::Manual => None,
            Self::Several(schedules) => schedules
                .iter()
                .filter_map(|schedule| schedule.next_after(after))
                .min(),
        }
    }

    /// The single schedules that this one consists of.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Several(schedules) => schedules,
            one => std::slice::from_ref(one),
        }
    }

    /// The time zones that its fire times depend on.
    pub fn zones(&self) -> impl Iterator<Item = &str> {
        self.parts().iter().filter_map(|part| match part {
            Self::Cron(cron) => Some(cron.timezone()),
            _ => None,
        })
    }

    /// The first `n` fire times after `after`, or fewer if there are no more; at most [`MAX_PREVIEW`].
    ///
    /// For [`FixedDelay`](Self::FixedDelay) the result assumes that runs take no time.
    pub fn upcoming(&self, after: Timestamp, n: usize) -> Vec<Timestamp> {
        std::iter::successors(self.next_after(after), |last| self.next_after(*last))
            .take(n.min(MAX_PREVIEW))
            .collect()
    }
}
