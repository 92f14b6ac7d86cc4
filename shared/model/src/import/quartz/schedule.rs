//! The schedules of triggers.

use jiff::Zoned;
use jiff::tz::TimeZone;
use serde_json::json;

use super::{QuartzOptions, QuartzTrigger, TriggerKind};
use crate::import::{Draft, duration};
use crate::time::Timestamp;

/// Writes the schedule and its limits.
pub(super) fn read(
    draft: &mut Draft,
    trigger: &QuartzTrigger,
    options: &QuartzOptions,
) -> Result<(), String> {
    let zone_or = |given: &Option<String>| {
        given
            .as_deref()
            .filter(|zone| !zone.trim().is_empty())
            .unwrap_or(&options.timezone)
            .to_owned()
    };
    // A cron trigger may fire at its end; the others, and all jobs, may not.
    let mut end = trigger.end;
    match &trigger.kind {
        TriggerKind::Cron {
            expression,
            timezone,
        } => {
            end = end.map(|end| end.plus_ms(1));
            let expression = as_quartz_reads(draft, expression)?;
            cron(draft, &expression, &zone_or(timezone));
            starts(draft, trigger.start, options.now);
        }
        TriggerKind::Simple {
            repeats,
            interval_ms,
        } => simple(draft, trigger, *repeats, *interval_ms, &mut end)?,
        TriggerKind::CalendarInterval {
            interval,
            unit,
            timezone,
        } => calendar_interval(draft, trigger, *interval, unit, &zone_or(timezone))?,
        TriggerKind::DailyTime { .. } => {
            cron(draft, &daily(&trigger.kind)?, &options.timezone);
            starts(draft, trigger.start, options.now);
        }
        TriggerKind::Other(kind) => {
            return Err(format!(
                "a trigger of the type {kind}: it is a Java object that only Quartz can read; write the job by hand"
            ));
        }
    }
    if let Some(end) = end {
        draft.set("end_at", end.to_string());
    }
    Ok(())
}

fn cron(draft: &mut Draft, expression: &str, timezone: &str) {
    draft.set(
        "schedule",
        json!({ "cron": expression, "timezone": timezone, "dialect": "quartz" }),
    );
}

/// A start that is over changes nothing.
fn starts(draft: &mut Draft, start: Option<Timestamp>, now: Timestamp) {
    if let Some(start) = start.filter(|start| *start > now) {
        draft.set("start_at", start.to_string());
    }
}

/// An expression as Quartz reads it, where the dialect of jobs reads it in another way: Quartz ignores a step after a
/// name.
pub(in crate::import) fn as_quartz_reads(
    draft: &mut Draft,
    expression: &str,
) -> Result<String, String> {
    let mut fields: Vec<String> = expression
        .split_ascii_whitespace()
        .map(str::to_ascii_uppercase)
        .collect();
    let starts_with_name =
        |item: &str| item.starts_with(|c: char| c.is_ascii_alphabetic() && c != 'L');
    for field in &mut fields {
        let items: Vec<&str> = field
            .split(',')
            .map(|item| match item.split_once('/') {
                Some((range, _)) if starts_with_name(item) => range,
                _ => item,
            })
            .collect();
        let read = items.join(",");
        if read != *field {
            draft.changed(format!(
                "{field:?} becomes {read:?}: Quartz ignores a step after a name"
            ));
            *field = read;
        }
    }
    if let Some(days) = fields.get(5)
        && days.contains('#')
        && days.contains(',')
    {
        return Err(format!(
            "day-of-week {days:?}: of a list with '#', Quartz takes the first day only; write the days that you mean, \
             in a job of its own"
        ));
    }
    Ok(fields.join(" "))
}

fn simple(
    draft: &mut Draft,
    trigger: &QuartzTrigger,
    repeats: i64,
    interval_ms: i64,
    end: &mut Option<Timestamp>,
) -> Result<(), String> {
    let Some(start) = trigger.start else {
        return without_start(draft, repeats, interval_ms);
    };
    if repeats == 0 {
        draft.set("schedule", json!({ "at": start.to_string() }));
        return Ok(());
    }
    let every = u64::try_from(interval_ms)
        .map_err(|_| format!("the interval of {interval_ms} ms: a positive one is expected"))?;
    draft.set(
        "schedule",
        json!({ "every": duration(every), "anchor": start.to_string() }),
    );
    draft.set("start_at", start.to_string());
    if let Ok(repeats) = u64::try_from(repeats) {
        let last = start.plus_ms(repeats.saturating_mul(every));
        let after = last.plus_ms(1);
        *end = Some(end.map_or(after, |end| end.min(after)));
    }
    Ok(())
}

/// Quartz starts such a trigger when it reads the file.
fn without_start(draft: &mut Draft, repeats: i64, interval_ms: i64) -> Result<(), String> {
    match repeats {
        0 => {
            draft.set("schedule", json!({ "startup": true }));
            draft.changed("it fires once when Quartz reads the file: the job runs at each start of the scheduler");
        }
        -1 => {
            let every = u64::try_from(interval_ms).map_err(|_| {
                format!("the interval of {interval_ms} ms: a positive one is expected")
            })?;
            draft.set("schedule", json!({ "every": duration(every) }));
            draft.changed("it counts from the start of Quartz: the job fires on a fixed grid");
        }
        _ => {
            return Err(format!(
                "{} times from the start of Quartz on: give the trigger a start-time",
                repeats.saturating_add(1)
            ));
        }
    }
    Ok(())
}

