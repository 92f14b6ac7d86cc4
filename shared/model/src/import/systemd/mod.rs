//! Imports systemd's timers with their services.
//!
//! Each timer becomes a job, or one job for each of its calendar events. The jobs do what systemd does:
//!
//! - A service that still runs is not started again: the block policy is `discard`.
//! - `Persistent=yes` runs what was missed once; without it nothing is made up for.
//! - The environment is that of a service of the system: the unit's variables and a search path.

mod calendar;
mod exec;
mod service;
mod unit;

use serde_json::{Value, json};

use super::{Draft, Entry, Names, Note, duration};
use crate::job::JobSpec;
use crate::name::GroupName;
use calendar::Calendar;
use unit::{Unit, span};

/// A unit file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitFile {
    /// Its name, such as `backup.timer`.
    pub name: String,
    /// Where it is, for messages.
    pub place: String,
    /// Its text, followed by that of its drop-ins.
    pub text: String,
}

/// How to read unit files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemdOptions {
    /// The time zone of calendar events that name none.
    pub timezone: String,
    /// The group of the jobs.
    pub group: GroupName,
}

/// Imports timers. Services are found by name among the files.
pub fn import(files: &[UnitFile], options: &SystemdOptions) -> Vec<Entry> {
    let mut names = Names::default();
    let mut used: Vec<String> = Vec::new();
    let mut entries = Vec::new();
    for file in files {
        if let Some(stem) = file.name.strip_suffix(".timer") {
            let timer = Unit::read(&file.text);
            let service = timer.as_ref().ok().map(|timer| service_name(timer, stem));
            used.extend(service);
            entries.extend(match timer {
                Ok(timer) => of_timer(file, &timer, stem, files, options, &mut names),
                Err(reason) => vec![refused(file, reason)],
            });
        } else if !file.name.ends_with(".service") {
            entries.push(refused(
                file,
                "a unit of another kind; .timer and .service are expected".to_owned(),
            ));
        }
    }
    for file in files.iter().filter(|f| f.name.ends_with(".service")) {
        if !used.contains(&file.name) {
            entries.push(refused(
                file,
                "no timer among the files starts it; give its timer too".to_owned(),
            ));
        }
    }
    entries
}

/// The names of the files that may have the service of a timer: its own, and that of its template.
pub fn services(timer: &UnitFile) -> Vec<String> {
    let (Some(stem), Ok(unit)) = (timer.name.strip_suffix(".timer"), Unit::read(&timer.text))
    else {
        return Vec::new();
    };
    let name = service_name(&unit, stem);
    let template = name
        .split_once('@')
        .map(|(prefix, _)| format!("{prefix}@.service"));
    // A unit names no path.
    std::iter::once(name)
        .chain(template)
        .filter(|name| !name.contains('/'))
        .collect()
}

fn refused(file: &UnitFile, reason: String) -> Entry {
    Entry {
        place: file.place.clone(),
        job: Err(reason),
        notes: Vec::new(),
    }
}

fn service_name(timer: &Unit, stem: &str) -> String {
    timer
        .last("Timer", "Unit")
        .map_or_else(|| format!("{stem}.service"), str::to_owned)
}

/// A schedule of a timer, and what has to be said about it.
struct Firing {
    schedule: Value,
    is_calendar: bool,
    notes: Vec<Note>,
}

fn of_timer(
    file: &UnitFile,
    timer: &Unit,
    stem: &str,
    files: &[UnitFile],
    options: &SystemdOptions,
    names: &mut Names,
) -> Vec<Entry> {
    let service = service_name(timer, stem);
    let firings = firings(timer, options);
    let several = firings.len() > 1;
    firings
        .into_iter()
        .map(|firing| {
            let found = firing.and_then(|firing| {
                let mut draft = Draft::default();
                draft.notes.extend(firing.notes);
                if several {
                    draft.changed(
                        "the timer has several events and becomes a job for each; their runs may overlap",
                    );
                }
                draft.set("schedule", firing.schedule);
                settings(&mut draft, timer, firing.is_calendar)?;
                of_service(&mut draft, files, &service)?;
                draft.set("name", names.unique(stem));
                draft.set("group", options.group.local());
                draft.set("block", "discard");
                draft.set("description", format!("imported from {}", file.place));
                draft.finish()
            });
            entry(file, found)
        })
        .collect()
}

fn entry(file: &UnitFile, found: Result<(JobSpec, Vec<Note>), String>) -> Entry {
    match found {
        Ok((job, notes)) => Entry {
            place: file.place.clone(),
            job: Ok(job),
            notes,
        },
        Err(reason) => refused(file, reason),
    }
}

fn of_service(draft: &mut Draft, files: &[UnitFile], name: &str) -> Result<(), String> {
    if !name.ends_with(".service") {
        return Err(format!("Unit={name}: a job runs a service"));
    }
    // An instance has the file of its template.
    let template = name
        .split_once('@')
        .map(|(prefix, _)| format!("{prefix}@.service"));
    let found = files
        .iter()
        .find(|f| f.name == name)
        .or_else(|| files.iter().find(|f| Some(&f.name) == template.as_ref()));
    let found = found.ok_or_else(|| format!("its service {name} is missing; give the file too"))?;
    let unit = Unit::read(&found.text).map_err(|e| format!("{}: {e}", found.place))?;
    service::read(draft, &unit, name).map_err(|e| format!("{}: {e}", found.place))
}

