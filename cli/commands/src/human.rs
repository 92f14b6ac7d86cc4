//! Times, durations and schedules as text for people.

use cueline_model::{AfterOn, Block, HandlerSpec, JobName, JobSpec, Schedule, Timestamp};

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A duration: `21 ms`, `1.3 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`.
pub(crate) fn took(ms: u64) -> String {
    if ms < SECOND {
        format!("{ms} ms")
    } else if ms < 10 * SECOND && ms % SECOND >= 100 {
        format!("{}.{} s", ms / SECOND, ms % SECOND / 100)
    } else if ms < MINUTE {
        format!("{} s", ms / SECOND)
    } else if ms < HOUR {
        pair(ms / MINUTE, "min", ms % MINUTE / SECOND, "s")
    } else if ms < DAY {
        pair(ms / HOUR, "h", ms % HOUR / MINUTE, "min")
    } else {
        pair(ms / DAY, "d", ms % DAY / HOUR, "h")
    }
}

fn pair(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large} {large_unit}")
    } else {
        format!("{large} {large_unit} {small} {small_unit}")
    }
}

/// A rough distance: `4 s`, `3 min`, `9 h`, `12 d`.
fn roughly(ms: u64) -> String {
    match ms {
        0..MINUTE => format!("{} s", ms / SECOND),
        MINUTE..HOUR => format!("{} min", ms / MINUTE),
        HOUR..DAY => format!("{} h", ms / HOUR),
        _ => format!("{} d", ms / DAY),
    }
}

/// `at` relative to `now`: `in 4 s`, `now`, `3 min ago`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    let distance = at.since_ms(now);
    let ms = distance.unsigned_abs();
    match distance {
        _ if ms < SECOND => "now".to_owned(),
        0.. => format!("in {}", roughly(ms)),
        _ => format!("{} ago", roughly(ms)),
    }
}

/// Milliseconds from `from` to `to`. 0 if `to` is earlier, because clocks may differ.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.since_ms(from)).unwrap_or(0)
}

/// An instant in a time zone, `2027-03-28 03:00:00 +02:00`. In UTC if the zone is unknown.
pub(crate) fn local(at: Timestamp, zone: &str) -> String {
    let zone = jiff::tz::TimeZone::get(zone).unwrap_or(jiff::tz::TimeZone::UTC);
    match jiff::Timestamp::from_millisecond(at.as_millis()) {
        Ok(instant) => instant
            .to_zoned(zone)
            .strftime("%a %Y-%m-%d %H:%M:%S %:z")
            .to_string(),
        Err(_) => at.to_string(),
    }
}

/// A job's schedule, followed by its block policy if that is not the default.
pub(crate) fn schedule(spec: &JobSpec) -> String {
    let when = match &spec.schedule {
        Schedule::Several(schedules) => {
            let parts: Vec<String> = schedules.iter().map(rule).collect();
            one_line(&parts.join(" and "), 100)
        }
        Schedule::Manual if spec.after.is_some() => one_line(&parents(spec), 100),
        one => rule(one),
    };
    let block = match spec.block {
        Block::Serial => String::new(),
        Block::Discard => " · discard".to_owned(),
        Block::Cover => " · cover".to_owned(),
        Block::Parallel(n) => format!(" · parallel {n}"),
    };
    format!("{when}{block}")
}

/// The parents of a job, and what it waits for: `after all of a, b`, `after a failed`.
fn parents(spec: &JobSpec) -> String {
    let Some(after) = &spec.after else {
        return String::new();
    };
    let names: Vec<&str> = after.names().iter().map(JobName::local).collect();
    let number = match (names.len(), after.waits_for_all()) {
        (1, _) => "",
        (_, true) => "all of ",
        (_, false) => "any of ",
    };
    let end = match after.on {
        AfterOn::Success => "",
        AfterOn::Failure => " failed",
        AfterOn::Always => " ended",
    };
    format!("after {number}{}{end}", names.join(", "))
}

