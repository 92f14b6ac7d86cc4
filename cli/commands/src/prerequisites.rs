//! What job files define besides jobs: calendars and scripts. They are applied before the jobs that use them.

use std::collections::BTreeSet;

use cueline_api::view::{CalendarsApplied, ScriptsApplied};
use cueline_interface::{Failure, Out, Paint};
use cueline_model::decode::Definitions;
use cueline_model::{CalendarName, JobSpec, ScriptName};
use cueline_store::Change;
use serde_json::{Value, json};

use crate::client::{Api, read};
use crate::{calendar, script};

/// The server's answers about calendars and scripts.
pub(crate) struct Prerequisites {
    calendars: CalendarsApplied,
    scripts: ScriptsApplied,
}

/// Whether files define something besides jobs.
pub(crate) fn are_in(found: &Definitions) -> bool {
    !found.calendars.is_empty() || !found.scripts.is_empty()
}

/// Applies calendars and scripts, or compares them. Before it writes, it compares all of them, so that wrong ones are
/// refused before anything is written.
pub(crate) async fn send(
    api: &Api,
    found: &Definitions,
    dry_run: bool,
) -> Result<Prerequisites, Failure> {
    if !dry_run {
        calendar::send(api, &found.calendars, true).await?;
        script::send(api, &found.scripts, true).await?;
    }
    let calendars = calendar::send(api, &found.calendars, dry_run).await?;
    let scripts = script::send(api, &found.scripts, dry_run).await?;
    Ok(Prerequisites {
        calendars: read(calendars)?,
        scripts: read(scripts)?,
    })
}

impl Prerequisites {
    /// Splits jobs into those that wait for what a dry run would create, and the others. The server cannot compare the
    /// former.
    pub(crate) fn split(
        &self,
        jobs: impl IntoIterator<Item = JobSpec>,
    ) -> (Vec<JobSpec>, Vec<JobSpec>) {
        let created = |change: Change| change == Change::Created;
        let calendars = self.calendars.applied.iter();
        let calendars: BTreeSet<&CalendarName> = calendars
            .filter(|one| created(one.change))
            .map(|one| &one.name)
            .collect();
        let scripts = |wanted: fn(Change) -> bool| -> BTreeSet<&ScriptName> {
            let scripts = self.scripts.applied.iter();
            let scripts = scripts.filter(|one| wanted(one.change));
            scripts.map(|one| &one.name).collect()
        };
        let new = scripts(|change| change == Change::Created);
        let changed = scripts(|change| change != Change::Unchanged);
        let waits = |spec: &JobSpec| {
            spec.calendar_names().any(|name| calendars.contains(&name))
                || spec.script().is_some_and(|(name, version)| match version {
                    None => new.contains(&name),
                    // The version may be the one that the file saves.
                    Some(_) => changed.contains(&name),
                })
        };
        jobs.into_iter().partition(waits)
    }

    /// Prints what an apply changed.
    pub(crate) fn print(&self, out: Out) -> Result<(), Failure> {
        if !self.calendars.applied.is_empty() {
            calendar::print_applied(out, &self.calendars)?;
        }
        if !self.scripts.applied.is_empty() {
            script::print_applied(out, &self.scripts)?;
        }
        Ok(())
    }

    /// Prints the differences, and returns whether there are any.
    pub(crate) fn print_differences(&self, out: Out) -> Result<bool, Failure> {
        let calendars = self.calendars.applied.iter();
        let calendars = calendars.map(|one| ("calendar", one.name.as_str(), one.change));
        let scripts = self.scripts.applied.iter();
        let scripts = scripts.map(|one| ("script", one.name.as_str(), one.change));
        let mut found = false;
        for (what, name, change) in calendars.chain(scripts) {
            let (sign, paint) = match change {
                Change::Unchanged => continue,
                Change::Created => ("+", Paint::Good),
                Change::Updated => ("~", Paint::Warn),
            };
            out.line(&out.paint(&format!("{sign} {what} {name}"), paint))?;
            found = true;
        }
        Ok(found)
    }

    /// Adds the changes to the JSON answer about jobs. `waiting` jobs were not compared.
    pub(crate) fn add_to(&self, answer: &mut Value, waiting: Option<usize>) {
        if !self.calendars.applied.is_empty() {
            answer["calendars"] = json!(self.calendars.applied);
        }
        if !self.scripts.applied.is_empty() {
            answer["scripts"] = json!(self.scripts.applied);
        }
        let is_empty = self.calendars.applied.is_empty() && self.scripts.applied.is_empty();
        if let Some(waiting) = waiting.filter(|_| !is_empty) {
            answer["not_compared"] = waiting.into();
        }
    }
}
