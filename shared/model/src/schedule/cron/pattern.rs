//! The matches of an expression on a calendar without clock changes.
//!
//! Times here are naive: seconds since 1970-01-01T00:00:00 on a wall clock that never changes. Each field is a set of
//! bits. The days of one month are computed as one such set, so a search takes one step per month and not per day.

use jiff::civil::Date;
use jiff::tz::Offset;

/// A search ends after this number of years. The rarest existing date is a 29 February on a given weekday around a
/// century without a leap day. It takes 40 years.
pub(super) const HORIZON_YEARS: i16 = 100;

/// A day of the month that depends on the month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MonthDay {
    /// This number of days before the last day of the month (`L`, `L-3`).
    BeforeLast(u8),
    /// The weekday nearest to a day, in the same month (`15W`).
    NearestWeekday(u8),
    /// The weekday nearest to the day this number of days before the last one (`LW`, `L-3W`).
    NearestWeekdayBeforeLast(u8),
}

/// A weekday in a certain week of the month; 0 is Sunday.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeekDay {
    /// The last such weekday (`6L`).
    Last(u8),
    /// The n-th such weekday, from 1 (`6#3`).
    Nth(u8, u8),
}

/// How day-of-month and day-of-week are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Days {
    /// Both must match. An unrestricted field always does.
    Both,
    /// One match is enough (Unix cron, if both are restricted).
    Either,
}

/// A compiled expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Bits 0–59.
    pub(super) seconds: u64,
    /// Bits 0–59.
    pub(super) minutes: u64,
    /// Bits 0–23.
    pub(super) hours: u64,
    /// Bits 1–31.
    pub(super) month_days: u64,
    /// Days of the month in addition to `month_days`.
    pub(super) special_month_days: Vec<MonthDay>,
    /// Bits 1–12.
    pub(super) months: u64,
    /// Bits 0–6; 0 is Sunday.
    pub(super) week_days: u64,
    /// Weekdays in addition to `week_days`.
    pub(super) special_week_days: Vec<WeekDay>,
    /// How the two day fields are combined.
    pub(super) days: Days,
    /// The years, ascending; `None` for all.
    pub(super) years: Option<Vec<i16>>,
}

/// The lowest bit of `bits` that is at least `from`.
fn bit_from(bits: u64, from: u32) -> Option<u32> {
    let rest = bits.checked_shr(from)?;
    (rest != 0).then(|| from + rest.trailing_zeros())
}

/// The weekday (Monday to Friday) nearest to `day` in the same month. `first` is the weekday of the 1st.
fn nearest_weekday(day: u32, length: u32, first: u32) -> u32 {
    match (first + day - 1) % 7 {
        6 if day > 1 => day - 1,
        6 => day + 2,
        0 if day < length => day + 1,
        0 => day - 2,
        _ => day,
    }
}

impl Pattern {
    /// The first match at or after the naive second `from`.
    pub(super) fn next(&self, from: i64) -> Option<i64> {
        let start = Offset::UTC.to_datetime(jiff::Timestamp::from_second(from).ok()?);
        let [day, hour, minute, second] =
            [start.day(), start.hour(), start.minute(), start.second()]
                .map(|n| u32::from(n.unsigned_abs()));
        let midnight = from - i64::from(hour * 3_600 + minute * 60 + second);
        let mut date = start.date().first_of_month();
        let days = self.days_of(date);
        // The first day may still have a matching time at or after `from`. Every later day starts at its first time.
        if days >> day & 1 == 1
            && let Some(time) = self.time_from(hour, minute, second)
        {
            return Some(midnight + time);
        }
        let first_time = self.time_from(0, 0, 0)?;
        let mut later = bit_from(days, day + 1);
        let mut month_start = midnight - i64::from(day - 1) * 86_400;
        for _ in 0..i32::from(HORIZON_YEARS) * 12 {
            if let Some(day) = later {
                return Some(month_start + i64::from(day - 1) * 86_400 + first_time);
            }
            month_start += i64::from(date.days_in_month()) * 86_400;
            date = match date.month() {
                12 => Date::new(date.year().checked_add(1)?, 1, 1).ok()?,
                month => Date::new(date.year(), month + 1, 1).ok()?,
            };
            later = bit_from(self.days_of(date), 1);
        }
        None
    }