/// The schedules of a timer, each or the reason why there is none.
fn firings(timer: &Unit, options: &SystemdOptions) -> Vec<Result<Firing, String>> {
    let mut found: Vec<Result<Firing, String>> = timer
        .all("Timer", "OnCalendar")
        .into_iter()
        .map(|setting| of_calendar(&setting.value, options))
        .collect();
    let starts: Vec<String> = ["OnBootSec", "OnStartupSec", "OnActiveSec"]
        .iter()
        .flat_map(|key| timer.all("Timer", key))
        .map(|s| format!("{}={}", s.key, s.value))
        .collect();
    let mut repeats = Vec::new();
    for (key, kind) in [("OnUnitActiveSec", "every"), ("OnUnitInactiveSec", "after")] {
        for setting in timer.all("Timer", key) {
            repeats.push(of_repeat(key, kind, &setting.value, &starts));
        }
    }
    if repeats.is_empty() && !starts.is_empty() {
        repeats.push(Ok(Firing {
            schedule: json!({ "startup": true }),
            is_calendar: false,
            notes: vec![Note::Changed(format!(
                "{}: the job runs at each start of the scheduler, without a delay",
                starts.join(", ")
            ))],
        }));
    }
    found.extend(repeats);
    if found.is_empty() {
        found.push(Err(
            "the timer has no event that a job can have; OnCalendar=, OnUnitActiveSec=, OnUnitInactiveSec= or OnBootSec= is expected"
                .to_owned(),
        ));
    }
    found
}

fn of_calendar(value: &str, options: &SystemdOptions) -> Result<Firing, String> {
    let schedule = match calendar::read(value).map_err(|e| format!("OnCalendar={value}: {e}"))? {
        Calendar::Once(at) => json!({ "at": at.to_string() }),
        Calendar::Cron {
            expression,
            timezone,
        } => {
            let timezone = timezone.as_deref().unwrap_or(&options.timezone);
            json!({ "cron": expression, "timezone": timezone, "dialect": "quartz" })
        }
    };
    Ok(Firing {
        schedule,
        is_calendar: true,
        notes: Vec::new(),
    })
}

fn of_repeat(key: &str, kind: &str, value: &str, starts: &[String]) -> Result<Firing, String> {
    let span = span(value).map_err(|e| format!("{key}={value}: {e}"))?;
    let ms = span.ok_or_else(|| format!("{key}={value}: such a timer never elapses"))?;
    let mut notes = Vec::new();
    if kind == "every" {
        notes.push(Note::Changed(format!(
            "{key}={value}: the job fires on a fixed grid, whenever its last run began"
        )));
    }
    if !starts.is_empty() {
        notes.push(Note::LeftOut(format!(
            "{}: the schedule needs no first start",
            starts.join(", ")
        )));
    }
    Ok(Firing {
        schedule: json!({ kind: duration(ms) }),
        is_calendar: false,
        notes,
    })
}

/// The settings of a timer beside its events.
fn settings(draft: &mut Draft, timer: &Unit, is_calendar: bool) -> Result<(), String> {
    const KNOWN: [&str; 16] = [
        "OnCalendar",
        "OnBootSec",
        "OnStartupSec",
        "OnActiveSec",
        "OnUnitActiveSec",
        "OnUnitInactiveSec",
        "Unit",
        "Persistent",
        "RandomizedDelaySec",
        "FixedRandomDelay",
        "AccuracySec",
        "WakeSystem",
        "OnClockChange",
        "OnTimezoneChange",
        "RemainAfterElapse",
        "DeferReactivation",
    ];
    let is_persistent = is_calendar && timer.flag("Timer", "Persistent")?;
    let policy = if is_persistent { "fire_once" } else { "skip" };
    // systemd itself elapses a timer up to its accuracy later, which is one minute by default.
    draft.set("misfire", json!({ "policy": policy, "grace": "1m" }));
    if let Some(text) = timer.last("Timer", "RandomizedDelaySec") {
        let ms = span(text).map_err(|e| format!("RandomizedDelaySec={text}: {e}"))?;
        let ms = ms.ok_or_else(|| format!("RandomizedDelaySec={text}: a span is expected"))?;
        draft.set("jitter", duration(ms));
    }
    if timer.flag("Timer", "FixedRandomDelay")? {
        draft.changed(
            "FixedRandomDelay=yes: the jitter of a job differs from fire time to fire time",
        );
    }
    if let Some(text) = timer.last("Timer", "AccuracySec") {
        draft.left_out(format!("AccuracySec={text}: a job fires to the second"));
    }
    for key in ["WakeSystem", "OnClockChange", "OnTimezoneChange"] {
        if timer.flag("Timer", key)? {
            draft.left_out(format!("{key}=yes: the job does not have it"));
        }
    }
    let others: Vec<&str> = timer
        .in_section("Timer")
        .map(|s| s.key.as_str())
        .filter(|key| !KNOWN.contains(key))
        .collect();
    if !others.is_empty() {
        draft.left_out(format!("settings of the timer: {}", others.join(", ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
