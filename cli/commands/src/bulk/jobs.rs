//! Actions on jobs, and their export.

use std::collections::BTreeSet;
use std::path::Path;

use cueline_api::view::{JobPage, JobView};
use cueline_interface::{Failure, Out};
use cueline_model::ScriptName;
use reqwest::Method;
use serde_json::{Value, json};

use super::request::Change;
use super::tally::Tally;
use super::{BulkJobsArgs, JobFilterArgs, check_number, confirm, counted, named, whole};
use crate::client::{Api, read};
use crate::keys;
use crate::lists::{List, values};
use crate::namespaces::AllNamespaces;
use crate::script;

const JOBS: List<'_> = List {
    path: &["jobs"],
    key: "jobs",
    most: None,
};

/// What to do with each job.
#[derive(Debug, Clone)]
pub(super) enum Action {
    Pause,
    Resume,
    Trigger { param: Option<String> },
    Delete,
}

impl Action {
    /// "pause", and "paused".
    const fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Pause => ("pause", "paused"),
            Self::Resume => ("resume", "resumed"),
            Self::Trigger { .. } => ("trigger", "triggered"),
            Self::Delete => ("delete", "deleted"),
        }
    }

    /// Whether the job is not yet as the action leaves it.
    fn changes(&self, job: &JobView) -> bool {
        match self {
            Self::Pause => job.job.spec.is_enabled(),
            Self::Resume => !job.job.spec.is_enabled(),
            Self::Trigger { .. } | Self::Delete => true,
        }
    }

    fn of(&self, api: &Api, job: &JobView) -> Result<Change, Failure> {
        let name = &job.job.spec.name;
        let mut path = vec!["jobs".to_owned(), name.local().to_owned()];
        let (mut method, mut body, mut key) = (Method::POST, Some(json!({})), None);
        match self {
            Self::Pause | Self::Resume => path.push(self.words().0.to_owned()),
            Self::Trigger { param } => {
                path.push("trigger".to_owned());
                body = Some(json!({ "params": param }));
                key = Some(keys::random_key()?);
            }
            Self::Delete => (method, body) = (Method::DELETE, None),
        }
        Ok(Change {
            name: name.to_string(),
            api: api.in_namespace(&name.namespace()),
            method,
            path,
            body,
            etag: Some(format!("\"{}-{}\"", job.job.id.0, job.job.version)),
            key,
        })
    }
}

pub(super) async fn run(
    api: &Api,
    out: Out,
    args: &BulkJobsArgs,
    action: Action,
) -> Result<(), Failure> {
    let filter = &args.filter;
    if query(filter).is_empty() {
        return Err(Failure::bad_input(
            "filter: missing; give --name, --group, --label or --state. --name '*' selects all jobs",
        ));
    }
    let found = select(api, &query(filter), filter.all).await?;
    let (chosen, others): (Vec<_>, Vec<_>) = found.iter().partition(|job| action.changes(job));
    let (verb, done) = action.words();
    if !others.is_empty() && !out.is_json() {
        out.line(&format!("{} {done} already", others.len()))?;
    }
    let mut question = counted(chosen.len(), "job");
    if !chosen.is_empty() {
        let names = chosen.iter().map(|job| job.job.spec.name.as_str());
        question = format!("{question}: {}", named(names));
    }
    if args.confirmation.dry_run || chosen.is_empty() {
        return would(out, verb, &question, &chosen);
    }
    if !confirm(out, args.confirmation, &format!("{verb} {question}?"))? {
        return Ok(());
    }
    let changes = chosen.iter().map(|job| action.of(api, job));
    let changes = changes.collect::<Result<Vec<_>, _>>()?;
    let tally = if matches!(action, Action::Delete) {
        delete(out, changes).await?
    } else {
        let mut tally = Tally::default();
        tally.carry_out(out, verb, changes).await?;
        tally
    };
    tally.print(out, done, "job")
}

fn would(out: Out, verb: &str, question: &str, jobs: &[&JobView]) -> Result<(), Failure> {
    if out.is_json() {
        let names: Vec<&str> = jobs.iter().map(|job| job.job.spec.name.as_str()).collect();
        return out.json(&json!({ "dry_run": true, "would_change": names }));
    }
    out.line(&format!("would {verb} {question}"))
}

/// Deletes jobs. Those that are parents of others are refused until their children are gone, so they are tried again as
/// long as others are deleted.
pub(super) async fn delete(out: Out, mut changes: Vec<Change>) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    loop {
        let before = tally.done.len();
        tally.refused.clear();
        changes = tally.carry_out(out, "delete", changes).await?;
        if changes.is_empty() || tally.done.len() == before {
            return Ok(tally);
        }
    }
}

/// The deletion of these jobs in the versions that were listed.
pub(super) fn deletions(api: &Api, jobs: &[JobView]) -> Result<Vec<Change>, Failure> {
    jobs.iter().map(|job| Action::Delete.of(api, job)).collect()
}

fn query(filter: &JobFilterArgs) -> Vec<(&'static str, String)> {
    let mut query = values("name", &filter.names);
    query.extend(filter.groups.query());
    query.extend(filter.labels.query());
    query.extend(values("state", &filter.states));
    query
}

/// The jobs that the filter selects.
pub(super) async fn select(
    api: &Api,
    query: &[(&str, String)],
    all: AllNamespaces,
) -> Result<Vec<JobView>, Failure> {
    let page: JobPage = read(JOBS.read(api, query, all, &whole()).await?)?;
    check_number(page.jobs.len(), "jobs")?;
    Ok(page.jobs)
}

/// Prints or writes the definitions of the jobs that the filter selects, as a job file in JSON.
pub(crate) async fn export(
    api: &Api,
    out: Out,
    filter: &JobFilterArgs,
    file: Option<&Path>,
) -> Result<(), Failure> {
    let jobs = select(api, &query(filter), filter.all).await?;
    let definitions = jobs.iter().map(|job| serde_json::to_value(&job.job.spec));
    let definitions = definitions.collect::<Result<Vec<Value>, _>>();
    let definitions = definitions
        .map_err(|error| Failure::failed(format!("failed to write the definitions: {error}")))?;
    let mut whole = json!({ "jobs": definitions });
    let scripts = jobs.iter().filter_map(|job| job.job.spec.script());
    let scripts: BTreeSet<ScriptName> = scripts.map(|(name, _)| name).collect();
    if !scripts.is_empty() {
        whole["scripts"] = script::definitions(api, &scripts).await?;
    }
    let Some(file) = file else {
        return out.json(&whole);
    };
    std::fs::write(file, format!("{whole:#}\n"))
        .map_err(|error| Failure::failed(format!("failed to write {}: {error}", file.display())))?;
    let count = counted(jobs.len(), "job");
    out.line(&format!("{} has {count}", file.display()))
}
