//! The grammar of the two dialects: the fields of an expression, and their allowed combinations.

use super::field::{Field, items, month_day_item, quoted, week_day_item};
use super::pattern::{Days, Pattern};
use crate::nearest::nearest;
use crate::schedule::Dialect;

/// A parsed expression.
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

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Parses an expression.
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

/// The expression that a name such as `@daily` stands for.
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
    // A field that starts with `*` counts as unrestricted, even `*/2`, as in Vixie cron and its descendants.
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
    check_day_fields(month_day, week_day)?;
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
        years: year.map(years).transpose()?.flatten(),
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
    Ok(Read {
        dialect: Dialect::Quartz,
        follows_elapsed_time: has_wildcard_or_step(minute) || has_wildcard_or_step(hour),
        pattern,
    })
}

/// Quartz needs one of the two day fields, and `?` or `*` in the other. `?` is never part of a list.
fn check_day_fields(month_day: &str, week_day: &str) -> Result<(), String> {
    for (name, text) in [("day-of-month", month_day), ("day-of-week", week_day)] {
        if text.contains('?') && text != "?" {
            return Err(format!(
                "{name} {} is not understood; '?' stands alone",
                quoted(text)
            ));
        }
    }
    match (month_day, week_day) {
        ("?", "?") => Err(
            "'?' is given for day-of-month and for day-of-week; one of them must say a day"
                .to_owned(),
        ),
        ("?" | "*", _) | (_, "?" | "*") => Ok(()),
        _ => Err(
            "day-of-month and day-of-week are both given; quartz expects '?' in one of them"
                .to_owned(),
        ),
    }
}

/// The years that a year field selects; `None` for every year.
fn years(text: &str) -> Result<Option<Vec<i16>>, String> {
    if text == "*" {
        return Ok(None);
    }
    let field = Field {
        name: "year",
        min: 1970,
        max: 2099,
        names: &[],
        quartz: true,
    };
    let mut years = Vec::new();
    for item in items(field, text)? {
        field.item(item, |value| years.extend(i16::try_from(value)))?;
    }
    years.sort_unstable();
    years.dedup();
    Ok(Some(years))
}
