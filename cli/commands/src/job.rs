//! `cueline job …`

use std::collections::BTreeMap;

use cueline_api::view::{ApplyAnswer, JobPage, JobView, LeftOutView, NextTimes};
use cueline_interface::{Failure, Out, Paint, cell, jobfile};
use cueline_model::decode::Definitions;
use cueline_model::{JobName, JobSpec, Namespace, RunState, Timestamp};
use cueline_store::{Change, Run};
use serde_json::{Value, json};

use crate::args::{ApplyArgs, FilesArgs, JobCommand, NextArgs, PreviewArgs};
use crate::bulk::export;
use crate::client::{Api, read};
use crate::human;
use crate::job_change::{delete, set_enabled};
use crate::list_args::JobListArgs;
use crate::lists::{List, print_next, values};
use crate::namespaces::AllNamespaces;
use crate::progress::Progress;
use crate::{job_history, jobdiff, pause, prerequisites, retention, watch};

pub(crate) async fn run(api: &Api, out: Out, command: JobCommand) -> Result<(), Failure> {
    match command {
        JobCommand::Apply(args) => apply_files(api, out, &args).await,
        JobCommand::Export(args) => export(api, out, &args.filter, args.out.as_deref()).await,
        JobCommand::Diff(args) => diff(api, out, &args).await,
        JobCommand::List(args) => {
            let fetch = async || fetch_list(api, &args).await;
            watch::show(out, args.watch, fetch, |jobs| list(out, jobs, args.all)).await
        }
        JobCommand::Show(job) => show(api, out, &job.name).await,
        JobCommand::Next(args) => next(api, out, &args).await,
        JobCommand::Preview(args) => preview(api, out, &args).await,
        JobCommand::Pause(job) => set_enabled(api, out, &job, ("pause", "paused")).await,
        JobCommand::Resume(job) => set_enabled(api, out, &job, ("resume", "resumed")).await,
        JobCommand::Delete(job) => delete(api, out, &job).await,
        JobCommand::History(args) => job_history::history(api, out, &args).await,
        JobCommand::Restore(args) => job_history::restore(api, out, &args).await,
    }
}

/// Reads job files into one list. On failure returns every error and `summary`.
fn read_files(
    args: &FilesArgs,
    namespace: &Namespace,
    summary: &str,
) -> Result<Definitions, Failure> {
    jobfile::read_all(&args.files, namespace).map_err(|error| Failure::BadInput {
        messages: error.messages,
        summary: Some(summary.to_owned()),
    })
}

async fn apply_files(api: &Api, out: Out, args: &ApplyArgs) -> Result<(), Failure> {
    let found = read_files(&args.files, api.namespace(), "nothing was applied")?;
    let dry_run = args.confirmation.dry_run;
    let Some(prune) = &args.prune else {
        return apply_found(api, out, &found, dry_run).await;
    };
    prune.check(&found.jobs)?;
    apply_found(api, out, &found, dry_run).await?;
    prune.run(api, out, &found.jobs, args.confirmation).await
}

/// Applies calendars and scripts, then the jobs that may use them.
async fn apply_found(
    api: &Api,
    out: Out,
    found: &Definitions,
    dry_run: bool,
) -> Result<(), Failure> {
    if !prerequisites::are_in(found) {
        return apply(api, out, &found.jobs, dry_run).await;
    }
    let before = prerequisites::send(api, found, dry_run).await?;
    let (waiting, jobs) = if dry_run {
        before.split(found.jobs.iter().cloned())
    } else {
        (Vec::new(), found.jobs.clone())
    };
    if out.is_json() {
        let mut answer = send(api, out, &jobs, dry_run).await?;
        before.add_to(&mut answer, dry_run.then_some(waiting.len()));
        return out.json(&answer);
    }
    before.print(out)?;
    apply(api, out, &jobs, dry_run).await?;
    if !waiting.is_empty() {
        out.line(&format!(
            "{} jobs use new calendars or scripts and were not compared",
            waiting.len()
        ))?;
    }
    Ok(())
}

