//! `cueline calendar …`: calendars that exclude fire times.

pub(crate) mod args;
mod ics;
mod recurrence;

use std::collections::BTreeMap;

use cueline_api::view::{CalendarList, CalendarRef, CalendarView, CalendarsApplied};
use cueline_interface::{Failure, Out, Paint, cell, jobfile};
use cueline_model::schedule::Zone;
use cueline_model::{CalendarName, CalendarSpec, Namespace, Timestamp};
use cueline_runtime::{Clock, SystemClock};
use cueline_store::Change;
use serde_json::{Value, json};

use self::args::{CalendarApplyArgs, CalendarCommand, CalendarImportArgs};
use crate::client::{Api, read};
use crate::human::one_line;

const DAY_MS: u64 = 86_400_000;

pub(crate) async fn run(api: &Api, out: Out, command: CalendarCommand) -> Result<(), Failure> {
    match command {
        CalendarCommand::List => list(api, out).await,
        CalendarCommand::Show(arg) => show(api, out, &arg.name).await,
        CalendarCommand::Apply(args) => apply_files(api, out, &args).await,
        CalendarCommand::Import(args) => import(api, out, &args).await,
        CalendarCommand::Delete(arg) => {
            let answer = api.delete(&["calendars", &arg.name]).await?;
            if out.is_json() {
                return out.json(&answer);
            }
            let deleted: CalendarRef = read(answer)?;
            out.line(&format!("calendar {} is deleted", deleted.name))
        }
    }
}

