//! Imports XXL-JOB's jobs and scripts, from a dump of its MySQL database.
//!
//! Each job becomes a job that does what XXL-JOB does, as far as the tables tell it. The source of a GLUE script becomes a
//! script, which its job runs.

mod children;
mod dump;
#[cfg(test)]
mod tests;

pub use dump::{Dump, MAX_ROWS, Row, read};

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::{Draft, Entry, MAX_CLEAN_BYTES, Note};
use crate::decode;
use crate::job::{JobSpec, Parents};
use crate::name::Namespace;
use crate::schedule::Schedule;
use crate::script::{MAX_REMARK_BYTES, ScriptSpec};
use crate::time::Timestamp;
use children::Children;

/// How to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XxlOptions {
    /// The time zone of the scheduler ("admin"), which cron expressions follow.
    pub timezone: String,
    /// Fire times before this are over.
    pub now: Timestamp,
}

/// What a dump has.
#[derive(Debug, Default, PartialEq)]
pub struct Imported {
    /// The jobs.
    pub entries: Vec<Entry>,
    /// The scripts of those jobs that could be converted.
    pub scripts: Vec<ScriptSpec>,
    /// Places and differences that concern no single job.
    pub left_out: Vec<(String, String)>,
}

/// Imports the jobs of a dump. A job keeps the app name of its executors as its group.
pub fn import(dump: &Dump, options: &XxlOptions) -> Imported {
    let rows = dump.rows("xxl_job_info");
    let groups = groups(dump);
    let names = names(rows);
    let children = Children::read(rows, &names);
    let older = older_versions(dump);
    let mut imported = Imported::default();
    for (row, name) in rows.iter().zip(&names) {
        let id = row.text(&["id"]).unwrap_or("?");
        let place = format!("job {id}");
        let job = Job {
            row,
            name,
            groups: &groups,
            children: &children,
            older: older.get(id).copied().unwrap_or_default(),
        };
        let (job, notes) = match job.convert(options) {
            Ok((spec, script, notes)) => {
                imported.scripts.extend(script);
                (Ok(spec), notes)
            }
            Err(reason) => (Err(reason), Vec::new()),
        };
        imported.entries.push(Entry { place, job, notes });
    }
    leave_out_refused_parents(&mut imported.entries, &names);
    if rows.is_empty() {
        let place = "xxl_job_info".to_owned();
        let message = "the dump has no jobs; dump the tables xxl_job_group and xxl_job_info";
        imported.left_out.push((place, message.to_owned()));
    }
    imported
}

/// A job cannot run after one that is not there. `names` are those of the entries.
fn leave_out_refused_parents(entries: &mut [Entry], names: &[String]) {
    let refused: HashSet<&str> = entries
        .iter()
        .zip(names)
        .filter(|(entry, _)| entry.job.is_err())
        .map(|(_, name)| name.as_str())
        .collect();
    for entry in entries {
        let Ok(job) = &mut entry.job else {
            continue;
        };
        let Some(after) = &mut job.after else {
            continue;
        };
        let (Parents::All(parents) | Parents::Any(parents)) = &mut after.parents;
        parents.retain(|parent| {
            let is_refused = refused.contains(parent.local());
            if is_refused {
                let message = format!("it runs after {:?}, which is refused", parent.local());
                entry.notes.push(Note::LeftOut(message));
            }
            !is_refused
        });
        if parents.is_empty() {
            job.after = None;
        }
    }
}

/// The app name of each executor group, by its id.
fn groups(dump: &Dump) -> HashMap<String, String> {
    let rows = dump.rows("xxl_job_group").iter();
    let group = |row: &Row| {
        let name = row.text(&["app_name", "appname"])?;
        Some((row.text(&["id"])?.to_owned(), name.to_owned()))
    };
    rows.filter_map(group).collect()
}

