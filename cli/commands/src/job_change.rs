//! `cueline job pause`, `resume` and `delete`, of a job or of one version of it.

use clap::Args;
use cueline_api::view::{JobRef, JobView};
use cueline_interface::{Failure, Out};
use cueline_model::JobName;
use reqwest::Method;
use serde_json::json;

use crate::client::{Api, read};

/// A job that is about to be changed.
#[derive(Debug, Args)]
pub(crate) struct ChangedJobArg {
    /// The job's name
    #[arg(value_name = "JOB")]
    pub(crate) name: JobName,
    /// The version that the job must have.
    #[command(flatten)]
    pub(crate) if_version: IfVersion,
}

/// The version that a job must have.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct IfVersion {
    /// Change nothing unless the job has this version, which `job show` prints
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) if_version: Option<i64>,
}

impl IfVersion {
    /// The entity tag of that version. The server compares it when it makes the change, so a change by somebody else in
    /// between is noticed.
    pub(crate) async fn etag(self, api: &Api, job: &JobName) -> Result<Option<String>, Failure> {
        let Some(version) = self.if_version else {
            return Ok(None);
        };
        let job: JobView = read(api.get(&["jobs", job.as_str()], &[]).await?)?;
        Ok(Some(format!("\"{}-{version}\"", job.job.id.0)))
    }
}

/// Pauses or resumes a job.
pub(crate) async fn set_enabled(
    api: &Api,
    out: Out,
    args: &ChangedJobArg,
    (verb, done): (&str, &str),
) -> Result<(), Failure> {
    let name = &args.name;
    let etag = args.if_version.etag(api, name).await?;
    let path = ["jobs", name.as_str(), verb];
    let body = json!({});
    let answer = api.change_if(Method::POST, &path, Some(&body), etag);
    let answer = answer.await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let job: JobRef = read(answer)?;
    out.line(&format!("{} is {done}", job.name))
}

/// Deletes a job.
pub(crate) async fn delete(api: &Api, out: Out, args: &ChangedJobArg) -> Result<(), Failure> {
    let name = &args.name;
    let etag = args.if_version.etag(api, name).await?;
    let path = ["jobs", name.as_str()];
    let answer = api.change_if(Method::DELETE, &path, None, etag).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let job: JobRef = read(answer)?;
    out.line(&format!("{} is deleted; its runs are kept", job.name))
}
