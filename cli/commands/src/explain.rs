//! `cueline explain`

use clap::Args;
use cueline_api::view::Explanation;
use cueline_interface::{Failure, Out, Paint};

use crate::client::{Api, read};

/// `cueline explain`
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A run's number or a job's name; a job whose name is a number is job:NAME
    #[arg(value_name = "RUN|JOB")]
    pub(crate) subject: String,
}

pub(crate) async fn run(api: &Api, out: Out, args: &ExplainArgs) -> Result<(), Failure> {
    let path = path(&args.subject);
    let answer = api.get(&path, &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let explanation: Explanation = read(answer)?;
    out.line(&explanation.sentence)?;
    match explanation.look_at {
        Some(command) => out.line(&out.paint(&format!("see: {command}"), Paint::Dim)),
        None => Ok(()),
    }
}

/// The path of the explanation. A number is a run, and everything else a job.
fn path(subject: &str) -> [&str; 3] {
    if let Some(job) = subject.strip_prefix("job:") {
        ["jobs", job, "explain"]
    } else if subject.bytes().all(|byte| byte.is_ascii_digit()) {
        ["runs", subject, "explain"]
    } else {
        ["jobs", subject, "explain"]
    }
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn a_number_is_a_run_and_everything_else_a_job() {
        assert_eq!(path("17"), ["runs", "17", "explain"]);
        assert_eq!(path("nightly"), ["jobs", "nightly", "explain"]);
        assert_eq!(path("17b"), ["jobs", "17b", "explain"]);
        assert_eq!(path("job:17"), ["jobs", "17", "explain"]);
    }
}
