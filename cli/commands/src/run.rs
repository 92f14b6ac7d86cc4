//! `cueline run …`

use cueline_api::view::{CancelAnswer, CancelResult, LogPage, RunPage};
use cueline_interface::{Failure, Out, Paint, cell, say};
use cueline_model::{LogStream, Timestamp};
use cueline_store::{Run, RunDetail, StoredLogLine};
use serde_json::{Value, json};

use crate::args::{LogsArgs, RunCommand, RunListArgs};
use crate::bulk;
use crate::client::{Api, read};
use crate::human;
use crate::lists::{List, print_next, values};
use crate::namespaces::AllNamespaces;
use crate::watch;

/// How long the server may wait for lines; below the client's answer timeout.
const LONG_POLL_MS: u32 = 20_000;
const LOG_PAGE: u32 = 1_000;

pub(crate) async fn run(api: &Api, out: Out, command: RunCommand) -> Result<(), Failure> {
    match command {
        RunCommand::List(args) => {
            let fetch = async || fetch_list(api, &args).await;
            watch::show(out, args.watch, fetch, |page| list(out, page, args.all)).await
        }
        RunCommand::Show(args) => {
            let id = args.run.id.to_string();
            let fetch = async || api.get(&["runs", &id], &[]).await;
            watch::show(out, args.watch, fetch, |run| show(out, run)).await
        }
        RunCommand::Logs(args) => logs(api, out, &args).await,
        RunCommand::Cancel(run) => cancel(api, out, run.id).await,
        RunCommand::Prune(args) => bulk::prune_runs(api, out, &args).await,
    }
}

async fn fetch_list(api: &Api, args: &RunListArgs) -> Result<Value, Failure> {
    let mut query = values("job", &args.jobs);
    query.extend(args.groups.query());
    query.extend(args.labels.query());
    query.extend(values("state", &args.states));
    query.extend(values("kind", &args.kinds));
    query.extend(values("executor", &args.executors));
    query.extend(args.window.query());
    let list = List {
        path: &["runs"],
        key: "runs",
        most: Some(50),
    };
    list.read(api, &query, args.all, &args.page).await
}

fn list(out: Out, answer: Value, all: AllNamespaces) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let page: RunPage = read(answer)?;
    let heads = ["RUN", "JOB", "STATE", "DUE", "EXECUTOR", "TOOK", "MESSAGE"];
    let mut table = out.table(&all.column("NAMESPACE", heads.to_vec()));
    for run in &page.runs {
        let message = run.message.as_deref().unwrap_or_default();
        let row = vec![
            cell(run.id.to_string(), None),
            cell(job_of(run), None),
            cell(state_of(run), Paint::of_state(run.state)),
            cell(human::relative(run.due_at, page.now), None),
            cell(executor_of(run), None),
            cell(took(run, page.now).unwrap_or_else(|| "–".to_owned()), None),
            cell(human::one_line(message, 60), None),
        ];
        let namespace = cell(run.namespace.as_str(), None);
        table.add_row(all.column(namespace, row));
    }
    out.print_table(&table, "there are no such runs")?;
    print_next(out, page.next.as_deref())
}

fn job_of(run: &Run) -> String {
    if run.shard.total > 1 {
        format!(
            "{} {}/{}",
            run.job.local(),
            run.shard.index + 1,
            run.shard.total
        )
    } else {
        run.job.local().to_owned()
    }
}

fn state_of(run: &Run) -> String {
    let state = run.state.as_str().replace('_', " ");
    if run.attempt > 1 {
        format!("{state} (attempt {})", run.attempt)
    } else {
        state
    }
}

fn executor_of(run: &Run) -> String {
    run.executor
        .as_ref()
        .map_or_else(|| "–".to_owned(), ToString::to_string)
}

fn took(run: &Run, now: Timestamp) -> Option<String> {
    let from = run.started_at?;
    let to = run.ended_at.unwrap_or(now);
    Some(human::took(human::between(from, to)))
}

fn show(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let detail: RunDetail = read(answer)?;
    for (label, text) in fields(out, &detail.run) {
        out.line(&format!(
            "{} {text}",
            out.paint(&format!("{label:<9}"), Paint::Dim)
        ))?;
    }
    for entry in &detail.timeline {
        out.line(&format!(
            "{} attempt {}  {}  {}",
            out.paint(&entry.at.to_string(), Paint::Dim),
            entry.attempt,
            entry.event,
            entry.detail
        ))?;
    }
    Ok(())
}

