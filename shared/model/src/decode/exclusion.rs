//! Reads calendars, maintenance windows and pauses.

use std::fmt::Display;
use std::str::FromStr;

use super::fields::{MAX_TEXT_BYTES, local, optional, required, text_map};
use super::reader::{Fields, Reader, given, shorten};
use super::schedule::{cron, refuse_zone};
use super::{Node, Value};
use crate::exclusion::{
    CalendarSpec, DailyTime, MAX_CALENDAR_ENTRIES, MAX_CALENDARS, Period, WeekdayName, WindowScope,
    WindowSpec, WindowTime,
};
use crate::name::{CalendarName, GroupName, Namespace};
use crate::schedule::{Schedule, Zone};
use crate::time::Timestamp;

const CALENDAR_KEYS: [&str; 8] = [
    "name",
    "namespace",
    "description",
    "timezone",
    "dates",
    "weekdays",
    "times",
    "periods",
];

const WINDOW_KEYS: [&str; 12] = [
    "all_namespaces",
    "group",
    "labels",
    "start",
    "end",
    "cron",
    "timezone",
    "dialect",
    "dst",
    "duration",
    "reason",
    "owner",
];

const PAUSE_KEYS: [&str; 7] = [
    "all",
    "all_namespaces",
    "group",
    "labels",
    "reason",
    "until",
    "for",
];

/// The longest reason or owner, in bytes.
const MAX_WINDOW_TEXT: usize = 1_024;

/// Reads the names of a job's calendars.
pub(super) fn calendar_names(
    r: &mut Reader,
    node: &Node,
    path: &str,
    namespace: &Namespace,
) -> Option<Vec<String>> {
    let names: Vec<String> = list(
        r,
        node,
        path,
        MAX_CALENDARS,
        "names of calendars",
        |r, n, p| {
            let name = local(r, n, p, |text| CalendarName::in_namespace(namespace, text));
            name.map(|name| name.local().to_owned())
        },
    )?;
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            let message = format!("{name:?} is given twice; each calendar is expected once");
            r.refuse(node.line, path, message);
            return None;
        }
    }
    Some(names)
}

/// Reads a calendar. It is in `namespace` if it has no field of that name.
pub(super) fn calendar(r: &mut Reader, node: &Node, namespace: &Namespace) -> Option<CalendarSpec> {
    let before = r.count();
    let f = r.fields(node, "", &CALENDAR_KEYS, &[])?;
    let namespace =
        optional(r, &f, "namespace", parsed::<Namespace>).unwrap_or_else(|| namespace.clone());
    let name = required(r, &f, node, "name", "the calendar's name", |r, n, p| {
        local(r, n, p, |text| CalendarName::in_namespace(&namespace, text))
    });
    let description = optional(r, &f, "description", |r, n, p| {
        r.text(n, p, MAX_TEXT_BYTES).map(str::to_owned)
    });
    let timezone = optional(r, &f, "timezone", zone);
    let most = MAX_CALENDAR_ENTRIES;
    let dates = optional(r, &f, "dates", |r, n, p| {
        list(r, n, p, most, "dates", parsed)
    });
    let weekdays = optional(r, &f, "weekdays", weekdays);
    let times = optional(r, &f, "times", |r, n, p| {
        list(r, n, p, 100, "tables with from and to", daily_time)
    });
    let periods = optional(r, &f, "periods", |r, n, p| {
        list(r, n, p, most, "tables with start and end", period)
    });
    if r.count() > before {
        return None;
    }
    let spec = CalendarSpec {
        name: name?,
        description: description.unwrap_or_default(),
        timezone: timezone.unwrap_or_else(Zone::utc),
        dates: dates.unwrap_or_default(),
        weekdays: weekdays.unwrap_or_default(),
        times: times.unwrap_or_default(),
        periods: periods.unwrap_or_default(),
    };
    check_entries(r, node, &spec).then_some(spec)
}

fn check_entries(r: &mut Reader, node: &Node, spec: &CalendarSpec) -> bool {
    let entries = spec.dates.len() + spec.times.len() + spec.periods.len();
    if entries > MAX_CALENDAR_ENTRIES {
        let message = format!(
            "{entries} dates, times and periods given; a calendar has at most {MAX_CALENDAR_ENTRIES}"
        );
        r.refuse(node.line, "", message);
        return false;
    }
    if spec.weekdays.len() == WeekdayName::ALL.len() {
        let message = "all seven days given; a calendar that excludes every day lets no job fire. Pause the jobs instead";
        r.refuse(node.line, "weekdays", message);
        return false;
    }
    if entries == 0 && spec.weekdays.is_empty() {
        let message =
            "nothing to exclude given; at least one of dates, weekdays, times, periods is expected";
        r.refuse(node.line, "", message);
        return false;
    }
    true
}