/// Applies definitions and prints what changed.
pub(crate) async fn apply(
    api: &Api,
    out: Out,
    specs: &[JobSpec],
    dry_run: bool,
) -> Result<(), Failure> {
    let answer = send(api, out, specs, dry_run).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let answer: ApplyAnswer = read(answer)?;
    let mut counts = [0_usize; 3];
    for one in &answer.applied {
        let (index, word, paint) = match one.change {
            Change::Created => (0, "created", Paint::Good),
            Change::Updated => (1, "changed", Paint::Warn),
            Change::Unchanged => (2, "unchanged", Paint::Dim),
        };
        counts[index] += 1;
        if one.change != Change::Unchanged {
            out.line(&format!("{:<9} {}", out.paint(word, paint), one.name))?;
        }
    }
    let [created, changed, unchanged] = counts;
    let would = if dry_run {
        " (nothing was changed: dry run)"
    } else {
        ""
    };
    out.line(&format!(
        "{created} created, {changed} changed, {unchanged} unchanged{would}"
    ))
}

/// Sends definitions, those of each namespace in a request of its own, and returns one answer in the order of `specs`.
pub(crate) async fn send(
    api: &Api,
    out: Out,
    specs: &[JobSpec],
    dry_run: bool,
) -> Result<Value, Failure> {
    let what = if dry_run { "comparing" } else { "applying" };
    // One request applies all jobs of a namespace, so there is hardly anything to count.
    let _progress = Progress::spinner(out, &format!("{what} {} jobs", specs.len()));
    let mut parts: BTreeMap<Namespace, Vec<(usize, &JobSpec)>> = BTreeMap::new();
    for (position, spec) in specs.iter().enumerate() {
        let part = parts.entry(spec.name.namespace()).or_default();
        part.push((position, spec));
    }
    if parts.is_empty() {
        return send_part(api, &[], dry_run).await;
    }
    if parts.len() > 1 && !dry_run {
        // Refuses what cannot be applied in one namespace before anything is applied in another.
        for (namespace, part) in &parts {
            send_part(&api.in_namespace(namespace), part, true).await?;
        }
    }
    let mut applied = vec![Value::Null; specs.len()];
    for (namespace, part) in &parts {
        let mut answer = send_part(&api.in_namespace(namespace), part, dry_run).await?;
        let Some(Value::Array(found)) = answer.get_mut("applied").map(Value::take) else {
            continue;
        };
        for ((position, _), one) in part.iter().zip(found) {
            applied[*position] = one;
        }
    }
    Ok(json!({ "dry_run": dry_run, "applied": applied }))
}

async fn send_part(
    api: &Api,
    specs: &[(usize, &JobSpec)],
    dry_run: bool,
) -> Result<Value, Failure> {
    let specs: Vec<&JobSpec> = specs.iter().map(|(_, spec)| *spec).collect();
    let body = json!({ "jobs": specs, "dry_run": dry_run });
    api.post(&["jobs", "apply"], &body)
        .await
        .map_err(|failure| match failure {
            Failure::BadInput { messages, .. } => Failure::BadInput {
                messages,
                summary: Some("nothing was applied".to_owned()),
            },
            other => other,
        })
}

async fn diff(api: &Api, out: Out, args: &FilesArgs) -> Result<(), Failure> {
    let found = read_files(args, api.namespace(), "nothing was compared")?;
    let before = prerequisites::send(api, &found, true).await?;
    // The server cannot compare jobs whose calendars or scripts are not there yet. They are shown as waiting.
    let (waiting, specs) = before.split(found.jobs);
    // The server compares, because only the server can check some rules, such as whether a parent exists.
    let answer: ApplyAnswer = read(send(api, out, &specs, true).await?)?;
    let mut changes = Vec::new();
    let progress = Progress::bar(out, "comparing jobs", specs.len());
    for (done, (spec, one)) in specs.iter().zip(&answer.applied).enumerate() {
        progress.reached(done);
        let fields = match one.change {
            Change::Unchanged => continue,
            Change::Created => Vec::new(),
            Change::Updated => {
                let api = api.in_namespace(&spec.name.namespace());
                let job: JobView = read(api.get(&["jobs", spec.name.local()], &[]).await?)?;
                jobdiff::fields(&job.job.spec, &spec.over(Some(&job.job.spec)))
            }
        };
        changes.push((spec.name.clone(), one.change, fields));
    }
    drop(progress);
    if out.is_json() {
        let changes: Vec<_> = changes
            .iter()
            .map(|(name, change, fields)| json!({ "name": name, "change": change, "fields": fields }))
            .collect();
        let mut answer = json!({ "changes": changes });
        before.add_to(&mut answer, Some(waiting.len()));
        return out.json(&answer);
    }
    let others_changed = before.print_differences(out)?;
    for spec in &waiting {
        out.line(&format!(
            "? {} uses a new calendar or script and was not compared",
            spec.name
        ))?;
    }
    for (name, change, fields) in &changes {
        match change {
            Change::Created => out.line(&out.paint(&format!("+ {name}"), Paint::Good))?,
            _ => out.line(&out.paint(&format!("~ {name}"), Paint::Warn))?,
        }
        for field in fields {
            out.line(&format!("    {field}"))?;
        }
    }
    if changes.is_empty() && waiting.is_empty() && !others_changed {
        out.line("no differences")?;
    }
    Ok(())
}

