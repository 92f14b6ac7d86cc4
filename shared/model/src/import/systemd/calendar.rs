//! Calendar events of `systemd.time(7)` as cron expressions.

use crate::time::Timestamp;

/// A calendar event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Calendar {
    /// An expression in the Quartz dialect, and its time zone if the event names one.
    Cron {
        expression: String,
        timezone: Option<String>,
    },
    /// One instant (`@1735689600`).
    Once(Timestamp),
}

const SHORTHANDS: [(&str, &str); 11] = [
    ("minutely", "*-*-* *:*:00"),
    ("hourly", "*-*-* *:00:00"),
    ("daily", "*-*-* 00:00:00"),
    ("monthly", "*-*-01 00:00:00"),
    ("weekly", "Mon *-*-* 00:00:00"),
    ("yearly", "*-01-01 00:00:00"),
    ("annually", "*-01-01 00:00:00"),
    ("quarterly", "*-01,04,07,10-01 00:00:00"),
    ("semiannually", "*-01,07-01 00:00:00"),
    ("semi-annually", "*-01,07-01 00:00:00"),
    ("biannually", "*-01,07-01 00:00:00"),
];

/// Monday first, as in systemd.
const WEEKDAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];
const QUARTZ_WEEKDAYS: [&str; 7] = ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"];

/// Reads a calendar event, or says why it has no cron expression.
pub(super) fn read(text: &str) -> Result<Calendar, String> {
    if let Some(seconds) = text.strip_prefix('@') {
        let seconds = seconds.parse::<i64>().ok();
        return seconds
            .and_then(|s| s.checked_mul(1_000))
            .map(|ms| Calendar::Once(Timestamp::from_millis(ms)))
            .ok_or_else(|| {
                format!("{text:?}: a number of seconds since 1970 is expected after '@'")
            });
    }
    let (text, timezone) = split_zone(text);
    let lower = text.to_ascii_lowercase();
    let text = SHORTHANDS
        .iter()
        .find(|(name, _)| *name == lower)
        .map_or(text, |(_, long)| *long);
    let parts = Parts::split(text)?;
    Ok(Calendar::Cron {
        expression: parts.expression()?,
        timezone: timezone.map(str::to_owned),
    })
}

/// Splits off a time zone: the last of several words, if it starts with a letter and is no weekday.
fn split_zone(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(' ') {
        Some((rest, last))
            if last.starts_with(|c: char| c.is_ascii_alphabetic()) && weekdays(last).is_err() =>
        {
            (rest.trim_end(), Some(last))
        }
        _ => (text, None),
    }
}

/// The words of a calendar event.
struct Parts<'t> {
    weekdays: [bool; 7],
    date: &'t str,
    time: &'t str,
}

impl<'t> Parts<'t> {
    fn split(text: &'t str) -> Result<Self, String> {
        let mut parts = Self {
            weekdays: [true; 7],
            date: "*-*-*",
            time: "00:00:00",
        };
        let mut words = text.split_whitespace().peekable();
        let mut found = false;
        if let Some(word) = words.next_if(|w| w.starts_with(|c: char| c.is_ascii_alphabetic())) {
            parts.weekdays = weekdays(word.trim_end_matches(','))?;
            found = true;
        }
        if let Some(date) = words.next_if(|word| word.contains(['-', '~'])) {
            parts.date = date;
            found = true;
        }
        if let Some(time) = words.next_if(|word| word.contains(':')) {
            parts.time = time;
            found = true;
        }
        match words.next() {
            None if found => Ok(parts),
            _ => Err(format!(
                "{text:?} is no calendar event of systemd; a form such as \"Mon..Fri *-*-* 08:00:00\", or \"daily\", is expected"
            )),
        }
    }

    fn expression(&self) -> Result<String, String> {
        let (second, minute, hour) = self.time()?;
        let (year, month, day) = self.date()?;
        let (month_day, week_day) = days(&day, self.weekdays)?;
        let mut expression = format!("{second} {minute} {hour} {month_day} {month} {week_day}");
        if year != "*" {
            expression.push(' ');
            expression.push_str(&year);
        }
        Ok(expression)
    }

