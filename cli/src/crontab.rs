//! `cueline import crontab`: creates a job from each line of a crontab, or refuses the line with a reason.

use std::collections::HashMap;
use std::path::Path;

use cueline_model::schedule::CronSchedule;
use cueline_model::{GroupName, JobName, JobSpec, Namespace, crontab};
use serde_json::json;

use crate::args::{CrontabArgs, UserColumn};
use crate::client::Api;
use crate::context::chosen;
use crate::context::server_args::ServerArgs;
use crate::failure::{Failure, say};
use crate::human;
use crate::output::{Out, Paint};
use crate::{job, jobfile};

/// The results for all lines of all files.
#[derive(Default)]
struct Found {
    jobs: Vec<(String, JobSpec)>,
    refused: Vec<(String, String)>,
    warnings: Vec<(String, String)>,
}

/// Imports the files. A dry run needs no server.
pub(crate) async fn run(server: &ServerArgs, out: Out, args: &CrontabArgs) -> Result<(), Failure> {
    let api = if args.dry_run {
        None
    } else {
        Some(Api::new(server)?)
    };
    let namespace = match &api {
        Some(api) => api.namespace().clone(),
        None => chosen::namespace(server)?,
    };
    let found = read_all(args, &namespace)?;
    if out.is_json() {
        return run_json(api.as_ref(), out, &found).await;
    }
    for (place, job) in &found.jobs {
        let (name, when) = (&job.name, human::schedule(job));
        let what = human::handler(&job.handler);
        out.line(&format!(
            "{place}: {} {name}  {when}  {what}",
            out.paint("job", Paint::Good)
        ))?;
    }
    for (place, message) in &found.warnings {
        say(&format!("warning: {place}: {message}"));
    }
    for (place, reason) in &found.refused {
        say(&format!("refused: {place}: {reason}"));
    }
    match &api {
        None => out.line("nothing was applied: dry run")?,
        Some(_) if found.jobs.is_empty() => {}
        Some(api) => job::apply(api, out, &found.specs(), false).await?,
    }
    found.verdict()
}

/// Without `api` it is a dry run.
async fn run_json(api: Option<&Api>, out: Out, found: &Found) -> Result<(), Failure> {
    let places = |list: &[(String, String)]| {
        list.iter()
            .map(|(place, message)| json!({ "place": place, "message": message }))
            .collect::<Vec<_>>()
    };
    let specs = found.specs();
    let applied = match api {
        Some(api) if !specs.is_empty() => Some(job::send(api, out, &specs, false).await?),
        _ => None,
    };
    out.json(&json!({
        "jobs": specs,
        "warnings": places(&found.warnings),
        "refused": places(&found.refused),
        "answer": applied,
    }))?;
    found.verdict()
}

impl Found {
    fn specs(&self) -> Vec<JobSpec> {
        self.jobs.iter().map(|(_, job)| job.clone()).collect()
    }

    fn verdict(&self) -> Result<(), Failure> {
        let lines = self.jobs.len() + self.refused.len();
        match self.refused.len() {
            0 => Ok(()),
            refused => Err(Failure::BadInput {
                messages: vec![format!("{refused} of {lines} lines were refused")],
                summary: Some(
                    "hint: write job definitions for these by hand, or correct the lines and import again: \
                     importing twice changes nothing"
                        .to_owned(),
                ),
            }),
        }
    }
}

fn read_all(args: &CrontabArgs, namespace: &Namespace) -> Result<Found, Failure> {
    let group = GroupName::in_namespace(namespace, args.group.as_str())
        .map_err(|error| Failure::bad_input(format!("--group: {error}")))?;
    let timezone = timezone(args.tz.as_deref())?;
    let mut found = Found::default();
    let mut seen: HashMap<String, String> = HashMap::new();
    for file in &args.files {
        let text = jobfile::read_text(file).map_err(Failure::bad_input)?;
        let options = crontab::ImportOptions {
            source: source(file),
            timezone: timezone.clone(),
            group: group.clone(),
            user_column: match args.user_column {
                UserColumn::Auto => crontab::UserColumn::Auto,
                UserColumn::Yes => crontab::UserColumn::Yes,
                UserColumn::No => crontab::UserColumn::No,
            },
        };
        let import = crontab::import(&text, &options);
        let place = |line: u32| format!("{}:{line}", file.display());
        for entry in import.entries {
            let place = place(entry.line);
            let job = entry.job.and_then(|job| placed(job, namespace, &group));
            match job {
                Ok(job) => match seen.insert(job.name.to_string(), place.clone()) {
                    None => found.jobs.push((place, job)),
                    Some(first) => {
                        let reason =
                            format!("{first} already has its name {:?}", job.name.as_str());
                        found.refused.push((place, reason));
                    }
                },
                Err(reason) => found.refused.push((place, reason)),
            }
        }
        let warnings = import.warnings.into_iter();
        found
            .warnings
            .extend(warnings.map(|w| (place(w.line), w.message)));
    }
    Ok(found)
}

/// The job in the namespace, for its group there.
fn placed(job: JobSpec, namespace: &Namespace, group: &GroupName) -> Result<JobSpec, String> {
    let name = JobName::in_namespace(namespace, job.name.local());
    Ok(JobSpec {
        name: name.map_err(|error| error.to_string())?,
        group: group.clone(),
        ..job
    })
}

/// The first part of the jobs' names.
fn source(file: &Path) -> String {
    file.to_string_lossy().into_owned()
}

/// The given time zone, or this machine's, because cron uses its machine's local time.
fn timezone(given: Option<&str>) -> Result<String, Failure> {
    let zone = match given {
        Some(zone) => zone.to_owned(),
        None => jiff::tz::TimeZone::system()
            .iana_name()
            .unwrap_or("UTC")
            .to_owned(),
    };
    CronSchedule::parse("* * * * *", &zone, None, None)
        .map(|_| zone)
        .map_err(|error| Failure::bad_input(format!("--tz: {}", error.with_suggestion())))
}
