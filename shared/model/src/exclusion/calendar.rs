//! Calendars: named sets of dates, weekdays and times that exclude.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::CalendarName;
use crate::schedule::Zone;
use crate::time::Timestamp;

/// The most dates, daily times and periods of one calendar together.
pub const MAX_CALENDAR_ENTRIES: usize = 10_000;

/// A calendar as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalendarSpec {
    /// The name, unique in its namespace. It is written as the namespace and the local name.
    #[serde(flatten, with = "crate::name::written")]
    pub name: CalendarName,
    /// Free text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The zone of dates, weekdays and daily times; UTC by default.
    #[serde(default = "Zone::utc")]
    pub timezone: Zone,
    /// Whole days.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dates: Vec<DateRule>,
    /// Whole days of each week.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weekdays: Vec<WeekdayName>,
    /// Times of each day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<DailyTime>,
    /// Single stretches of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub periods: Vec<Period>,
}

/// One or more days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DateRule {
    /// One day, `2026-12-25`.
    Day(Date),
    /// The first to the last day, `2026-12-24/2027-01-01`.
    Days(Date, Date),
    /// A month and a day of each year, `12-25`.
    Yearly(i8, i8),
}

/// Why a text is not a date of a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DateRuleError {
    /// The text has another form.
    #[error(
        "a day such as 2026-12-25, several such as 2026-12-24/2027-01-01, or a day of each year such as 12-25 is expected"
    )]
    Form,
    /// The last day is before the first.
    #[error("the last day is before the first; FIRST/LAST is expected")]
    Reversed,
}

impl FromStr for DateRule {
    type Err = DateRuleError;

    fn from_str(text: &str) -> Result<Self, DateRuleError> {
        let date = |text: &str| {
            // jiff accepts further forms, such as a time after the date.
            let has_form = text.len() == 10 && text.is_ascii();
            let parsed = has_form.then(|| text.parse::<Date>().ok()).flatten();
            parsed.ok_or(DateRuleError::Form)
        };
        if let Some((first, last)) = text.split_once('/') {
            let (first, last) = (date(first)?, date(last)?);
            return if last < first {
                Err(DateRuleError::Reversed)
            } else {
                Ok(Self::Days(first, last))
            };
        }
        if text.len() == 5 {
            // A leap year, so that 02-29 is accepted.
            let day = date(&format!("2024-{text}"))?;
            return Ok(Self::Yearly(day.month(), day.day()));
        }
        date(text).map(Self::Day)
    }
}

impl fmt::Display for DateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Day(day) => write!(f, "{day}"),
            Self::Days(first, last) => write!(f, "{first}/{last}"),
            Self::Yearly(month, day) => write!(f, "{month:02}-{day:02}"),
        }
    }
}

impl Serialize for DateRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DateRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum WeekdayName {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl WeekdayName {
    /// All days with their names, from Monday.
    pub const ALL: [(&'static str, Self); 7] = [
        ("mon", Self::Mon),
        ("tue", Self::Tue),
        ("wed", Self::Wed),
        ("thu", Self::Thu),
        ("fri", Self::Fri),
        ("sat", Self::Sat),
        ("sun", Self::Sun),
    ];

    fn of(day: Weekday) -> Self {
        match day {
            Weekday::Monday => Self::Mon,
            Weekday::Tuesday => Self::Tue,
            Weekday::Wednesday => Self::Wed,
            Weekday::Thursday => Self::Thu,
            Weekday::Friday => Self::Fri,
            Weekday::Saturday => Self::Sat,
            Weekday::Sunday => Self::Sun,
        }
    }
}

/// A time of day in minutes, from `00:00` to `24:00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    const DAY_MIN: u16 = 24 * 60;

    fn on(self, day: Date) -> Option<DateTime> {
        if self.0 >= Self::DAY_MIN {
            return Some(day.tomorrow().ok()?.to_datetime(Time::midnight()));
        }
        let (hour, minute) = (self.0 / 60, self.0 % 60);
        let time = Time::new(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, 0, 0).ok()?;
        Some(day.to_datetime(time))
    }
}

impl FromStr for TimeOfDay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || "a time of day from 00:00 to 24:00 is expected".to_owned();
        let (hour, minute) = text.split_once(':').ok_or_else(error)?;
        let number = |part: &str| match part.as_bytes() {
            [a, b] if a.is_ascii_digit() && b.is_ascii_digit() => {
                Ok(u16::from(a - b'0') * 10 + u16::from(b - b'0'))
            }
            _ => Err(error()),
        };
        let (hour, minute) = (number(hour)?, number(minute)?);
        let minutes = hour * 60 + minute;
        if minute > 59 || minutes > Self::DAY_MIN {
            return Err(error());
        }
        Ok(Self(minutes))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl Serialize for TimeOfDay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A time of each day, or of some days of the week. It ends on the next day if `to` is not after `from`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DailyTime {
    /// The first minute.
    pub from: TimeOfDay,
    /// The first minute after it.
    pub to: TimeOfDay,
    /// The days on which it begins; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weekdays: Vec<WeekdayName>,
}

impl DailyTime {
    /// The end of the time that begins on `day`, if it covers the instant.
    fn covers_until(&self, day: Date, at: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let begins =
            self.weekdays.is_empty() || self.weekdays.contains(&WeekdayName::of(day.weekday()));
        if !begins {
            return None;
        }
        let last_day = if self.to > self.from {
            day
        } else {
            day.tomorrow().ok()?
        };
        let start = instant(self.from.on(day)?, zone)?;
        let end = instant(self.to.on(last_day)?, zone)?;
        (start <= at && at < end).then_some(end)
    }
}

/// A single stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Period {
    /// The first instant.
    #[serde(with = "instant_text")]
    pub start: Timestamp,
    /// The first instant after it.
    #[serde(with = "instant_text")]
    pub end: Timestamp,
}