/// How many earlier versions of its source each job has.
fn older_versions(dump: &Dump) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    for row in dump.rows("xxl_job_logglue") {
        if let Some(job) = row.text(&["job_id"]) {
            *counts.entry(job).or_default() += 1;
        }
    }
    counts
}

/// The names of the jobs: their descriptions, with the id where two have the same.
fn names(rows: &[Row]) -> Vec<String> {
    let described: Vec<String> = rows
        .iter()
        .map(|row| clean(row.text(&["job_desc", "name"]).unwrap_or_default()))
        .collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for name in &described {
        *counts.entry(name).or_default() += 1;
    }
    let name = |(row, name): (&Row, &String)| {
        let id = row.text(&["id"]).unwrap_or("0");
        match counts.get(name.as_str()) {
            _ if name.is_empty() => format!("job-{id}"),
            Some(1) | None => name.clone(),
            Some(_) => format!("{name}-{id}"),
        }
    };
    rows.iter().zip(&described).map(name).collect()
}

/// A name of letters and digits of any language, and dashes for all else; empty if there are none.
fn clean(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        if name.len() + c.len_utf8() > MAX_CLEAN_BYTES {
            break;
        }
        match c {
            '.' | ':' if !name.is_empty() => name.push(c),
            '_' => name.push(c),
            c if format!("x{c}").parse::<crate::name::JobName>().is_ok() && c.is_alphanumeric() => {
                name.push(c);
            }
            _ if !name.is_empty() && !name.ends_with('-') => name.push('-'),
            _ => {}
        }
    }
    name.trim_end_matches('-').to_owned()
}

/// A job of XXL-JOB.
struct Job<'d> {
    row: &'d Row,
    name: &'d str,
    groups: &'d HashMap<String, String>,
    children: &'d Children,
    /// The earlier versions of its source.
    older: usize,
}

type Converted = (JobSpec, Option<ScriptSpec>, Vec<Note>);

