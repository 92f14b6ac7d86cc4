//! `cueline job history` and `cueline job restore`.

use clap::Args;
use cueline_api::view::{JobVersionView, JobVersions, Restored};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::{JobName, JobSpec};
use cueline_store::Change;
use reqwest::Method;
use serde_json::json;

use crate::client::{Api, read};
use crate::human;
use crate::job_change::IfVersion;
use crate::jobdiff;
use crate::lists::{List, PageArgs, print_next};
use crate::namespaces::AllNamespaces;

/// `cueline job history`
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The job's name; also that of a deleted job
    #[arg(value_name = "JOB")]
    pub(crate) name: JobName,
    /// Print what changed from version A to version B
    #[arg(long, value_names = ["A", "B"], num_args = 2, conflicts_with_all = ["sort", "limit", "after", "all"])]
    pub(crate) diff: Option<Vec<u64>>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `cueline job restore`
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The job's name; also that of a deleted job
    #[arg(value_name = "JOB")]
    pub(crate) name: JobName,
    /// The number of the version
    #[arg(value_name = "VERSION")]
    pub(crate) version: u64,
    /// The version that the job must have now.
    #[command(flatten)]
    pub(crate) if_version: IfVersion,
}

/// Lists the versions of a job, or compares two of them.
pub(crate) async fn history(api: &Api, out: Out, args: &HistoryArgs) -> Result<(), Failure> {
    match args.diff.as_deref() {
        Some([old, new]) => diff(api, out, &args.name, *old, *new).await,
        _ => list(api, out, args).await,
    }
}

async fn list(api: &Api, out: Out, args: &HistoryArgs) -> Result<(), Failure> {
    let list = List {
        path: &["jobs", args.name.as_str(), "versions"],
        key: "versions",
        most: Some(50),
    };
    let here = AllNamespaces::default();
    let answer = list.read(api, &[], here, &args.page).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: JobVersions = read(answer)?;
    let mut table = out.table(&["VERSION", "WHEN", "BY", "SCHEDULE"]);
    for version in &page.versions {
        let (schedule, paint) = if version.enabled {
            ("running", None)
        } else {
            ("paused", Some(Paint::Dim))
        };
        table.add_row(vec![
            cell(version.version.to_string(), None),
            cell(human::relative(version.at, page.now), None),
            cell(human::one_line(&version.by, 40), None),
            cell(schedule, paint),
        ]);
    }
    out.print_table(&table, "there are no such versions")?;
    print_next(out, page.next.as_deref())
}

async fn definition(api: &Api, name: &JobName, version: u64) -> Result<JobSpec, Failure> {
    let number = version.to_string();
    let path = ["jobs", name.as_str(), "versions", number.as_str()];
    let found: JobVersionView = read(api.get(&path, &[]).await?)?;
    found.definition.ok_or_else(|| {
        Failure::with_hint(
            format!("failed to read version {version} of job {name}"),
            "a newer server wrote it; ask that one",
        )
    })
}

async fn diff(api: &Api, out: Out, name: &JobName, old: u64, new: u64) -> Result<(), Failure> {
    let before = definition(api, name, old).await?;
    let after = definition(api, name, new).await?;
    let fields = jobdiff::fields(&before, &after);
    if out.is_json() {
        return out.json(&json!({ "name": name, "from": old, "to": new, "fields": fields }));
    }
    if fields.is_empty() {
        return out.line("no differences");
    }
    for field in &fields {
        out.line(field)?;
    }
    Ok(())
}

/// Applies the definition of an earlier version.
pub(crate) async fn restore(api: &Api, out: Out, args: &RestoreArgs) -> Result<(), Failure> {
    let path = ["jobs", args.name.as_str(), "restore"];
    let etag = args.if_version.etag(api, &args.name).await?;
    let body = json!({ "version": args.version });
    let answer = api.change_if(Method::POST, &path, Some(&body), etag);
    let answer = answer.await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let done: Restored = read(answer)?;
    out.line(&match done.change {
        Change::Unchanged => format!(
            "{} has the definition of version {} already",
            done.name, done.restored
        ),
        Change::Updated => format!(
            "{} has the definition of version {} again, as a new version",
            done.name, done.restored
        ),
        Change::Created => format!(
            "{} is created again with the definition of version {}",
            done.name, done.restored
        ),
    })
}