async fn fetch_list(api: &Api, args: &JobListArgs) -> Result<Value, Failure> {
    let mut query = values("name", &args.names);
    query.extend(args.groups.query());
    query.extend(args.labels.query());
    query.extend(values("state", &args.states));
    let list = List {
        path: &["jobs"],
        key: "jobs",
        most: None,
    };
    list.read(api, &query, args.all, &args.page).await
}

fn list(out: Out, answer: Value, namespaces: AllNamespaces) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let page: JobPage = read(answer)?;
    let heads = ["NAME", "GROUP", "SCHEDULE", "NEXT", "LAST", "24 H"];
    let mut table = out.table(&namespaces.column("NAMESPACE", heads.to_vec()));
    for job in &page.jobs {
        let spec = &job.job.spec;
        let (last, paint) = last(job.last.as_ref(), page.now);
        let row = vec![
            cell(spec.name.local(), None),
            cell(spec.group.local(), None),
            cell(human::schedule(spec), None),
            cell(
                next_fire(job, page.now),
                (!spec.is_enabled() || job.pause.is_some()).then_some(Paint::Dim),
            ),
            cell(last, paint),
            cell(day(job), None),
        ];
        let namespace = cell(spec.name.namespace().as_str(), None);
        table.add_row(namespaces.column(namespace, row));
    }
    out.print_table(
        &table,
        "there are no such jobs; `cueline job apply -f FILE` creates some",
    )?;
    print_next(out, page.next.as_deref())
}

fn next_fire(job: &JobView, now: Timestamp) -> String {
    if !job.job.spec.is_enabled() {
        return "paused".to_owned();
    }
    match (&job.pause, job.next_fire) {
        (Some(pause), _) => pause::short_text(pause),
        (None, Some(at)) if at <= now => "now".to_owned(),
        (None, Some(at)) => human::relative(at, now),
        (None, None) => "–".to_owned(),
    }
}

fn last(run: Option<&Run>, now: Timestamp) -> (String, Option<Paint>) {
    let Some(run) = run else {
        return ("–".to_owned(), None);
    };
    let paint = Paint::of_state(run.state);
    let text = match (run.state, run.started_at, run.ended_at) {
        (RunState::Succeeded, Some(from), Some(to)) => {
            format!("ok {}", human::took(human::between(from, to)))
        }
        (RunState::Running, Some(from), _) => {
            format!("running {}", human::took(human::between(from, now)))
        }
        (state, _, Some(at)) => format!("{} {}", words(state), human::relative(at, now)),
        (state, ..) => words(state),
    };
    (text, paint)
}

fn words(state: RunState) -> String {
    state.as_str().replace('_', " ")
}

fn day(job: &JobView) -> String {
    let parts: Vec<String> = job
        .day
        .iter()
        .filter(|(state, count)| state.is_terminal() && **count > 0)
        .map(|(state, count)| match state {
            RunState::Succeeded => format!("{count} ok"),
            other => format!("{count} {}", words(*other)),
        })
        .collect();
    if parts.is_empty() {
        "–".to_owned()
    } else {
        parts.join(" ")
    }
}

