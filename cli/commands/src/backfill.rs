//! `cueline backfill …`: runs for the fire times of a past window.

use std::time::Duration;

use clap::{Args, Subcommand};
use cueline_api::view::{BackfillList, BackfillStarted, BackfillView};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::{JobName, RunState, Timestamp};
use cueline_store::BackfillState;
use serde_json::{Value, json};

use crate::bulk::{Confirmation, confirm};
use crate::client::{Api, read};
use crate::human;
use crate::progress::Progress;

/// How often `--wait` asks.
const POLL: Duration = Duration::from_secs(1);

/// `cueline backfill …`
#[derive(Debug, Subcommand)]
pub(crate) enum BackfillCommand {
    /// Run a job for each fire time of its schedule in a past window
    Start(StartArgs),
    /// List the backfills of the namespace, or of a job
    List(ListArgs),
    /// Show how far a backfill is
    Show(ShowArgs),
    /// Create no further runs for now; those that are there go on
    Pause(OneArg),
    /// Go on with a paused backfill
    Resume(OneArg),
    /// End a backfill and cancel its runs
    Cancel(OneArg),
}

/// `cueline backfill start`
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// The job's name
    #[arg(value_name = "JOB")]
    job: JobName,
    /// The first instant of the window
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    from: Timestamp,
    /// The first instant after it; now by default
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    to: Option<Timestamp>,
    /// How many fire times may be at work at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    parallel: u32,
    /// Also those that calendars and maintenance windows exclude
    #[arg(long)]
    include_excluded: bool,
    /// Wait for its end; the exit status is 1 unless all runs succeed
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// `cueline backfill list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only of this job
    #[arg(value_name = "JOB")]
    job: Option<JobName>,
}

/// One backfill.
#[derive(Debug, Args)]
pub(crate) struct OneArg {
    /// The job's name
    #[arg(value_name = "JOB")]
    job: JobName,
    /// The number of the backfill; the newest of the job by default
    #[arg(long, value_name = "BACKFILL", value_parser = clap::value_parser!(i64).range(1..))]
    id: Option<i64>,
}

/// `cueline backfill show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    one: OneArg,
    /// Wait for its end; the exit status is 1 unless all runs succeed
    #[arg(long)]
    wait: bool,
}

pub(crate) async fn run(api: &Api, out: Out, command: BackfillCommand) -> Result<(), Failure> {
    match command {
        BackfillCommand::Start(args) => start(api, out, &args).await,
        BackfillCommand::List(args) => list(api, out, args.job.as_ref()).await,
        BackfillCommand::Show(args) => {
            let (job, id) = args.one.find(api).await?;
            if args.wait {
                return wait(api, out, &job, id).await;
            }
            let answer = api.get(&path(&job, &id.to_string()), &[]).await?;
            print(out, answer)
        }
        BackfillCommand::Pause(one) => change(api, out, &one, "pause").await,
        BackfillCommand::Resume(one) => change(api, out, &one, "resume").await,
        BackfillCommand::Cancel(one) => change(api, out, &one, "cancel").await,
    }
}

fn path<'a>(job: &'a JobName, id: &'a str) -> [&'a str; 4] {
    ["jobs", job.as_str(), "backfills", id]
}

impl OneArg {
    /// The backfill that is meant.
    async fn find(&self, api: &Api) -> Result<(JobName, i64), Failure> {
        if let Some(id) = self.id {
            return Ok((self.job.clone(), id));
        }
        let listed = api
            .get(&["jobs", self.job.as_str(), "backfills"], &[])
            .await?;
        let listed: BackfillList = read(listed)?;
        let newest = listed.backfills.first().ok_or_else(|| {
            Failure::failed(format!("job {:?} has no backfill", self.job.local()))
        })?;
        Ok((self.job.clone(), newest.id))
    }
}

async fn start(api: &Api, out: Out, args: &StartArgs) -> Result<(), Failure> {
    let to = if let Some(to) = args.to {
        to
    } else {
        let page: BackfillList = read(api.get(&["backfills"], &[]).await?)?;
        page.now
    };
    let mut body = json!({
        "from": args.from, "to": to, "parallel": args.parallel,
        "include_excluded": args.include_excluded, "dry_run": true,
    });
    let path_of_job = ["jobs", args.job.as_str(), "backfills"];
    let answer = api.post(&path_of_job, &body).await?;
    let counted: BackfillStarted = read(answer.clone())?;
    let what = question(args, &counted);
    if args.confirmation.dry_run {
        if out.is_json() {
            return out.json(&answer);
        }
        return out.line(&format!("would run {what}"));
    }
    if !confirm(out, args.confirmation, &format!("run {what}?"))? {
        return Ok(());
    }
    body["dry_run"] = false.into();
    body["expected_fires"] = counted.fires.into();
    let answer = api.post(&path_of_job, &body).await?;
    let started: BackfillStarted = read(answer.clone())?;
    let Some(backfill) = started.backfill else {
        return out.json(&answer);
    };
    if args.wait {
        return wait(api, out, &args.job, backfill.id).await;
    }
    if out.is_json() {
        return out.json(&answer);
    }
    out.line(&format!(
        "backfill {} runs {what}; `cueline backfill show {}` shows how far it is",
        backfill.id,
        args.job.local()
    ))
}

