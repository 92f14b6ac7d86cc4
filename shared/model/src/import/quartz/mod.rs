//! Imports Quartz's jobs and triggers, from its tables or from its job files.
//!
//! Each trigger becomes a job, and so does each job without a trigger. The jobs do what Quartz does, as far as the source
//! tells it. Serialised Java objects are never read.

mod data;
mod misfire;
mod schedule;

pub use data::Data;
pub(super) use schedule::as_quartz_reads;

use std::collections::BTreeMap;

use serde_json::json;

use super::{Draft, Entry, Names, Note, clean};
use crate::job::JobSpec;
use crate::name::GroupName;
use crate::time::Timestamp;

/// The name of a job's or a trigger's group that is not given.
pub const DEFAULT_GROUP: &str = "DEFAULT";

/// A job of Quartz.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QuartzJob {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Its purpose.
    pub description: Option<String>,
    /// The Java class.
    pub class: String,
    /// Whether the scheduler runs it again after a crash.
    pub recovers: bool,
    /// Whether its runs exclude each other; `None` if the source does not say.
    pub excludes_itself: Option<bool>,
    /// Whether a run changes its data.
    pub keeps_data: bool,
    /// Its data.
    pub data: Data,
    /// Where it is, for messages.
    pub place: String,
}

/// A trigger of Quartz.
#[derive(Debug, Clone, PartialEq)]
pub struct QuartzTrigger {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// The name of its job.
    pub job_name: String,
    /// The group of its job.
    pub job_group: String,
    /// Its purpose.
    pub description: Option<String>,
    /// Its priority; 5 by default.
    pub priority: Option<i64>,
    /// The calendar of excluded times.
    pub calendar: Option<String>,
    /// The first instant.
    pub start: Option<Timestamp>,
    /// The last instant.
    pub end: Option<Timestamp>,
    /// Quartz's number for the treatment of missed fire times.
    pub misfire: i64,
    /// Its data, over that of the job.
    pub data: Data,
    /// Its schedule.
    pub kind: TriggerKind,
    /// Its state in the table.
    pub state: Option<String>,
    /// Where it is, for messages.
    pub place: String,
}

/// The schedule of a trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TriggerKind {
    /// A cron expression.
    Cron {
        /// The expression.
        expression: String,
        /// Its time zone.
        timezone: Option<String>,
    },
    /// A number of times with an interval between them.
    Simple {
        /// How often after the first time; -1 for ever.
        repeats: i64,
        /// The interval in milliseconds.
        interval_ms: i64,
    },
    /// An interval of the calendar.
    CalendarInterval {
        /// The number of units.
        interval: i64,
        /// `DAY`, `WEEK` and so on.
        unit: String,
        /// The time zone.
        timezone: Option<String>,
    },
    /// An interval within a part of each day.
    DailyTime {
        /// The number of units.
        interval: i64,
        /// `SECOND`, `MINUTE` or `HOUR`.
        unit: String,
        /// Weekdays, 1 for Sunday.
        days: Vec<u8>,
        /// Hour, minute and second of the first time of a day.
        from: [u8; 3],
        /// Hour, minute and second of the last time of a day.
        to: [u8; 3],
        /// How often in all; -1 for ever.
        repeats: i64,
    },
    /// Another one, which the source does not describe.
    Other(String),
}

/// How to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuartzOptions {
    /// The time zone of triggers without one.
    pub timezone: String,
    /// The group of the jobs.
    pub group: GroupName,
    /// The handlers of Java classes; without an entry, a class is a native handler of the same name.
    pub handlers: BTreeMap<String, String>,
    /// Fire times before this are over.
    pub now: Timestamp,
}

/// Imports jobs and triggers.
pub fn import(
    jobs: &[QuartzJob],
    triggers: &[QuartzTrigger],
    options: &QuartzOptions,
) -> Vec<Entry> {
    let mut names = Names::default();
    let mut entries = Vec::new();
    for job in jobs {
        let own: Vec<&QuartzTrigger> = triggers
            .iter()
            .filter(|t| t.job_name == job.name && t.job_group == job.group)
            .collect();
        if own.is_empty() {
            entries.push(entry(&job.place, of_job(job, options, &mut names)));
        }
        for trigger in &own {
            let is_only = own.len() == 1;
            let found = of_trigger(job, trigger, is_only, options, &mut names);
            entries.push(entry(&trigger.place, found));
        }
    }
    for trigger in triggers {
        let is_known = jobs
            .iter()
            .any(|job| job.name == trigger.job_name && job.group == trigger.job_group);
        if !is_known {
            let reason = format!(
                "its job {}.{} is missing; import the file or the schema that has it",
                trigger.job_group, trigger.job_name
            );
            entries.push(entry(&trigger.place, Err(reason)));
        }
    }
    entries
}