    fn time(&self) -> Result<(String, String, String), String> {
        let fields: Vec<&str> = self.time.split(':').collect();
        let (hour, minute, second) = match fields[..] {
            [hour, minute] => (hour, minute, "00"),
            [hour, minute, second] => (hour, minute, second),
            _ => {
                return Err(format!("the time {:?}: HH:MM:SS is expected", self.time));
            }
        };
        // A fraction of zero is no fraction.
        let second = second.strip_suffix(".0").unwrap_or(second);
        if second.contains('.') && !second.contains("..") {
            return Err(format!(
                "the seconds {second:?} have a fraction; a job fires on whole seconds. For a shorter period write a job with every = \"500ms\""
            ));
        }
        Ok((
            values("second", second, 0, 59)?.text,
            values("minute", minute, 0, 59)?.text,
            values("hour", hour, 0, 23)?.text,
        ))
    }

    fn date(&self) -> Result<(String, String, Day), String> {
        let error = || format!("the date {:?}: YYYY-MM-DD is expected", self.date);
        let (before, day, from_end) = if let Some((before, day)) = self.date.split_once('~') {
            (before, day, true)
        } else {
            let (before, day) = self.date.rsplit_once('-').ok_or_else(error)?;
            (before, day, false)
        };
        let (year, month) = match before.split_once('-') {
            Some((year, month)) if !month.contains('-') => (year, month),
            Some(_) => return Err(error()),
            None => ("*", before),
        };
        let year = years(year)?;
        let month = values("month", month, 1, 12)?.text;
        let day = if from_end {
            Day::FromEnd(from_end_values(day)?)
        } else {
            Day::FromStart(values("day", day, 1, 31)?)
        };
        Ok((year, month, day))
    }
}

/// The days of the month.
enum Day {
    FromStart(Values),
    /// Counted from the end; 1 is the last day. Descending.
    FromEnd(Vec<u16>),
}

/// The values of one component.
struct Values {
    /// As a cron field.
    text: String,
    numbers: Vec<u16>,
    /// Whether the component is `*`.
    is_any: bool,
}

fn values(name: &str, text: &str, min: u16, max: u16) -> Result<Values, String> {
    if text == "*" {
        return Ok(Values {
            text: "*".to_owned(),
            numbers: (min..=max).collect(),
            is_any: true,
        });
    }
    let number = |part: &str| {
        let is_number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let number = if is_number {
            part.parse::<u16>().ok()
        } else {
            None
        };
        number
            .filter(|n| (min..=max).contains(n))
            .ok_or_else(|| format!("the {name} {part:?}: {min}–{max} is expected"))
    };
    let mut texts = Vec::new();
    let mut found = Vec::new();
    for item in text.split(',') {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let (low, high) = match range.split_once("..") {
            Some((low, high)) => (number(low)?, Some(number(high)?)),
            None => (number(range)?, None),
        };
        if high.is_some_and(|high| high < low) {
            return Err(format!(
                "the {name} {item:?} goes backwards; systemd takes no such range"
            ));
        }
        let step = match step {
            None => None,
            Some(step) => Some(
                step.parse::<u16>()
                    .ok()
                    .filter(|n| (1..=max).contains(n))
                    .ok_or_else(|| {
                        format!("the {name} {item:?}: a repetition of 1–{max} is expected")
                    })?,
            ),
        };
        let end = high.unwrap_or(if step.is_some() { max } else { low });
        let of_item: Vec<u16> = (low..=end).step_by(step.unwrap_or(1).into()).collect();
        texts.push(match (&of_item[..], step, high) {
            ([only], ..) => only.to_string(),
            (_, None | Some(1), _) => format!("{low}-{end}"),
            (_, Some(step), None) => format!("{low}/{step}"),
            (_, Some(step), Some(high)) => format!("{low}-{high}/{step}"),
        });
        found.extend(of_item);
    }
    found.sort_unstable();
    found.dedup();
    Ok(Values {
        text: texts.join(","),
        numbers: found,
        is_any: false,
    })
}

/// A year component as a cron field. Years of two digits are 1970–2069.
fn years(text: &str) -> Result<String, String> {
    if text == "*" {
        return Ok("*".to_owned());
    }
    let long = |part: &str| match part.parse::<u16>() {
        Ok(year @ 0..=69) if part.len() <= 2 => (2_000 + year).to_string(),
        Ok(year @ 70..=99) if part.len() <= 2 => (1_900 + year).to_string(),
        _ => part.to_owned(),
    };
    let items: Vec<String> = text
        .split(',')
        .map(|item| {
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, format!("/{step}")),
                None => (item, String::new()),
            };
            let range: Vec<String> = range.split("..").map(long).collect();
            format!("{}{step}", range.join(".."))
        })
        .collect();
    values("year", &items.join(","), 1970, 2099).map(|years| years.text)
}