fn question(args: &StartArgs, counted: &BackfillStarted) -> String {
    let times = match counted.fires {
        1 => "1 fire time".to_owned(),
        n => format!("{n} fire times"),
    };
    let excluded = match counted.excluded {
        0 => String::new(),
        n => format!(", without {n} that are excluded"),
    };
    let at_once = match args.parallel {
        1 => "one after the other".to_owned(),
        n => format!("{n} at once"),
    };
    format!("{} for {times}{excluded}, {at_once}", args.job.local())
}

async fn change(api: &Api, out: Out, one: &OneArg, verb: &str) -> Result<(), Failure> {
    let (job, id) = one.find(api).await?;
    let id = id.to_string();
    let path = ["jobs", job.as_str(), "backfills", &id, verb];
    let answer = api.post(&path, &json!({})).await?;
    print(out, answer)
}

/// Shows the progress until the backfill has ended.
async fn wait(api: &Api, out: Out, job: &JobName, id: i64) -> Result<(), Failure> {
    let id = id.to_string();
    let mut progress: Option<Progress> = None;
    loop {
        let answer = api.get(&path(job, &id), &[]).await?;
        let backfill: BackfillView = read(answer.clone())?;
        if backfill.state == BackfillState::Finished || backfill.state == BackfillState::Cancelled {
            drop(progress);
            let ok = backfill.state == BackfillState::Finished && failed(&backfill) == 0;
            print(out, answer)?;
            return if ok { Ok(()) } else { Err(Failure::Silent) };
        }
        let all = usize::try_from(backfill.total).unwrap_or(usize::MAX);
        let bar = progress.get_or_insert_with(|| Progress::bar(out, "", all));
        let failed = match failed(&backfill) {
            0 => String::new(),
            n => format!(", {n} failed"),
        };
        bar.change(&format!(
            "backfill {id} is {}{failed}",
            backfill.state.as_str()
        ));
        bar.reached(usize::try_from(backfill.done).unwrap_or(all));
        tokio::time::sleep(POLL).await;
    }
}

/// Its runs that have ended and did not succeed.
fn failed(backfill: &BackfillView) -> u64 {
    let runs = backfill.runs.iter().flatten();
    runs.filter(|(state, _)| state.is_terminal() && **state != RunState::Succeeded)
        .map(|(_, count)| *count)
        .sum()
}

fn print(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let backfill: BackfillView = read(answer)?;
    let lines = [
        ("backfill", backfill.id.to_string()),
        ("job", backfill.job.local().to_owned()),
        (
            "window",
            format!(
                "{} to {}",
                human::local(backfill.from, "UTC"),
                human::local(backfill.to, "UTC")
            ),
        ),
        ("state", state(&backfill)),
        ("done", format!("{} of {}", backfill.done, backfill.total)),
        (
            "at work",
            format!("{} of {}", backfill.outstanding, backfill.parallel),
        ),
        ("excluded", backfill.excluded.to_string()),
        ("runs", runs(&backfill)),
        (
            "started",
            format!(
                "{} by {}",
                human::local(backfill.started_at, "UTC"),
                backfill.started_by
            ),
        ),
    ];
    for (label, text) in lines {
        if !text.is_empty() {
            out.line(&format!("{:<9} {text}", out.paint(label, Paint::Dim)))?;
        }
    }
    Ok(())
}

fn state(backfill: &BackfillView) -> String {
    let by = match (&backfill.changed_by, backfill.state) {
        (Some(by), BackfillState::Paused | BackfillState::Cancelled) => format!(" by {by}"),
        _ => String::new(),
    };
    let why = backfill.message.as_ref();
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    format!("{}{by}{why}", backfill.state.as_str())
}

fn runs(backfill: &BackfillView) -> String {
    let runs = backfill.runs.iter().flatten();
    let parts: Vec<String> = runs
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    parts.join(", ")
}

async fn list(api: &Api, out: Out, job: Option<&JobName>) -> Result<(), Failure> {
    let answer = match job {
        Some(job) => api.get(&["jobs", job.as_str(), "backfills"], &[]).await?,
        None => api.get(&["backfills"], &[]).await?,
    };
    if out.is_json() {
        return out.json(&answer);
    }
    let found: BackfillList = read(answer)?;
    let mut table = out.table(&[
        "BACKFILL",
        "JOB",
        "STATE",
        "DONE",
        "FROM",
        "TO",
        "STARTED BY",
    ]);
    for backfill in &found.backfills {
        let paint = match backfill.state {
            BackfillState::Running => None,
            BackfillState::Paused => Some(Paint::Warn),
            BackfillState::Finished | BackfillState::Cancelled => Some(Paint::Dim),
        };
        table.add_row(vec![
            cell(backfill.id.to_string(), None),
            cell(backfill.job.local(), None),
            cell(state(backfill), paint),
            cell(format!("{} of {}", backfill.done, backfill.total), None),
            cell(human::local(backfill.from, "UTC"), None),
            cell(human::local(backfill.to, "UTC"), None),
            cell(human::one_line(&backfill.started_by, 30), None),
        ]);
    }
    out.print_table(
        &table,
        "there are no backfills; `cueline backfill start` starts one",
    )
}
