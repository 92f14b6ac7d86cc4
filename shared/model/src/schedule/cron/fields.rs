//! The grammar of the two dialects, and what to say about a text that does not follow it.

use super::pattern::{Days, MonthDay, Pattern, WeekDay};
use crate::nearest::nearest;
use crate::schedule::Dialect;

/// An expression that was read.
pub(super) struct Read {
    pub(super) pattern: Pattern,
    pub(super) dialect: Dialect,
    /// Whether the hour or minute field has a wildcard or step.
    pub(super) follows_elapsed_time: bool,
}

const UNIX_FIELDS: &str = "minute hour day-of-month month day-of-week";
const QUARTZ_FIELDS: &str = "second minute hour day-of-month month day-of-week [year]";
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// One field: what it is called, its range, the names of its values.
#[derive(Clone, Copy)]
struct Field {
    name: &'static str,
    min: u16,
    max: u16,
    names: &'static [&'static str],
    /// Ranges may go past the end and on from the start, `?` may stand in day fields.
    quartz: bool,
}

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Reads an expression.
pub(super) fn read(expression: &str, dialect: Option<Dialect>) -> Result<Read, String> {
    let text = expression.trim();
    let text = match nickname(text, dialect) {
        Some(result) => result?,
        None => text,
    };
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let dialect = dialect.unwrap_or(match fields.len() {
        6 | 7 => Dialect::Quartz,
        _ => Dialect::Unix,
    });
    match (dialect, &fields[..]) {
        (Dialect::Unix, [minute, hour, month_day, month, week_day]) => {
            unix([*minute, *hour, *month_day, *month, *week_day])
        }
        (Dialect::Quartz, [second, minute, hour, month_day, month, week_day, year @ ..])
            if year.len() < 2 =>
        {
            quartz(
                [*second, *minute, *hour, *month_day, *month, *week_day],
                year.first().copied(),
            )
        }
        (Dialect::Quartz, _) => Err(format!(
            "{} fields given; quartz has 6 or 7: {QUARTZ_FIELDS}",
            fields.len()
        )),
        (Dialect::Unix, _) => Err(format!(
            "{} fields given; unix cron has 5: {UNIX_FIELDS} (quartz has 6 or 7: {QUARTZ_FIELDS})",
            fields.len()
        )),
    }
}

/// The expression that `@daily` and the like stand for.
fn nickname(text: &str, dialect: Option<Dialect>) -> Option<Result<&'static str, String>> {
    if !text.starts_with('@') {
        return None;
    }
    if let Some((_, expression)) = NICKNAMES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
    {
        return Some(if dialect == Some(Dialect::Quartz) {
            Err(format!(
                "{text} is unix cron's; quartz has 6 or 7 fields: {QUARTZ_FIELDS}"
            ))
        } else {
            Ok(expression)
        });
    }
    let word = text.split_ascii_whitespace().next().unwrap_or(text);
    let names = NICKNAMES.map(|(name, _)| name);
    Some(Err(match word.to_ascii_lowercase().as_str() {
        "@reboot" => "@reboot is no time; use { startup = true }".to_owned(),
        "@every" => "@every is no time; use { every = \"10s\" }".to_owned(),
        lower => {
            let hint = nearest(lower, names.into_iter())
                .map_or_else(String::new, |near| format!("; did you mean {near}?"));
            let shown: String = word.chars().take(40).collect();
            format!("unknown name {shown:?}{hint} ({})", names.join(", "))
        }
    }))
}

fn has_wildcard_or_step(field: &str) -> bool {
    field.contains(['*', '/', '?'])
}

fn unix([minute, hour, month_day, month, week_day]: [&str; 5]) -> Result<Read, String> {
    let field = |name, min, max, names| Field {
        name,
        min,
        max,
        names,
        quartz: false,
    };
    let week_days = field("day-of-week", 0, 7, &WEEKDAYS).bits(week_day)?;
    // A field that starts with `*` counts as unrestricted, `*/2` too, as in Vixie cron and its children.
    let restricted = |field: &str| !field.starts_with('*');
    Ok(Read {
        dialect: Dialect::Unix,
        follows_elapsed_time: has_wildcard_or_step(minute) || has_wildcard_or_step(hour),
        pattern: Pattern {
            seconds: 1,
            minutes: field("minute", 0, 59, &[]).bits(minute)?,
            hours: field("hour", 0, 23, &[]).bits(hour)?,
            month_days: field("day-of-month", 1, 31, &[]).bits(month_day)?,
            special_month_days: Vec::new(),
            months: field("month", 1, 12, &MONTHS).bits(month)?,
            week_days: (week_days | week_days >> 7) & 0x7f,
            special_week_days: Vec::new(),
            days: if restricted(month_day) && restricted(week_day) {
                Days::Either
            } else {
                Days::Both
            },
            years: None,
        },
    })
}