/// A single schedule.
fn rule(schedule: &Schedule) -> String {
    match schedule {
        Schedule::Cron(cron) => {
            let zone = cron.timezone();
            let text = daily(cron.expression()).unwrap_or_else(|| cron.expression().to_owned());
            if zone == "UTC" {
                text
            } else {
                format!("{text}, {zone}")
            }
        }
        Schedule::FixedRate { every, .. } => format!("every {}", took(every.as_millis())),
        Schedule::FixedDelay { after } => format!("{} after its end", took(after.as_millis())),
        Schedule::Once { at } => format!("once, {at}"),
        Schedule::Startup => "at start".to_owned(),
        Schedule::Manual => "manual".to_owned(),
        Schedule::Several(schedules) => format!("{} schedules", schedules.len()),
    }
}

/// `30 2 * * *` as `02:30 every day`. `None` for less simple expressions.
fn daily(expression: &str) -> Option<String> {
    let fields: Vec<_> = expression.split_whitespace().collect();
    let [minute, hour, "*", "*", "*"] = fields[..] else {
        return None;
    };
    let (minute, hour): (u8, u8) = (minute.parse().ok()?, hour.parse().ok()?);
    Some(format!("{hour:02}:{minute:02} every day"))
}

/// A handler on one short line.
pub(crate) fn handler(handler: &HandlerSpec) -> String {
    let text = match handler {
        HandlerSpec::Native(name) => format!("native {name}"),
        HandlerSpec::Shell(shell) => format!("shell: {}", shell.script),
        HandlerSpec::Command(command) => format!("command: {}", command.argv.join(" ")),
        HandlerSpec::Http(http) => format!("{} {}", http.method, http.url),
        HandlerSpec::Script(script) => match script.version {
            Some(version) => format!("script {}, version {version}", script.name),
            None => format!("script {}", script.name),
        },
    };
    one_line(&text, 100)
}

/// What an executor runs. The interpreters of its machine are left out: JSON output has them, and `explain` names a missing one.
pub(crate) fn capabilities(all: &[String]) -> String {
    let shown = all.iter().filter(|one| !one.starts_with("shell:"));
    shown.map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The first line of a text, cut after `most` characters. An ellipsis stands for the rest.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut short: String = line
        .chars()
        .take(most)
        .filter(|c| !c.is_control())
        .collect();
    if short.len() < text.trim_end().len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::{Timestamp, capabilities, daily, one_line, relative, took};

    #[test]
    fn interpreters_are_not_listed() {
        let all = ["http", "native:x", "shell", "shell:sh", "shell:node"].map(str::to_owned);
        assert_eq!(capabilities(&all), "http, native:x, shell");
    }

    #[test]
    fn durations_read_well_at_every_size() {
        for (ms, text) in [
            (0, "0 ms"),
            (21, "21 ms"),
            (1_000, "1 s"),
            (1_300, "1.3 s"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (125_000, "2 min 5 s"),
            (12_000_000, "3 h 20 min"),
            (187_200_000, "2 d 4 h"),
            (u64::MAX, "213503982334 d 14 h"),
        ] {
            assert_eq!(took(ms), text);
        }
    }

    #[test]
    fn instants_are_relative_to_now() {
        let now = Timestamp::from_millis(1_000_000_000);
        let at = |ms: i64| Timestamp::from_millis(1_000_000_000 + ms);
        for (ms, text) in [
            (0, "now"),
            (-999, "now"),
            (4_000, "in 4 s"),
            (-180_000, "3 min ago"),
            (32_400_000, "in 9 h"),
        ] {
            assert_eq!(relative(at(ms), now), text);
        }
        assert!(relative(Timestamp::from_millis(i64::MIN), now).ends_with("ago"));
    }

    #[test]
    fn simple_expressions_are_in_words() {
        assert_eq!(daily("30 2 * * *").as_deref(), Some("02:30 every day"));
        assert_eq!(daily("*/5 2 * * *"), None);
        assert_eq!(daily("0 30 2 * * ?"), None);
    }

    #[test]
    fn long_texts_are_cut_with_an_ellipsis() {
        assert_eq!(one_line("echo a", 10), "echo a");
        assert_eq!(one_line("echo a\necho b", 10), "echo a…");
        assert_eq!(one_line("ééééé", 3), "ééé…");
        assert_eq!(one_line("\x1b[31mred", 20), "[31mred…");
    }
}