async fn show(api: &Api, out: Out, name: &JobName) -> Result<(), Failure> {
    let answer = api.get(&["jobs", name.as_str()], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let job: JobView = read(answer)?;
    let spec = &job.job.spec;
    let mut lines = vec![
        ("name", spec.name.local().to_owned()),
        ("version", job.job.version.to_string()),
        ("group", spec.group.local().to_owned()),
        ("schedule", human::schedule(spec)),
        (
            "enabled",
            if spec.is_enabled() {
                "yes"
            } else {
                "no, it is paused"
            }
            .to_owned(),
        ),
        ("handler", human::handler(&spec.handler)),
        ("24 h", day(&job)),
    ];
    if !spec.name.namespace().is_default() {
        lines.insert(1, ("namespace", spec.name.namespace().to_string()));
    }
    let pause = job.pause.as_ref();
    lines.extend(pause.map(|pause| ("paused", pause::text(pause, zone(spec)))));
    if let Some(at) = job.next_fire {
        lines.push(("next", human::local(at, zone(spec))));
    }
    lines.push(("kept", retention::of_job(api, name).await?));
    if !spec.description.is_empty() {
        lines.insert(1, ("about", human::one_line(&spec.description, 100)));
    }
    for (label, text) in lines {
        out.line(&format!("{:<9} {text}", out.paint(label, Paint::Dim)))?;
    }
    out.line(&out.paint("definition", Paint::Dim))?;
    let definition = serde_json::to_value(spec)
        .map_err(|error| Failure::failed(format!("failed to print the definition: {error}")))?;
    out.json(&definition)
}

/// The time zone in which a job's times are shown.
fn zone(spec: &JobSpec) -> &str {
    spec.schedule.zones().next().unwrap_or("UTC")
}

async fn next(api: &Api, out: Out, args: &NextArgs) -> Result<(), Failure> {
    let mut query = vec![("n", args.n.to_string())];
    query.extend(args.from.map(|at| ("from", at.as_millis().to_string())));
    let answer = api
        .get(&["jobs", args.name.as_str(), "next"], &query)
        .await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let next: NextTimes = read(answer)?;
    let job: JobView = read(api.get(&["jobs", args.name.as_str()], &[]).await?)?;
    print_times(out, &next, zone(&job.job.spec))
}

/// Prints fire times with what is left out between them, in the order of time.
fn print_times(out: Out, next: &NextTimes, zone: &str) -> Result<(), Failure> {
    let mut left_out = next.left_out.iter().peekable();
    let print_left_out = |entry: &LeftOutView| {
        let first = human::local(entry.first, zone);
        let more = if entry.more { "at least " } else { "" };
        let times = match entry.count {
            1 => String::new(),
            count => format!(" and {more}{} more", count - 1),
        };
        let text = format!("not {first}{times}: {}", entry.reason);
        out.line(&out.paint(&text, Paint::Dim))
    };
    for at in &next.times {
        while let Some(entry) = left_out.next_if(|entry| entry.first < *at) {
            print_left_out(entry)?;
        }
        out.line(&human::local(*at, zone))?;
    }
    for entry in left_out {
        print_left_out(entry)?;
    }
    match &next.note {
        Some(note) => out.line(&out.paint(note, Paint::Dim)),
        None => Ok(()),
    }
}

/// Shows the next fire times of unsaved definitions.
async fn preview(api: &Api, out: Out, args: &PreviewArgs) -> Result<(), Failure> {
    let found = read_files(&args.files, api.namespace(), "nothing was previewed")?;
    let mut answers = Vec::new();
    for spec in &found.jobs {
        let api = api.in_namespace(&spec.name.namespace());
        let from = args.from.map(Timestamp::as_millis);
        let body = json!({ "job": spec, "n": args.n, "from": from });
        let answer = api.post(&["preview"], &body).await?;
        if out.is_json() {
            answers.push(json!({ "job": spec.name, "next": answer }));
            continue;
        }
        let next: NextTimes = read(answer)?;
        out.line(&out.paint(spec.name.as_str(), Paint::Dim))?;
        print_times(out, &next, zone(spec))?;
    }
    if out.is_json() {
        return out.json(&json!({ "previews": answers }));
    }
    Ok(())
}