fn quartz(
    [second, minute, hour, month_day, month, week_day]: [&str; 6],
    year: Option<&str>,
) -> Result<Read, String> {
    let field = |name, min, max, names| Field {
        name,
        min,
        max,
        names,
        quartz: true,
    };
    match (month_day, week_day) {
        ("?", "?") => {
            return Err(
                "'?' is given for day-of-month and for day-of-week; one of them must say a day"
                    .to_owned(),
            );
        }
        ("?" | "*", _) | (_, "?" | "*") => {}
        _ => {
            return Err(
                "day-of-month and day-of-week are both given; quartz expects '?' in one of them"
                    .to_owned(),
            );
        }
    }
    let mut pattern = Pattern {
        seconds: field("second", 0, 59, &[]).bits(second)?,
        minutes: field("minute", 0, 59, &[]).bits(minute)?,
        hours: field("hour", 0, 23, &[]).bits(hour)?,
        month_days: 0,
        special_month_days: Vec::new(),
        months: field("month", 1, 12, &MONTHS).bits(month)?,
        week_days: 0,
        special_week_days: Vec::new(),
        days: Days::Both,
        years: None,
    };
    let days = field("day-of-month", 1, 31, &[]);
    for item in items(days, month_day)? {
        match month_day_item(days, item)? {
            Some(special) => pattern.special_month_days.push(special),
            None => pattern.month_days |= days.item_bits(item)?,
        }
    }
    let weekdays = field("day-of-week", 1, 7, &WEEKDAYS);
    for item in items(weekdays, week_day)? {
        match week_day_item(weekdays, item)? {
            Some(special) => pattern.special_week_days.push(special),
            None => pattern.week_days |= weekdays.item_bits(item)? >> 1,
        }
    }
    if let Some(year) = year.filter(|year| *year != "*") {
        let field = field("year", 1970, 2099, &[]);
        let mut years = Vec::new();
        for item in items(field, year)? {
            field.item(item, |value| years.extend(i16::try_from(value)))?;
        }
        years.sort_unstable();
        years.dedup();
        pattern.years = Some(years);
    }
    Ok(Read {
        dialect: Dialect::Quartz,
        follows_elapsed_time: has_wildcard_or_step(minute) || has_wildcard_or_step(hour),
        pattern,
    })
}

fn items(field: Field, text: &str) -> Result<impl Iterator<Item = &str>, String> {
    if text.split(',').any(str::is_empty) {
        return Err(format!(
            "{} {} has an empty place",
            field.name,
            quoted(text)
        ));
    }
    Ok(text.split(','))
}

fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(40).collect();
    format!("{shown:?}")
}

/// `L`, `L-3`, `15W`, `LW`, `L-3W`; `None` for anything else.
fn month_day_item(field: Field, item: &str) -> Result<Option<MonthDay>, String> {
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

/// `L` (Saturday), `6L`, `FRI#3`; `None` for anything else. Numbers count from 1 for Sunday.
fn week_day_item(field: Field, item: &str) -> Result<Option<WeekDay>, String> {
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
    fn bits(self, text: &str) -> Result<u64, String> {
        items(self, text)?.try_fold(0, |bits, item| Ok(bits | self.item_bits(item)?))
    }

    fn item_bits(self, item: &str) -> Result<u64, String> {
        let mut bits = 0;
        self.item(item, |value| bits |= 1 << value)?;
        Ok(bits)
    }

    /// Whether this is one of the two day fields, which alone take `?`, `L`, `W` and `#`.
    fn is_day(self) -> bool {
        self.name.starts_with("day-of-")
    }

    /// Hands each value of `*`, `5`, `1-5`, `*/10`, `1-30/10`, `5/10` to `take`.
    fn item(self, item: &str, mut take: impl FnMut(u16)) -> Result<(), String> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(self.step(item, step)?)),
            None => (item, None),
        };
        // A weekday field that allows 0 and 7 for Sunday ends at Saturday by default.
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
                    (value, step.map_or(value, |_| top.max(value)))
                }
            }
        };
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

    /// One number or name.
    fn value(self, text: &str) -> Result<u16, String> {
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