/// The lines that `show` prints for a run, with labels.
fn fields(out: Out, run: &Run) -> Vec<(&'static str, String)> {
    let state = match Paint::of_state(run.state) {
        Some(paint) => out.paint(&state_of(run), paint),
        None => state_of(run),
    };
    let mut lines = vec![
        ("run", run.id.to_string()),
        (
            "job",
            format!("{} (group {})", job_of(run), run.group.local()),
        ),
        ("made by", run.kind.as_str().to_owned()),
        ("state", state),
        ("executor", executor_of(run)),
        ("fire time", run.fire_at.to_string()),
    ];
    if !run.job.namespace().is_default() {
        lines.insert(1, ("namespace", run.job.namespace().to_string()));
    }
    let times = [
        ("due", Some(run.due_at).filter(|due| *due != run.fire_at)),
        ("queued", run.queued_at),
        ("started", run.started_at),
        ("ended", run.ended_at),
    ];
    lines.extend(
        times
            .into_iter()
            .filter_map(|(label, at)| Some((label, at?.to_string()))),
    );
    if let (Some(from), Some(to)) = (run.started_at, run.ended_at) {
        lines.push(("took", human::took(human::between(from, to))));
    }
    lines.extend(run.exit_status.map(|status| ("exit", status.to_string())));
    lines.extend(
        run.progress
            .map(|part| ("progress", format!("{:.0} %", part * 100.0))),
    );
    lines.extend(
        run.cancel_requested
            .then(|| ("cancel", "asked for".to_owned())),
    );
    lines.extend(run.parent.map(|parent| ("parent", parent.to_string())));
    let texts = [
        ("message", &run.message),
        ("params", &run.params),
        ("output", &run.output),
    ];
    lines.extend(
        texts
            .into_iter()
            .filter_map(|(label, text)| Some((label, text.clone()?))),
    );
    lines
}

async fn logs(api: &Api, out: Out, args: &LogsArgs) -> Result<(), Failure> {
    let wait_ms = if args.follow { LONG_POLL_MS } else { 0 };
    let (mut after, mut attempt) = (0, None);
    loop {
        let query = [
            ("after", after.to_string()),
            ("limit", LOG_PAGE.to_string()),
            ("wait_ms", wait_ms.to_string()),
        ];
        let page: LogPage = read(
            api.get(&["runs", &args.id.to_string(), "logs"], &query)
                .await?,
        )?;
        for line in &page.lines {
            print_line(out, args, line, &mut attempt)?;
        }
        after = page.next;
        let more = args.follow || page.lines.len() >= LOG_PAGE as usize;
        if page.ended || !more {
            return Ok(());
        }
    }
}

fn print_line(
    out: Out,
    args: &LogsArgs,
    row: &StoredLogLine,
    attempt: &mut Option<u32>,
) -> Result<(), Failure> {
    if out.is_json() {
        return out.json_line(&json!(row));
    }
    // The first attempt is the usual case and needs no heading. Headings go to standard error, so that standard output
    // has only the lines of the log.
    if attempt.replace(row.attempt).unwrap_or(1) != row.attempt {
        say(&format!("── attempt {} ──", row.attempt));
    }
    let text = if row.line.stream == LogStream::Err {
        out.paint(&row.line.text, Paint::Warn)
    } else {
        row.line.text.clone()
    };
    if args.timestamps {
        out.line(&format!(
            "{} {text}",
            out.paint(&row.line.at.to_string(), Paint::Dim)
        ))
    } else {
        out.line(&text)
    }
}

async fn cancel(api: &Api, out: Out, id: i64) -> Result<(), Failure> {
    let answer: Value = api
        .post(&["runs", &id.to_string(), "cancel"], &json!({}))
        .await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let answer: CancelAnswer = read(answer)?;
    out.line(&match (answer.result, answer.state) {
        (CancelResult::Done, _) => format!("run {id} is cancelled; it had not been started"),
        (CancelResult::Asked, _) => format!("run {id} is being stopped by its executor"),
        (CancelResult::Ended, Some(state)) => {
            format!(
                "run {id} had already ended: {}",
                state.as_str().replace('_', " ")
            )
        }
        (CancelResult::Ended, None) => format!("run {id} had already ended"),
    })
}
