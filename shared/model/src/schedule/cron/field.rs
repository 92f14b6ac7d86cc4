//! One field of a cron expression: its range, its names, and the values that a text selects.

use super::pattern::{MonthDay, WeekDay};
use crate::nearest::nearest;

/// The definition of a field.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) min: u16,
    pub(super) max: u16,
    pub(super) names: &'static [&'static str],
    /// Whether the dialect is Quartz: ranges may wrap around, and day fields may contain `?`.
    pub(super) quartz: bool,
}

pub(super) fn items(field: Field, text: &str) -> Result<impl Iterator<Item = &str>, String> {
    if text.split(',').any(str::is_empty) {
        return Err(format!(
            "{} {} has an empty place",
            field.name,
            quoted(text)
        ));
    }
    Ok(text.split(','))
}

pub(super) fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(40).collect();
    format!("{shown:?}")
}

/// Parses `L`, `L-3`, `15W`, `LW` or `L-3W`; `None` for anything else.
pub(super) fn month_day_item(field: Field, item: &str) -> Result<Option<MonthDay>, String> {
    let upper = item.to_ascii_uppercase();
    let (day, weekday) = match upper.strip_suffix('W') {
        Some(day) => (day, true),
        None => (upper.as_str(), false),
    };
    if let Some(rest) = day.strip_prefix('L') {
        let before = match rest.strip_prefix('-') {
            None if rest.is_empty() => Some(0),
            None => None,
            Some(n) => n.parse::<u8>().ok().filter(|n| *n <= 30),
        };
        let Some(before) = before else {
            return Err(format!(
                "day-of-month {} is not understood; L, L-3, LW or L-3W is expected, with 0–30 after the '-'",
                quoted(item)
            ));
        };
        return Ok(Some(if weekday {
            MonthDay::NearestWeekdayBeforeLast(before)
        } else {
            MonthDay::BeforeLast(before)
        }));
    }
    if !weekday {
        return Ok(None);
    }
    let day = field.value(day)?;
    Ok(u8::try_from(day).ok().map(MonthDay::NearestWeekday))
}

/// Parses `L` (Saturday), `6L` or `FRI#3`; `None` for anything else. Numbers start with 1 for Sunday.
pub(super) fn week_day_item(field: Field, item: &str) -> Result<Option<WeekDay>, String> {
    let zero_based = |text: &str| {
        let value = field.value(text)?;
        u8::try_from(value - 1).map_err(|error| error.to_string())
    };
    if let Some((weekday, n)) = item.split_once('#') {
        let n = n.parse::<u8>().ok().filter(|n| (1..=5).contains(n));
        let Some(n) = n else {
            return Err(format!(
                "day-of-week {} is not understood; a number 1–5 is expected after '#'",
                quoted(item)
            ));
        };
        return Ok(Some(WeekDay::Nth(zero_based(weekday)?, n)));
    }
    match item.strip_suffix(['L', 'l']) {
        Some(weekday) if !weekday.is_empty() => Ok(Some(WeekDay::Last(zero_based(weekday)?))),
        _ => Ok(None),
    }
}

impl Field {
    /// The values of the whole field as bits.
    pub(super) fn bits(self, text: &str) -> Result<u64, String> {
        items(self, text)?.try_fold(0, |bits, item| Ok(bits | self.item_bits(item)?))
    }

    pub(super) fn item_bits(self, item: &str) -> Result<u64, String> {
        let mut bits = 0;
        self.item(item, |value| bits |= 1 << value)?;
        Ok(bits)
    }

    /// Whether this is one of the two day fields. Only these allow `?`, `L`, `W` and `#`.
    fn is_day(self) -> bool {
        self.name.starts_with("day-of-")
    }

    /// Passes each value of `*`, `5`, `1-5`, `*/10`, `1-30/10` or `5/10` to `take`.
    pub(super) fn item(self, item: &str, mut take: impl FnMut(u16)) -> Result<(), String> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(self.step(item, step)?)),
            None => (item, None),
        };
        // A weekday field that allows both 0 and 7 for Sunday ends with Saturday by default.
        let top = if self.max == 7 && self.min == 0 {
            6
        } else {
            self.max
        };
        let (low, high) = match range {
            "*" => (self.min, top),
            "" if self.quartz && step.is_some() => (self.min, top),
            "?" if self.quartz && self.is_day() && step.is_none() => (self.min, top),
            "L" | "l" if self.quartz && self.is_day() && step.is_none() => (self.max, self.max),
            _ => {
                if let Some((low, high)) = range.split_once('-') {
                    self.range(item, low, high)?
                } else {
                    let value = self.value(range)?;
                    // `5/10` continues to the end of the field; `5` alone selects one value.
                    (value, step.map_or(value, |_| top.max(value)))
                }
            }
        };
        // A wrap-around range counts past the end of the field. Values past the end are mapped back to its start.
        let size = top - self.min + 1;
        let last = if low <= high { high } else { high + size };
        for value in (low..=last).step_by(step.unwrap_or(1).into()) {
            take(if value > self.max {
                value - size
            } else {
                value
            });
        }
        Ok(())
    }

    fn range(self, item: &str, low: &str, high: &str) -> Result<(u16, u16), String> {
        let low_value = self.value(low)?;
        let mut high_value = self.value(high)?;
        // `fri-sun`: Sunday is 7 at the end of a range.
        if self.max == 7 && self.min == 0 && high_value == 0 && low_value > 0 {
            high_value = 7;
        }
        // Years cannot wrap around; only their field ends above 100.
        if low_value > high_value && !(self.quartz && self.max < 100) {
            return Err(format!(
                "{} range {} goes backwards; write {low}-{},{}-{high}",
                self.name,
                quoted(item),
                self.max,
                self.min
            ));
        }
        Ok((low_value, high_value))
    }

    fn step(self, item: &str, step: &str) -> Result<u16, String> {
        let most = if self.max == 7 {
            7
        } else {
            self.max - self.min + 1
        };
        step.parse::<u16>()
            .ok()
            .filter(|step| (1..=most).contains(step))
            .ok_or_else(|| {
                format!(
                    "{} {}: step {} is out of range 1–{most}",
                    self.name,
                    quoted(item),
                    quoted(step)
                )
            })
    }

    /// Parses one number or name.
    pub(super) fn value(self, text: &str) -> Result<u16, String> {
        let Self { name, min, max, .. } = self;
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text
                .parse::<u16>()
                .ok()
                .filter(|n| (min..=max).contains(n))
                .ok_or_else(|| {
                    let shown: String = text.chars().take(20).collect();
                    format!("{name} {shown} is out of range {min}–{max}")
                });
        }
        if let Some(index) = self.names.iter().position(|n| n.eq_ignore_ascii_case(text)) {
            return u16::try_from(index)
                .map(|index| index + min)
                .map_err(|error| error.to_string());
        }
        let names = match (self.names.first(), self.names.last()) {
            (Some(first), Some(last)) => format!(" or {first}–{last}"),
            _ => String::new(),
        };
        let hint = match (text, nearest(text, self.names.iter().copied())) {
            ("?", _) if self.quartz => " ('?' is for day-of-month and day-of-week only)".to_owned(),
            ("?", _) => " ('?' is quartz; write '*')".to_owned(),
            (_, Some(near)) => format!("; did you mean {near}?"),
            (_, None) => String::new(),
        };
        Err(format!(
            "{name} {} is not understood; {min}–{max}{names} is expected{hint}",
            quoted(text)
        ))
    }
}