/// Reads a maintenance window. Without `all_namespaces`, it is in `namespace`.
pub(super) fn window(r: &mut Reader, node: &Node, namespace: &Namespace) -> Option<WindowSpec> {
    let before = r.count();
    let f = r.fields(node, "", &WINDOW_KEYS, &[])?;
    let scope = scope(r, &f, namespace);
    let text = |r: &mut Reader, key: &str| {
        optional(r, &f, key, |r, n, p| {
            r.text(n, p, MAX_WINDOW_TEXT).map(str::to_owned)
        })
        .unwrap_or_default()
    };
    let reason = text(r, "reason");
    let owner = text(r, "owner");
    let time = window_time(r, &f, node);
    if r.count() > before {
        return None;
    }
    Some(WindowSpec {
        scope,
        time: time?,
        reason,
        owner,
    })
}

/// Reads the jobs that a window or a pause is about.
fn scope(r: &mut Reader, f: &Fields<'_>, namespace: &Namespace) -> WindowScope {
    let everywhere = optional(r, f, "all_namespaces", Reader::boolean).unwrap_or_default();
    if everywhere && let Some((group, path)) = f.get("group") {
        let message = "given beside all_namespaces; a group belongs to one namespace";
        r.refuse(group.line, &path, message);
    }
    WindowScope {
        namespace: (!everywhere).then(|| namespace.clone()),
        group: optional(r, f, "group", |r, n, p| {
            local(r, n, p, |text| GroupName::in_namespace(namespace, text))
        }),
        labels: optional(r, f, "labels", |r, n, p| text_map(r, n, p, "a label"))
            .unwrap_or_default(),
    }
}

/// Reads a pause that begins at `now`. Without `all_namespaces`, it is in `namespace`. The caller sets its owner.
pub(super) fn pause(
    r: &mut Reader,
    node: &Node,
    namespace: &Namespace,
    now: Timestamp,
) -> Option<WindowSpec> {
    let before = r.count();
    let f = r.fields(node, "", &PAUSE_KEYS, &[])?;
    let all = optional(r, &f, "all", Reader::boolean).unwrap_or_default();
    let scope = scope(r, &f, namespace);
    let is_wide = all || scope.namespace.is_none();
    if !is_wide && scope.group.is_none() && scope.labels.is_empty() && r.count() == before {
        let message = "nothing to pause given; at least one of all, all_namespaces, group, labels is expected";
        r.refuse(node.line, "", message);
    }
    let reason = required(r, &f, node, "reason", "why, for people,", |r, n, p| {
        let text = r.text(n, p, MAX_WINDOW_TEXT)?;
        if text.trim().is_empty() {
            r.refuse(n.line, p, "it is empty; a reason for people is expected");
            return None;
        }
        Some(text.to_owned())
    });
    let until = optional(r, &f, "until", Reader::instant);
    let length = optional(r, &f, "for", |r, n, p| r.duration(n, p, 1_000));
    if let (Some(_), Some((node, path))) = (f.get("until"), f.get("for")) {
        let message = "given beside until; one of both is expected";
        r.refuse(node.line, &path, message);
    }
    if let (Some(until), Some((node, path))) = (until, f.get("until"))
        && until <= now
    {
        let message = format!("{until} has passed; an instant after now ({now}) is expected");
        r.refuse(node.line, &path, message);
    }
    if r.count() > before {
        return None;
    }
    Some(WindowSpec {
        scope,
        time: WindowTime::Pause {
            paused_at: now,
            until: until.or_else(|| length.map(|length| now.plus_ms(length.as_millis()))),
        },
        reason: reason?,
        owner: String::new(),
    })
}