impl Job<'_> {
    fn convert(&self, options: &XxlOptions) -> Result<Converted, String> {
        let row = self.row;
        let mut draft = Draft::default();
        draft.set("name", self.name);
        let described = row.text(&["job_desc", "name"]).unwrap_or_default();
        if described != self.name {
            draft.set("description", described);
            draft.changed(format!(
                "the description {described:?} becomes the name {:?}",
                self.name
            ));
        }
        self.group(&mut draft)?;
        let script = self.handler(&mut draft)?;
        self.schedule(&mut draft, options)?;
        misfire(&mut draft, row)?;
        route(&mut draft, row)?;
        block(&mut draft, row)?;
        if let Some(params) = row.text(&["executor_param"]) {
            draft.set("params", params);
        }
        limits(&mut draft, row)?;
        people(&mut draft, row);
        self.parents(&mut draft)?;
        let (spec, notes) = draft.finish()?;
        let fires = !matches!(spec.schedule, Schedule::Manual);
        if fires && spec.next_fire(options.now).is_none() {
            return Err("it never fires again: all its fire times are over".to_owned());
        }
        Ok((spec, script, notes))
    }

    fn group(&self, draft: &mut Draft) -> Result<(), String> {
        let id = self.row.text(&["job_group"]).unwrap_or_default();
        let Some(app) = self.groups.get(id) else {
            return Err(format!(
                "its executor group {id} is missing; dump the table xxl_job_group too"
            ));
        };
        let name = clean(app);
        if name != *app {
            draft.changed(format!("the app name {app:?} becomes the group {name:?}"));
        }
        draft.set("group", name);
        Ok(())
    }

    /// The handler, and the script that it runs.
    fn handler(&self, draft: &mut Draft) -> Result<Option<ScriptSpec>, String> {
        let kind = self.row.text(&["glue_type"]).unwrap_or("BEAN");
        let language = match kind {
            "BEAN" => {
                let Some(handler) = self.row.text(&["executor_handler"]) else {
                    return Err("executor_handler is empty; a bean job needs one".to_owned());
                };
                draft.set("handler", json!({ "native": handler.trim() }));
                return Ok(None);
            }
            "GLUE_SHELL" => "bash",
            "GLUE_PYTHON" => "python3",
            "GLUE_PYTHON2" => {
                draft.pause("GLUE_PYTHON2: the source is Python 2, and the script runs with python3; check it, then resume the job");
                "python3"
            }
            "GLUE_NODEJS" => "node",
            "GLUE_PHP" => "php",
            "GLUE_POWERSHELL" => "pwsh",
            "GLUE_GROOVY" => {
                return Err(
                    "GLUE_GROOVY: Java source that only XXL-JOB's executor compiles; register a native handler, and write the job by hand"
                        .to_owned(),
                );
            }
            other => return Err(format!("the glue type {other} is unknown")),
        };
        match kind {
            "GLUE_PYTHON" => {
                draft.changed("GLUE_PYTHON runs `python`; the script runs with python3");
            }
            "GLUE_POWERSHELL" => {
                draft.changed("GLUE_POWERSHELL runs `powershell`; the script runs with pwsh");
            }
            _ => {}
        }
        if self.older > 0 {
            draft.left_out(format!(
                "{} versions of its source in xxl_job_logglue: the script begins with the present one",
                self.older
            ));
        }
        draft.set("handler", json!({ "script": self.name }));
        self.script(language).map(Some)
    }

    fn script(&self, language: &str) -> Result<ScriptSpec, String> {
        let remark = self.row.text(&["glue_remark"]).unwrap_or_default();
        let remark = &remark[..remark.floor_char_boundary(MAX_REMARK_BYTES)];
        // XXL-JOB's editor leaves line ends of Windows, and a shell takes them for a part of the command.
        let text = self.row.text(&["glue_source"]).unwrap_or_default();
        let text = text.replace("\r\n", "\n");
        let script =
            json!({ "name": self.name, "language": language, "text": text, "remark": remark });
        decode::script(&script.into(), &Namespace::default()).map_err(|problems| {
            let problem = problems.iter().map(|p| p.message.as_str());
            format!("glue_source: {}", problem.collect::<Vec<_>>().join("; "))
        })
    }

    fn schedule(&self, draft: &mut Draft, options: &XxlOptions) -> Result<(), String> {
        let row = self.row;
        // Until 2.2 there was one kind, and a column of its own.
        let cron = row.text(&["job_cron"]);
        let kind = row.text(&["schedule_type"]);
        let kind = kind.unwrap_or(if cron.is_some() { "CRON" } else { "NONE" });
        let given = row.text(&["schedule_conf"]).or(cron).unwrap_or_default();
        let is_stopped = row.number(&["trigger_status"])? == 0;
        let is_child = self.children.has_parents(row);
        if kind == "NONE" || (is_stopped && is_child) {
            draft.set("schedule", json!({ "manual": true }));
            if kind != "NONE" {
                draft.changed(format!(
                    "it is stopped, and runs after other jobs all the same; its schedule {kind} {given:?} is left out"
                ));
            }
            return Ok(());
        }
        let schedule = match kind {
            "CRON" => {
                let expression = super::quartz::as_quartz_reads(draft, given)?;
                json!({ "cron": expression, "timezone": options.timezone, "dialect": "quartz" })
            }
            "FIX_RATE" => {
                let every = seconds(given)?;
                match row.number(&["trigger_next_time"])? {
                    next if next > 0 => {
                        json!({ "every": every, "anchor": Timestamp::from_millis(next).to_string() })
                    }
                    _ => json!({ "every": every }),
                }
            }
            "FIX_DELAY" => json!({ "after": seconds(given)? }),
            other => return Err(format!("the schedule type {other} is unknown")),
        };
        draft.set("schedule", schedule);
        if is_stopped {
            draft.pause("the job is stopped in XXL-JOB");
        }
        Ok(())
    }

    fn parents(&self, draft: &mut Draft) -> Result<(), String> {
        let row = self.row;
        for missing in self.children.missing(row) {
            draft.left_out(format!("child_jobid {missing}: there is no such job"));
        }
        for cycle in self.children.cycles(row) {
            draft.left_out(format!(
                "it would run after {cycle:?}, which runs after it; a cycle of jobs is refused"
            ));
        }
        match self.children.parents(row) {
            [] => {}
            [only] => draft.set("after", json!({ "all": [only] })),
            several => {
                draft.set("after", json!({ "any": several }));
                draft.changed(format!(
                    "it runs after any of {} jobs; after two of them that follow one fire of another job, it runs once",
                    several.len()
                ));
            }
        }
        Ok(())
    }
}