fn local(start: Timestamp, timezone: &str) -> Result<Zoned, String> {
    let zone = TimeZone::get(timezone)
        .map_err(|_| format!("unknown time zone {timezone:?}; an IANA name is expected"))?;
    jiff::Timestamp::from_millisecond(start.as_millis())
        .map(|instant| instant.to_zoned(zone))
        .map_err(|error| error.to_string())
}

fn calendar_interval(
    draft: &mut Draft,
    trigger: &QuartzTrigger,
    interval: i64,
    unit: &str,
    timezone: &str,
) -> Result<(), String> {
    const DAY_MS: u64 = 86_400_000;
    let start = trigger
        .start
        .ok_or("it counts from the start of Quartz: give the trigger a start-time")?;
    let n = u64::try_from(interval)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("the interval {interval}: 1 or more is expected"))?;
    let at = local(start, timezone)?;
    let time = format!("{} {} {}", at.second(), at.minute(), at.hour());
    let fixed = |draft: &mut Draft, unit_ms: u64| {
        let every = duration(n.saturating_mul(unit_ms));
        draft.set(
            "schedule",
            json!({ "every": every, "anchor": start.to_string() }),
        );
    };
    match unit {
        "SECOND" => fixed(draft, 1_000),
        "MINUTE" => fixed(draft, 60_000),
        "HOUR" => fixed(draft, 3_600_000),
        "DAY" if n == 1 => cron(draft, &format!("{time} * * ?"), timezone),
        "WEEK" if n == 1 => {
            let day = at.weekday().to_sunday_one_offset();
            cron(draft, &format!("{time} ? * {day}"), timezone);
        }
        "DAY" | "WEEK" => {
            let days = if unit == "WEEK" { 7 } else { 1 };
            fixed(draft, days * DAY_MS);
            if timezone != "UTC" {
                draft.changed(format!(
                    "{n} {unit}: the job counts elapsed time, so its local time moves when the clocks of {timezone} change"
                ));
            }
        }
        "MONTH" | "YEAR" if at.day() > 28 => {
            return Err(format!(
                "each {n} {unit} from day {} on: not every month has that day; write the job by hand, with L for the last day",
                at.day()
            ));
        }
        "MONTH" if 12_u64.is_multiple_of(n) => {
            let n = i64::try_from(n).unwrap_or(1);
            let month = (i64::from(at.month()) - 1).rem_euclid(n) + 1;
            cron(
                draft,
                &format!("{time} {} {month}/{n} ?", at.day()),
                timezone,
            );
        }
        "YEAR" => {
            let expression = format!("{time} {} {} ? {}/{n}", at.day(), at.month(), at.year());
            cron(draft, &expression, timezone);
        }
        _ => {
            return Err(format!(
                "an interval of {n} {unit} has no schedule; write the job by hand"
            ));
        }
    }
    draft.set("start_at", start.to_string());
    Ok(())
}

/// The fire times of each day as an expression, if hours, minutes and seconds are independent of each other.
fn daily(kind: &TriggerKind) -> Result<String, String> {
    let TriggerKind::DailyTime {
        interval,
        unit,
        days,
        from,
        to,
        repeats,
    } = kind
    else {
        return Err("not a daily trigger".to_owned());
    };
    if *repeats != -1 {
        return Err(format!(
            "it ends after {repeats} repeats; write the job by hand, with an end_at"
        ));
    }
    let unit_s = match unit.as_str() {
        "SECOND" => 1_u64,
        "MINUTE" => 60,
        "HOUR" => 3_600,
        other => {
            return Err(format!(
                "the unit {other}: SECOND, MINUTE or HOUR is expected"
            ));
        }
    };
    let step = u64::try_from(*interval)
        .ok()
        .and_then(|n| n.checked_mul(unit_s))
        .filter(|s| *s > 0)
        .ok_or_else(|| format!("the interval {interval}: 1 or more is expected"))?;
    let second_of =
        |time: &[u8; 3]| u64::from(time[0]) * 3_600 + u64::from(time[1]) * 60 + u64::from(time[2]);
    let mut fields: [Vec<u64>; 3] = Default::default();
    let mut count = 0;
    let mut second = second_of(from);
    while second <= second_of(to).min(86_399) {
        for (field, value) in fields
            .iter_mut()
            .zip([second % 60, second / 60 % 60, second / 3_600])
        {
            field.push(value);
        }
        count += 1;
        second += step;
    }
    for field in &mut fields {
        field.sort_unstable();
        field.dedup();
    }
    if count == 0 || fields.iter().map(Vec::len).product::<usize>() != count {
        return Err(format!(
            "every {interval} {unit} between {}:{:02}:{:02} and {}:{:02}:{:02} has no cron expression; write several jobs by hand",
            from[0], from[1], from[2], to[0], to[1], to[2]
        ));
    }
    let [seconds, minutes, hours] = fields.map(|values| list(&values));
    let mut days = days.clone();
    days.sort_unstable();
    days.dedup();
    Ok(if days.is_empty() || days.len() == 7 {
        format!("{seconds} {minutes} {hours} * * ?")
    } else {
        let days: Vec<u64> = days.into_iter().map(u64::from).collect();
        format!("{seconds} {minutes} {hours} ? * {}", list(&days))
    })
}

/// Ascending values as a list with ranges: `0-4,30`.
fn list(values: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for value in values {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == *value => *end = *value,
            _ => parts.push((*value, *value)),
        }
    }
    let texts: Vec<String> = parts
        .into_iter()
        .map(|(low, high)| match high - low {
            0 => low.to_string(),
            1 => format!("{low},{high}"),
            _ => format!("{low}-{high}"),
        })
        .collect();
    texts.join(",")
}