fn window_time(r: &mut Reader, f: &Fields<'_>, whole: &Node) -> Option<WindowTime> {
    let recurring = f.get("cron").is_some();
    let others: &[&str] = if recurring {
        &["start", "end"]
    } else {
        &["timezone", "dialect", "dst", "duration"]
    };
    let (owner, expected) = if recurring {
        ("cron", "cron and duration")
    } else {
        ("start and end", "start and end, or cron and duration,")
    };
    for key in others {
        if let Some((node, path)) = f.get(key) {
            let message = format!("does not go with {owner}; {expected} is expected");
            r.refuse(node.line, &path, message);
        }
    }
    if recurring {
        let starts = cron(r, f).map(Schedule::Cron);
        let duration = required(
            r,
            f,
            whole,
            "duration",
            "how long the window is open",
            |r, n, p| r.duration(n, p, 1_000),
        );
        return Some(WindowTime::Recurring {
            starts: starts?,
            duration: duration?,
        });
    }
    let start = required(
        r,
        f,
        whole,
        "start",
        "its first instant, or cron,",
        Reader::instant,
    );
    let end = required(
        r,
        f,
        whole,
        "end",
        "the instant at which it ends",
        Reader::instant,
    );
    let (start, end) = (start?, end?);
    in_order(r, f, start, end)?;
    Some(WindowTime::Once { start, end })
}

fn in_order(r: &mut Reader, f: &Fields<'_>, start: Timestamp, end: Timestamp) -> Option<()> {
    if start < end {
        return Some(());
    }
    let (node, path) = f.get("end")?;
    let message = format!("{end} is not after start ({start}); a later instant is expected");
    r.refuse(node.line, &path, message);
    None
}

fn daily_time(r: &mut Reader, node: &Node, path: &str) -> Option<DailyTime> {
    let f = r.fields(node, path, &["from", "to", "weekdays"], &[])?;
    let what = "a time of day such as 22:00";
    let from = required(r, &f, node, "from", what, parsed);
    let to = required(r, &f, node, "to", what, parsed);
    let weekdays = optional(r, &f, "weekdays", weekdays).unwrap_or_default();
    let (from, to) = (from?, to?);
    if from == to {
        let message = format!(
            "{to} is also the value of from; another time of day is expected, or 00:00 and 24:00"
        );
        r.refuse(node.line, &f.path_of("to"), message);
        return None;
    }
    Some(DailyTime { from, to, weekdays })
}

fn period(r: &mut Reader, node: &Node, path: &str) -> Option<Period> {
    let f = r.fields(node, path, &["start", "end"], &[])?;
    let start = required(r, &f, node, "start", "its first instant", Reader::instant);
    let end = required(
        r,
        &f,
        node,
        "end",
        "the instant at which it ends",
        Reader::instant,
    );
    let (start, end) = (start?, end?);
    in_order(r, &f, start, end)?;
    Some(Period { start, end })
}

fn weekdays(r: &mut Reader, node: &Node, path: &str) -> Option<Vec<WeekdayName>> {
    let mut days = list(r, node, path, 7, "days such as \"sat\"", |r, n, p| {
        r.word(n, p, "day", &WeekdayName::ALL, &[])
    })?;
    days.sort_unstable();
    days.dedup();
    Some(days)
}

fn zone(r: &mut Reader, node: &Node, path: &str) -> Option<Zone> {
    let name = r.text(node, path, 255)?;
    if let Some(message) = r.zone_message(name).map(str::to_owned) {
        r.refuse(node.line, path, message);
        return None;
    }
    match Zone::get(name) {
        Ok(zone) => Some(zone),
        Err(unknown) => {
            refuse_zone(r, node.line, path, &unknown);
            None
        }
    }
}

/// Reads a text that has a form of its own.
fn parsed<T: FromStr<Err: Display>>(r: &mut Reader, node: &Node, path: &str) -> Option<T> {
    let text = r.text(node, path, 1_024)?;
    match text.parse() {
        Ok(value) => Some(value),
        Err(error) => {
            r.refuse(node.line, path, format!("{:?}: {error}", shorten(text)));
            None
        }
    }
}

/// Reads a list of at most `most` items.
pub(super) fn list<T>(
    r: &mut Reader,
    node: &Node,
    path: &str,
    most: usize,
    what: &str,
    read: impl Fn(&mut Reader, &Node, &str) -> Option<T>,
) -> Option<Vec<T>> {
    let Value::List(items) = &node.value else {
        r.mismatch(node, path, &format!("a list of {what}"));
        return None;
    };
    if items.len() > most {
        let message = format!("{} given; at most {most} {what} are accepted", given(node));
        r.refuse(node.line, path, message);
        return None;
    }
    let mut values = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if r.is_full() {
            return None;
        }
        values.extend(read(r, item, &format!("{path}[{index}]")));
    }
    (values.len() == items.len()).then_some(values)
}