fn seconds(given: &str) -> Result<Value, String> {
    match given.trim().parse::<u64>() {
        Ok(seconds) if seconds > 0 => Ok(super::duration(seconds.saturating_mul(1_000))),
        _ => Err(format!(
            "schedule_conf {given:?}: a number of seconds is expected"
        )),
    }
}

/// XXL-JOB takes a fire time that is found more than 5 s late for missed, as jobs do by default.
fn misfire(draft: &mut Draft, row: &Row) -> Result<(), String> {
    let policy = match row.text(&["misfire_strategy"]).unwrap_or("DO_NOTHING") {
        "DO_NOTHING" => "skip",
        "FIRE_ONCE_NOW" => "fire_once",
        other => return Err(format!("the misfire strategy {other} is unknown")),
    };
    draft.set("misfire", policy);
    Ok(())
}

fn route(draft: &mut Draft, row: &Row) -> Result<(), String> {
    let route = match row.text(&["executor_route_strategy"]).unwrap_or("FIRST") {
        "FIRST" => "first",
        "LAST" => "last",
        "ROUND" => "round",
        "RANDOM" => "random",
        "CONSISTENT_HASH" => {
            draft.changed(
                "consistent_hash: the ring has the names of executors and the id that the job has here, so another executor may get it",
            );
            "consistent_hash"
        }
        "LEAST_FREQUENTLY_USED" => "lfu",
        "LEAST_RECENTLY_USED" => "lru",
        "FAILOVER" => "failover",
        "BUSYOVER" => "busyover",
        "SHARDING_BROADCAST" => "broadcast",
        other => return Err(format!("the routing strategy {other} is unknown")),
    };
    draft.set("route", route);
    Ok(())
}

/// The strategies of XXL-JOB hold on one machine.
fn block(draft: &mut Draft, row: &Row) -> Result<(), String> {
    let given = row.text(&["executor_block_strategy"]);
    let block = match given.unwrap_or("SERIAL_EXECUTION") {
        "SERIAL_EXECUTION" => "serial",
        "DISCARD_LATER" => "discard",
        "COVER_EARLY" => "cover",
        other => return Err(format!("the block strategy {other} is unknown")),
    };
    draft.set("block", block);
    draft.set("scope", "executor");
    Ok(())
}

fn limits(draft: &mut Draft, row: &Row) -> Result<(), String> {
    let timeout = row.number(&["executor_timeout"])?;
    if timeout > 0 {
        let ms = u64::try_from(timeout).unwrap_or_default();
        draft.set("timeout", super::duration(ms.saturating_mul(1_000)));
    }
    let retries = row.number(&["executor_fail_retry_count"])?;
    if retries > 0 {
        draft.set("retry", retries);
    }
    Ok(())
}

fn people(draft: &mut Draft, row: &Row) {
    if let Some(author) = row.text(&["author"]) {
        draft.set("labels", json!({ "author": author }));
    }
    if let Some(address) = row.text(&["alarm_email"]) {
        draft.left_out(format!("the alarm by e-mail to {address}"));
    }
}