async fn list(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["calendars"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: CalendarList = read(answer)?;
    let mut table = out.table(&["CALENDAR", "EXCLUDES", "TIME ZONE", "JOBS"]);
    for calendar in &found.calendars {
        table.add_row(vec![
            cell(calendar.name.local(), None),
            cell(summary(&calendar.definition), None),
            cell(calendar.definition.timezone.name(), None),
            cell(calendar.jobs.len().to_string(), None),
        ]);
    }
    out.print_table(
        &table,
        "there are no calendars; `cueline calendar apply -f FILE` creates some",
    )
}

/// `3 dates, 2 weekdays`.
fn summary(spec: &CalendarSpec) -> String {
    let counts = [
        (spec.dates.len(), "date"),
        (spec.weekdays.len(), "weekday"),
        (spec.times.len(), "daily time"),
        (spec.periods.len(), "period"),
    ];
    let parts = counts.iter().filter(|(count, _)| *count > 0);
    let parts = parts.map(|(count, what)| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

async fn show(api: &Api, out: Out, name: &str) -> Result<(), Failure> {
    let answer = api.get(&["calendars", name], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let calendar: CalendarView = read(answer)?;
    let spec = &calendar.definition;
    let jobs: Vec<&str> = calendar
        .jobs
        .iter()
        .map(cueline_model::JobName::local)
        .collect();
    let mut lines = vec![
        ("name", calendar.name.local().to_owned()),
        ("version", calendar.version.to_string()),
        ("timezone", spec.timezone.name().to_owned()),
        ("excludes", summary(spec)),
        (
            "jobs",
            if jobs.is_empty() {
                "–".to_owned()
            } else {
                jobs.join(", ")
            },
        ),
    ];
    if !spec.description.is_empty() {
        lines.insert(1, ("about", one_line(&spec.description, 100)));
    }
    for (label, text) in lines {
        out.line(&format!("{:<9} {text}", out.paint(label, Paint::Dim)))?;
    }
    out.line(&out.paint("definition", Paint::Dim))?;
    out.json(&value(spec)?)
}

fn value(spec: &CalendarSpec) -> Result<Value, Failure> {
    serde_json::to_value(spec)
        .map_err(|error| Failure::failed(format!("failed to print the definition: {error}")))
}

async fn apply_files(api: &Api, out: Out, args: &CalendarApplyArgs) -> Result<(), Failure> {
    let found =
        jobfile::read_all(&args.files, api.namespace()).map_err(|error| Failure::BadInput {
            messages: error.messages,
            summary: Some("nothing was applied".to_owned()),
        })?;
    let answer = send(api, &found.calendars, args.dry_run).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    print_applied(out, &read(answer)?)
}

/// Prints what an apply changed.
pub(crate) fn print_applied(out: Out, answer: &CalendarsApplied) -> Result<(), Failure> {
    let mut counts = [0_usize; 3];
    for one in &answer.applied {
        let (index, word, paint) = match one.change {
            Change::Created => (0, "created", Paint::Good),
            Change::Updated => (1, "changed", Paint::Warn),
            Change::Unchanged => (2, "unchanged", Paint::Dim),
        };
        counts[index] += 1;
        if one.change != Change::Unchanged {
            let word = out.paint(word, paint);
            out.line(&format!("{word:<9} calendar {}", one.name))?;
        }
    }
    let [created, changed, unchanged] = counts;
    let would = if answer.dry_run {
        " (nothing was changed: dry run)"
    } else {
        ""
    };
    out.line(&format!(
        "calendars: {created} created, {changed} changed, {unchanged} unchanged{would}"
    ))
}

/// Sends calendars, those of each namespace in a request of its own. Returns one answer in the order of `specs`.
pub(crate) async fn send(
    api: &Api,
    specs: &[CalendarSpec],
    dry_run: bool,
) -> Result<Value, Failure> {
    let mut parts: BTreeMap<Namespace, Vec<(usize, &CalendarSpec)>> = BTreeMap::new();
    for (position, spec) in specs.iter().enumerate() {
        let part = parts.entry(spec.name.namespace()).or_default();
        part.push((position, spec));
    }
    let mut applied = vec![Value::Null; specs.len()];
    for (namespace, part) in &parts {
        let calendars: Vec<&CalendarSpec> = part.iter().map(|(_, spec)| *spec).collect();
        let body = json!({ "calendars": calendars, "dry_run": dry_run });
        let api = api.in_namespace(namespace);
        let mut answer = api.post(&["calendars", "apply"], &body).await?;
        let Some(Value::Array(found)) = answer.get_mut("applied").map(Value::take) else {
            continue;
        };
        for ((position, _), one) in part.iter().zip(found) {
            applied[*position] = one;
        }
    }
    Ok(json!({ "dry_run": dry_run, "applied": applied }))
}

async fn import(api: &Api, out: Out, args: &CalendarImportArgs) -> Result<(), Failure> {
    let text = jobfile::read_text(&args.file).map_err(Failure::bad_input)?;
    let zone = Zone::get(&args.timezone).map_err(|unknown| {
        Failure::bad_input(format!("--timezone: {}", unknown.with_suggestion()))
    })?;
    let stem = args.file.file_stem().and_then(|stem| stem.to_str());
    let name = args.name.as_deref().or(stem).unwrap_or_default();
    let name = CalendarName::in_namespace(api.namespace(), name)
        .map_err(|error| Failure::bad_input(format!("{name:?}: {error}; give --name")))?;
    let now = Timestamp::from_millis(SystemClock.now_ms());
    let options = ics::Options {
        name,
        zone,
        from: now,
        to: now.plus_ms(args.years * 366 * DAY_MS),
    };
    let file = args.file.display();
    let imported = ics::import(&text, &options)
        .map_err(|error| Failure::bad_input(format!("{file}: {error}")))?;
    for ignored in &imported.ignored {
        cueline_interface::say(&format!("{file}: left out: {ignored}"));
    }
    if imported.past > 0 {
        cueline_interface::say(&format!("{file}: left out: {} past events", imported.past));
    }
    let calendar = value(&imported.spec)?;
    if args.print {
        return out.json(&json!({ "calendars": [calendar] }));
    }
    let answer = send(api, &[imported.spec], false).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    out.line(&format!(
        "{} events until {}",
        imported.events,
        &options.to.to_string()[..10]
    ))?;
    print_applied(out, &read(answer)?)
}
