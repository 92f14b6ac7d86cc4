//! The arguments of `cueline namespace`.

use clap::{Args, Subcommand};
use cueline_model::Namespace;
use cueline_store::MAX_QUOTA;

use crate::lists::PageArgs;

/// `cueline namespace …`
#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// List namespaces with their jobs and waiting runs
    List(NamespaceListArgs),
    /// Show the quotas of a namespace, and what it uses of them
    Show(NamespaceArg),
    /// Set quotas of a namespace; those that are not given stay as they are
    Quota(QuotaArgs),
}

/// `cueline namespace list`
#[derive(Debug, Args)]
pub(crate) struct NamespaceListArgs {
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// One namespace.
#[derive(Debug, Args)]
pub(crate) struct NamespaceArg {
    /// The namespace
    #[arg(value_name = "NAMESPACE")]
    pub(crate) name: Namespace,
}

/// `cueline namespace quota`
#[derive(Debug, Args)]
pub(crate) struct QuotaArgs {
    /// The namespace
    #[arg(value_name = "NAMESPACE")]
    pub(crate) name: Namespace,
    /// The most jobs; none for no limit
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) max_jobs: Option<Limit>,
    /// The most runs that have not started; none for no limit
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) max_waiting_runs: Option<Limit>,
    /// The most requests in a minute that trigger a job, at each scheduler; none for no limit
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) max_triggers_per_minute: Option<Limit>,
    /// Delete all quotas
    #[arg(
        long,
        conflicts_with_all = ["max_jobs", "max_waiting_runs", "max_triggers_per_minute"]
    )]
    pub(crate) delete: bool,
}

impl QuotaArgs {
    /// Whether a quota is given.
    pub(super) fn is_any_given(&self) -> bool {
        let given = [
            self.max_jobs,
            self.max_waiting_runs,
            self.max_triggers_per_minute,
        ];
        given.iter().any(Option::is_some)
    }
}

/// The value of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No limit.
    None,
    /// At most this many.
    Most(u64),
}

impl Limit {
    /// The quota in a request.
    pub(super) fn value(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Most(most) => Some(most),
        }
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    match text.parse::<u64>() {
        Ok(most) if most <= MAX_QUOTA => Ok(Limit::Most(most)),
        _ => Err(format!(
            "give a whole number from 0 to {MAX_QUOTA}, or none for no limit"
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(subcommand)]
        command: NamespaceCommand,
    }

    fn quota(args: &[&str]) -> Result<QuotaArgs, String> {
        let words = ["namespace", "quota", "team-a"].iter().chain(args);
        let parsed = Alone::try_parse_from(words).map_err(|error| error.to_string())?;
        match parsed.command {
            NamespaceCommand::Quota(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_quota_is_a_number_or_none() {
        let args = quota(&["--max-jobs", "0", "--max-waiting-runs", "none"]).expect("fits");
        assert_eq!(args.name.as_str(), "team-a");
        assert_eq!(args.max_jobs, Some(Limit::Most(0)));
        assert_eq!(args.max_waiting_runs, Some(Limit::None));
        assert_eq!(args.max_triggers_per_minute, None);
        assert!(args.is_any_given());
        assert!(!quota(&["--delete"]).expect("fits").is_any_given());
    }

    #[test]
    fn what_is_no_quota_is_refused_with_the_accepted_values() {
        for text in ["-1", "x", "1.5", "1000000001"] {
            let given = format!("--max-jobs={text}");
            let error = quota(&[&given]).expect_err("is refused");
            assert!(error.contains("from 0 to 1000000000"), "{error}");
        }
        assert!(quota(&["--delete", "--max-jobs", "1"]).is_err());
        assert!(quota(&["--max-running", "1"]).is_err());
    }
}