/// Writes an instant as RFC 3339 text.
pub(super) mod instant_text {
    use serde::{Deserializer, Serializer};

    use crate::time::{Timestamp, rfc3339};

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature that serde asks for"
    )]
    pub(in crate::exclusion) fn serialize<S: Serializer>(
        at: &Timestamp,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        rfc3339::serialize(&Some(*at), serializer)
    }

    pub(in crate::exclusion) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Timestamp, D::Error> {
        let at = rfc3339::deserialize(deserializer)?;
        at.ok_or_else(|| serde::de::Error::custom("an instant is expected"))
    }
}

/// A calendar, prepared for look-ups.
#[derive(Debug, Clone)]
pub struct Calendar {
    /// As written.
    pub spec: CalendarSpec,
    /// Counts the changes of the calendar, from 1.
    pub version: i64,
    /// First and last day of each stretch of days, sorted, without overlaps.
    days: Vec<(Date, Date)>,
    yearly: BTreeSet<(i8, i8)>,
    /// Sorted, without overlaps.
    periods: Vec<(Timestamp, Timestamp)>,
}

/// Two calendars are equal if they are written equally in the same version.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.spec == other.spec
    }
}

impl Calendar {
    /// Prepares a calendar.
    pub fn new(spec: CalendarSpec, version: i64) -> Self {
        let mut days = Vec::new();
        let mut yearly = BTreeSet::new();
        for rule in &spec.dates {
            match *rule {
                DateRule::Day(day) => days.push((day, day)),
                DateRule::Days(first, last) => days.push((first, last)),
                DateRule::Yearly(month, day) => {
                    yearly.insert((month, day));
                }
            }
        }
        let periods = spec.periods.iter().map(|p| (p.start, p.end)).collect();
        Self {
            days: merged(days),
            yearly,
            periods: merged(periods),
            spec,
            version,
        }
    }

    /// If the calendar excludes the instant, the end of that exclusion. Another one may begin there.
    pub fn excludes_until(&self, at: Timestamp) -> Option<Timestamp> {
        let period = stretch_at(&self.periods, at).filter(|end| at < *end);
        let local = self.local_until(at);
        period.max(local)
    }

    fn local_until(&self, at: Timestamp) -> Option<Timestamp> {
        let CalendarSpec {
            weekdays, times, ..
        } = &self.spec;
        let has_days = !(self.days.is_empty() && self.yearly.is_empty() && weekdays.is_empty());
        if !has_days && times.is_empty() {
            return None;
        }
        let zone = self.spec.timezone.rules();
        let instant_of = jiff::Timestamp::from_millisecond(at.as_millis()).ok()?;
        let day = zone.to_datetime(instant_of).date();
        let last_day = if has_days {
            self.last_excluded_day(day)
        } else {
            None
        };
        let whole_days = last_day.and_then(|last| {
            let next = last.tomorrow().ok()?;
            instant(next.to_datetime(Time::midnight()), &zone)
        });
        let daily = times.iter().flat_map(|time| {
            let yesterday = day.yesterday().ok();
            let days = [Some(day), yesterday].into_iter().flatten();
            days.filter_map(|day| time.covers_until(day, at, &zone))
        });
        whole_days.into_iter().chain(daily).max()
    }

    /// The last day of the longest stretch of excluded days that one rule of the calendar begins or continues at `day`.
    fn last_excluded_day(&self, day: Date) -> Option<Date> {
        let of_days = stretch_at(&self.days, day).filter(|last| day <= *last);
        let is_alone = self.yearly.contains(&(day.month(), day.day()))
            || self.spec.weekdays.contains(&WeekdayName::of(day.weekday()));
        of_days.max(is_alone.then_some(day))
    }
}

/// The end of the last stretch that begins at or before `at`.
fn stretch_at<T: Copy + PartialOrd>(stretches: &[(T, T)], at: T) -> Option<T> {
    let after = stretches.partition_point(|(start, _)| *start <= at);
    let (_, end) = stretches.get(after.checked_sub(1)?)?;
    Some(*end)
}

/// The stretches sorted and without overlaps.
fn merged<T: Copy + Ord>(mut stretches: Vec<(T, T)>) -> Vec<(T, T)> {
    stretches.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::with_capacity(stretches.len());
    for (start, end) in stretches {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// The instant of a local time. One that a change of the clocks skips is that much later, and of one that happens twice, it
/// is the first.
fn instant(local: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    let at = zone.to_ambiguous_timestamp(local).compatible().ok()?;
    Some(Timestamp::from_millis(at.as_millisecond()))
}