fn entry(place: &str, found: Result<(JobSpec, Vec<Note>), String>) -> Entry {
    let (job, notes) = match found {
        Ok((job, notes)) => (Ok(job), notes),
        Err(reason) => (Err(reason), Vec::new()),
    };
    Entry {
        place: place.to_owned(),
        job,
        notes,
    }
}

/// `GROUP.NAME`, without the group that Quartz gives to what has none.
fn qualified(group: &str, name: &str) -> String {
    if group == DEFAULT_GROUP || group.is_empty() {
        name.to_owned()
    } else {
        format!("{group}.{name}")
    }
}

/// A job without a trigger: it runs by hand.
fn of_job(
    job: &QuartzJob,
    options: &QuartzOptions,
    names: &mut Names,
) -> Result<(JobSpec, Vec<Note>), String> {
    let mut draft = Draft::default();
    of_class(&mut draft, job, options);
    data::read(&mut draft, &job.data, &Data::None)?;
    draft.set("schedule", json!({ "manual": true }));
    name(&mut draft, &qualified(&job.group, &job.name), names);
    if let Some(text) = &job.description {
        draft.set("description", text.as_str());
    }
    draft.finish()
}

fn of_trigger(
    job: &QuartzJob,
    trigger: &QuartzTrigger,
    is_only: bool,
    options: &QuartzOptions,
    names: &mut Names,
) -> Result<(JobSpec, Vec<Note>), String> {
    let mut draft = Draft::default();
    of_class(&mut draft, job, options);
    state(&mut draft, trigger)?;
    schedule::read(&mut draft, trigger, options)?;
    misfire::read(&mut draft, trigger);
    data::read(&mut draft, &job.data, &trigger.data)?;
    priority(&mut draft, trigger.priority);
    if let Some(calendar) = &trigger.calendar {
        draft.pause(format!(
            "the calendar {calendar:?} excludes times, and it is a Java object that only Quartz can read; \
             exclude these times in the job, then resume it"
        ));
    }
    let of_job = qualified(&job.group, &job.name);
    if is_only {
        name(&mut draft, &of_job, names);
    } else {
        let text = format!("{of_job}.{}", qualified(&trigger.group, &trigger.name));
        name(&mut draft, &text, names);
        if job.excludes_itself != Some(false) {
            draft.changed(
                "the job has several triggers and becomes a job for each; their runs may overlap",
            );
        }
    }
    let description = trigger.description.as_ref().or(job.description.as_ref());
    if let Some(text) = description {
        draft.set("description", text.as_str());
    }
    let (spec, notes) = draft.finish()?;
    if !matches!(spec.schedule, crate::schedule::Schedule::Startup)
        && spec.next_fire(options.now).is_none()
    {
        return Err("it never fires again: all its fire times are over".to_owned());
    }
    Ok((spec, notes))
}

fn name(draft: &mut Draft, text: &str, names: &mut Names) {
    let name = names.unique(text);
    if name != text {
        draft.changed(format!("the name {text:?} becomes {name:?}"));
    }
    debug_assert!(name.starts_with(&clean(text)));
    draft.set("name", name);
}

/// The handler and what the class says about its runs.
fn of_class(draft: &mut Draft, job: &QuartzJob, options: &QuartzOptions) {
    let handler = options
        .handlers
        .get(&job.class)
        .map_or(job.class.as_str(), String::as_str);
    draft.set("handler", json!({ "native": handler }));
    draft.set("group", options.group.local());
    match job.excludes_itself {
        Some(true) => draft.set("block", "serial"),
        Some(false) => draft.set("block", json!({ "parallel": crate::crontab::MAX_PARALLEL })),
        None => {
            draft.set("block", "serial");
            draft.changed(
                "the file does not say whether runs may overlap (@DisallowConcurrentExecution); the job is serial",
            );
        }
    }
    if job.recovers {
        draft.set("on_lost", "rerun");
    }
    if job.keeps_data {
        draft.left_out(
            "@PersistJobDataAfterExecution: the parameters of a job do not change by its runs",
        );
    }
}

fn state(draft: &mut Draft, trigger: &QuartzTrigger) -> Result<(), String> {
    match trigger.state.as_deref() {
        Some("PAUSED" | "PAUSED_BLOCKED") => draft.pause("the trigger is paused in Quartz"),
        Some("ERROR") => draft.pause("the trigger is in the state ERROR in Quartz"),
        Some("COMPLETE" | "DELETED") => {
            return Err("it has fired for the last time, and Quartz keeps it no longer".to_owned());
        }
        _ => {}
    }
    Ok(())
}

/// Priorities of jobs are 0–9, and 5 is the default of both.
fn priority(draft: &mut Draft, priority: Option<i64>) {
    let Some(given) = priority.filter(|given| *given != 5) else {
        return;
    };
    let taken = given.clamp(0, 9);
    if taken != given {
        draft.changed(format!(
            "the priority {given} becomes {taken}; jobs have 0–9"
        ));
    }
    draft.set("priority", taken);
}

#[cfg(test)]
mod tests;