    /// Whether no date matches, whatever the year.
    pub(super) fn is_impossible(&self) -> bool {
        let any_year = Self {
            years: None,
            ..self.clone()
        };
        any_year.next(0).is_none()
    }

    /// The first time of day at or after the given one, in seconds.
    fn time_from(&self, hour: u32, minute: u32, second: u32) -> Option<i64> {
        let at = |h: u32, m: u32, s: u32| Some(i64::from(h * 3_600 + m * 60 + s));
        let (first_minute, first_second) = (bit_from(self.minutes, 0)?, bit_from(self.seconds, 0)?);
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = bit_from(self.seconds, second)
            {
                return at(hour, minute, second);
            }
            if let Some(minute) = bit_from(self.minutes, minute + 1) {
                return at(hour, minute, first_second);
            }
        }
        at(bit_from(self.hours, hour + 1)?, first_minute, first_second)
    }

    /// The matching days of the month that starts with `first`, as bits 1–31.
    fn days_of(&self, first: Date) -> u64 {
        if self.months >> first.month() & 1 == 0 {
            return 0;
        }
        if let Some(years) = &self.years
            && years.binary_search(&first.year()).is_err()
        {
            return 0;
        }
        let length = u32::from(first.days_in_month().unsigned_abs());
        let starts_on = u32::from(first.weekday().to_sunday_zero_offset().unsigned_abs());
        let by_month = self.by_month_day(length, starts_on);
        let by_week = self.by_week_day(length, starts_on);
        let days = match self.days {
            Days::Both => by_month & by_week,
            Days::Either => by_month | by_week,
        };
        // Keep bits 1 to `length`: 31 or a fifth weekday may not exist in this month.
        days & ((2 << length) - 2)
    }

    fn by_month_day(&self, length: u32, starts_on: u32) -> u64 {
        let mut days = self.month_days;
        for special in &self.special_month_days {
            let day = match *special {
                MonthDay::BeforeLast(n) => length.checked_sub(n.into()),
                MonthDay::NearestWeekday(day) => Some(u32::from(day))
                    .filter(|day| *day <= length)
                    .map(|day| nearest_weekday(day, length, starts_on)),
                MonthDay::NearestWeekdayBeforeLast(n) => length
                    .checked_sub(n.into())
                    .filter(|day| *day > 0)
                    .map(|day| nearest_weekday(day, length, starts_on)),
            };
            days |= day.map_or(0, |day| 1 << day);
        }
        days
    }

    fn by_week_day(&self, length: u32, starts_on: u32) -> u64 {
        /// One bit in seven: the days of one weekday, once shifted to its first day.
        const WEEKLY: u64 = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28;
        const ALL_WEEK: u64 = 0x7f;
        // All weekdays match every day. `days_of` cuts the bits to the month.
        if self.week_days == ALL_WEEK {
            return u64::MAX;
        }
        let first_of = |weekday: u32| 1 + (weekday + 7 - starts_on) % 7;
        let mut days = 0;
        let mut rest = self.week_days;
        while rest != 0 {
            days |= WEEKLY << first_of(rest.trailing_zeros());
            // Clears the lowest set bit.
            rest &= rest - 1;
        }
        for special in &self.special_week_days {
            let day = match *special {
                WeekDay::Nth(weekday, n) => first_of(weekday.into()) + 7 * (u32::from(n) - 1),
                WeekDay::Last(weekday) => {
                    let first = first_of(weekday.into());
                    first + (length - first) / 7 * 7
                }
            };
            days |= 1 << day;
        }
        days
    }
}