/// The weekdays of a list such as `Mon..Wed,Sat`, Monday first.
fn weekdays(text: &str) -> Result<[bool; 7], String> {
    let index = |word: &str| {
        let lower = word.to_ascii_lowercase();
        WEEKDAYS
            .iter()
            .position(|day| *day == lower || day[..3] == lower)
            .ok_or_else(|| format!("{word:?} is no weekday; Mon, Tue and so on are expected"))
    };
    let mut found = [false; 7];
    for item in text.split(',') {
        let (low, high) = match item.split_once("..") {
            Some((low, high)) => (index(low)?, index(high)?),
            None => (index(item)?, index(item)?),
        };
        if high < low {
            return Err(format!(
                "the weekdays {item:?} go backwards; systemd takes no such range"
            ));
        }
        found[low..=high].fill(true);
    }
    Ok(found)
}

/// The two day fields of the expression.
fn days(day: &Day, weekdays: [bool; 7]) -> Result<(String, String), String> {
    let every_weekday = weekdays.iter().all(|named| *named);
    let named = || {
        QUARTZ_WEEKDAYS
            .iter()
            .zip(weekdays)
            .filter(|(_, named)| *named)
            .map(|(day, _)| *day)
    };
    let any = || "?".to_owned();
    let is_every_day =
        matches!(day, Day::FromStart(days) if days.is_any || days.numbers.len() == 31);
    if is_every_day {
        let week_day = named().collect::<Vec<_>>().join(",");
        return Ok(if every_weekday {
            ("*".to_owned(), any())
        } else {
            (any(), week_day)
        });
    }
    if every_weekday {
        let month_day = match day {
            Day::FromStart(days) => days.text.clone(),
            Day::FromEnd(days) => {
                let from_end = |n: &u16| match n {
                    1 => "L".to_owned(),
                    n => format!("L-{}", n - 1),
                };
                days.iter().map(from_end).collect::<Vec<_>>().join(",")
            }
        };
        return Ok((month_day, any()));
    }
    // Both: a week of the month says the same as the number of a weekday.
    let weeks = weeks(day).ok_or_else(|| {
        "a weekday and a day of the month are both given, and cron has no expression for both. \
         Days that are a whole week of the month (1..7, 8..14 and so on, or the last week, ~07/1) are possible"
            .to_owned()
    })?;
    let items: Vec<String> = weeks
        .iter()
        .flat_map(|week| named().map(move |day| format!("{day}{week}")))
        .collect();
    Ok((any(), items.join(",")))
}

/// The days before the end of the month, 1 for the last one. A repetition counts towards the end: `7/2` is 7, 5, 3, 1.
fn from_end_values(text: &str) -> Result<Vec<u16>, String> {
    let number = |part: &str| {
        part.parse::<u16>()
            .ok()
            .filter(|n| (1..=28).contains(n))
            .ok_or_else(|| format!("the day {part:?} after '~': 1–28 is expected"))
    };
    let mut found = Vec::new();
    for item in text.split(',') {
        match (item.split_once('/'), item.split_once("..")) {
            (None, None) => found.push(number(item)?),
            (None, Some((low, high))) => found.extend(number(low)?..=number(high)?),
            (Some((start, step)), None) => {
                let (start, step) = (number(start)?, number(step)?);
                found.extend((1..=start).filter(|n| (start - n).is_multiple_of(step)));
            }
            (Some(_), Some(_)) => {
                return Err(format!(
                    "the days {item:?}: a range with a repetition is not understood after '~'; list the days"
                ));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found.reverse();
    Ok(found)
}

/// The weeks of the month that the days are, as suffixes of weekdays: `#1` to `#5`, or `L`.
fn weeks(day: &Day) -> Option<Vec<String>> {
    let days = match day {
        Day::FromStart(days) => &days.numbers,
        Day::FromEnd(days) => {
            return (*days == [7, 6, 5, 4, 3, 2, 1]).then(|| vec!["L".to_owned()]);
        }
    };
    let mut weeks = Vec::new();
    let mut count = 0;
    for week in 0..5_u16 {
        let (first, last) = (7 * week + 1, (7 * week + 7).min(31));
        if (first..=last).all(|day| days.contains(&day)) {
            weeks.push(format!("#{}", week + 1));
            count += usize::from(last - first + 1);
        }
    }
    (count == days.len()).then_some(weeks)
}
