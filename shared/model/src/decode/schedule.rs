//! Reads schedules.

use super::fields::optional;
use super::reader::{Fields, Reader, given, shorten};
use super::{Node, Value};
use crate::schedule::{
    CronError, CronSchedule, Dialect, DstRule, MAX_SCHEDULES, Schedule, UnknownZone,
};

const KINDS: [&str; 6] = ["cron", "every", "after", "at", "startup", "manual"];
const KEYS: [&str; 10] = [
    "cron", "every", "after", "at", "startup", "manual", "timezone", "dialect", "dst", "anchor",
];
/// The kind that each of the other keys belongs to.
const EXTRAS: [(&str, &str); 4] = [
    ("timezone", "cron"),
    ("dialect", "cron"),
    ("dst", "cron"),
    ("anchor", "every"),
];
/// The shortest period or delay.
const MIN_PERIOD_MS: u64 = 100;

/// Reads a schedule, or a list of several.
pub(super) fn read(r: &mut Reader, node: &Node, path: &str) -> Option<Schedule> {
    match node.value {
        Value::List(_) => read_list(r, node, path),
        _ => read_one(r, node, path),
    }
}

/// Reads a list of schedules. Only those with fire times of their own can be in a list with others.
pub(super) fn read_list(r: &mut Reader, node: &Node, path: &str) -> Option<Schedule> {
    let Value::List(items) = &node.value else {
        r.mismatch(node, path, "a list of schedules");
        return None;
    };
    if items.is_empty() || items.len() > MAX_SCHEDULES {
        let message = format!(
            "{} given; 1–{MAX_SCHEDULES} schedules are expected",
            given(node)
        );
        r.refuse(node.line, path, message);
        return None;
    }
    let before = r.count();
    let mut schedules = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(schedule) = read_one(r, item, &path) else {
            continue;
        };
        let kind = match schedule {
            Schedule::FixedDelay { .. } => "after",
            Schedule::Startup => "startup",
            Schedule::Manual => "manual",
            _ => "",
        };
        if items.len() > 1 && !kind.is_empty() {
            let message = format!(
                "{kind:?} cannot be combined with other schedules; cron, every or at is expected"
            );
            r.refuse(item.line, &path, message);
        }
        schedules.push(schedule);
    }
    if r.count() > before {
        return None;
    }
    if schedules.len() == 1 {
        return schedules.pop();
    }
    Some(Schedule::Several(schedules))
}

/// Reads a single schedule.
fn read_one(r: &mut Reader, node: &Node, path: &str) -> Option<Schedule> {
    let f = r.fields(node, path, &KEYS, &[])?;
    let kinds = f.present(&KINDS);
    let [kind] = kinds[..] else {
        let message = if kinds.is_empty() {
            format!(
                "{} given; exactly one of {} is expected",
                given(node),
                KINDS.join(", ")
            )
        } else {
            format!(
                "{} given together; exactly one of {} is expected",
                kinds.join(", "),
                KINDS.join(", ")
            )
        };
        r.refuse(node.line, path, message);
        return None;
    };
    for (extra, owner) in EXTRAS {
        if owner != kind
            && let Some((extra_node, extra_path)) = f.get(extra)
        {
            r.refuse(
                extra_node.line,
                &extra_path,
                format!("goes with {owner:?}, not with {kind:?}"),
            );
        }
    }
    match kind {
        "cron" => cron(r, &f).map(Schedule::Cron),
        "every" => {
            let every = optional(r, &f, "every", |r, n, p| r.duration(n, p, MIN_PERIOD_MS));
            let anchor = optional(r, &f, "anchor", Reader::instant);
            Some(Schedule::FixedRate {
                every: every?,
                anchor,
            })
        }
        "after" => optional(r, &f, "after", |r, n, p| r.duration(n, p, MIN_PERIOD_MS))
            .map(|after| Schedule::FixedDelay { after }),
        "at" => optional(r, &f, "at", Reader::instant).map(|at| Schedule::Once { at }),
        "startup" => flag(r, &f, "startup", Schedule::Startup),
        _ => flag(r, &f, "manual", Schedule::Manual),
    }
}

/// Reads a kind without a value of its own: its value must be `true`.
fn flag(r: &mut Reader, f: &Fields<'_>, key: &str, schedule: Schedule) -> Option<Schedule> {
    let (node, path) = f.get(key)?;
    if node.value == Value::Bool(true) {
        return Some(schedule);
    }
    let expected = format!("true, or another of {},", KINDS.join(", "));
    r.mismatch(node, &path, &expected);
    None
}

pub(super) fn cron(r: &mut Reader, f: &Fields<'_>) -> Option<CronSchedule> {
    let before = r.count();
    let dialect = optional(r, f, "dialect", |r, n, p| {
        let words = [("quartz", Dialect::Quartz), ("unix", Dialect::Unix)];
        r.word(n, p, "dialect", &words, &[])
    });
    let dst = optional(r, f, "dst", |r, n, p| {
        let words = [
            ("skip", DstRule::Skip),
            ("once", DstRule::Once),
            ("both", DstRule::Both),
        ];
        r.word(n, p, "rule", &words, &[])
    });
    let dialect_refused = r.count() > before;
    let timezone = optional(r, f, "timezone", |r, n, p| {
        r.text(n, p, 255).map(str::to_owned)
    });
    let (node, path) = f.get("cron")?;
    let expression = r.text(node, &path, 1_024)?;
    let zone = timezone.as_deref().unwrap_or("UTC");
    let zone_line = f.get("timezone").map_or(node.line, |(n, _)| n.line);
    if let Some(message) = r.zone_message(zone).map(str::to_owned) {
        r.refuse(zone_line, &f.path_of("timezone"), message);
        return None;
    }
    match CronSchedule::parse(expression, zone, dialect, dst) {
        Ok(cron) => Some(cron),
        Err(CronError::TimeZone(zone)) => {
            refuse_zone(r, zone_line, &f.path_of("timezone"), &zone);
            None
        }
        // The dialect is refused already. Problems of the expression in a guessed dialect would only confuse.
        Err(CronError::Expression(_)) if dialect_refused => None,
        Err(CronError::Expression(message)) => {
            let shown = shorten(expression);
            r.refuse(node.line, &path, format!("{shown:?}: {message}"));
            None
        }
    }
}

/// Notes an unknown time zone, with the nearest known one.
pub(super) fn refuse_zone(r: &mut Reader, line: Option<u32>, path: &str, zone: &UnknownZone) {
    let message = if r.may_suggest_zone() {
        zone.with_suggestion()
    } else {
        zone.to_string()
    };
    r.remember_zone_message(zone.name(), &message);
    r.refuse(line, path, message);
}
