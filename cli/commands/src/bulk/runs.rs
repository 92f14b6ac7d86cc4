//! Actions on runs.

use std::collections::HashSet;

use cueline_api::view::RunPage;
use cueline_interface::{Failure, Out};
use cueline_model::RunState;
use cueline_store::Run;
use reqwest::Method;
use serde_json::json;

use super::request::Change;
use super::tally::Tally;
use super::{BulkRunsArgs, check_number, confirm, counted, named, whole};
use crate::client::{Api, read};
use crate::lists::{List, PageArgs, values};

const RUNS: List<'_> = List {
    path: &["runs"],
    key: "runs",
    most: None,
};

/// What to do with each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Cancel,
    Retry,
}

impl Action {
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Cancel => ("cancel", "cancelled"),
            Self::Retry => ("retry", "retried"),
        }
    }

    /// The states of the runs, if the user names none.
    fn states(self) -> Vec<RunState> {
        let all = RunState::ALL.into_iter();
        match self {
            Self::Cancel => all.filter(|state| !state.is_terminal()).collect(),
            Self::Retry => vec![
                RunState::Failed,
                RunState::TimedOut,
                RunState::Lost,
                RunState::Unroutable,
            ],
        }
    }

    /// Why a run in this state is left out.
    fn leaves_out(self, state: RunState) -> Option<&'static str> {
        match self {
            Self::Cancel => state.is_terminal().then_some("have ended"),
            Self::Retry if !state.is_terminal() => Some("have not ended"),
            Self::Retry => (state == RunState::Succeeded).then_some("have succeeded"),
        }
    }

    fn of(self, api: &Api, run: &Run) -> Change {
        let id = run.id.to_string();
        let (path, body, key) = match self {
            Self::Cancel => (["runs", &id, "cancel"], json!({}), None),
            Self::Retry => (
                ["jobs", run.job.local(), "trigger"],
                json!({ "params": run.params }),
                Some(retry_key(run)),
            ),
        };
        Change {
            name: format!("run {id}"),
            api: api.in_namespace(&run.job.namespace()),
            method: Method::POST,
            path: path.map(str::to_owned).to_vec(),
            body: Some(body),
            etag: None,
            key,
        }
    }
}

/// The same for all shards of a fire, because a trigger of the job runs all of them. So a run is retried once, however often
/// the command is given.
fn retry_key(run: &Run) -> String {
    if run.shard.total > 1 {
        let kind = serde_json::to_value(run.kind).unwrap_or_default();
        let kind = kind.as_str().unwrap_or_default();
        format!("retry-of-fire-{kind}-{}", run.fire_at.as_millis())
    } else {
        format!("retry-of-run-{}", run.id)
    }
}

pub(super) async fn run(
    api: &Api,
    out: Out,
    args: &BulkRunsArgs,
    action: Action,
) -> Result<(), Failure> {
    let found = select(api, args, action).await?;
    let (verb, done) = action.words();
    let mut chosen: Vec<&Run> = Vec::new();
    let mut left_out: Vec<&'static str> = Vec::new();
    for run in &found {
        match action.leaves_out(run.state) {
            None => chosen.push(run),
            Some(why) => left_out.push(why),
        }
    }
    if action == Action::Retry {
        let mut seen = HashSet::new();
        chosen.retain(|run| seen.insert((run.job.clone(), retry_key(run))));
    }
    if let (Some(why), false) = (left_out.first(), out.is_json()) {
        out.line(&format!("{} {why}", left_out.len()))?;
    }
    let ids: Vec<String> = chosen.iter().map(|run| run.id.to_string()).collect();
    let mut question = counted(chosen.len(), "run");
    if !ids.is_empty() {
        let jobs: HashSet<_> = chosen.iter().map(|run| &run.job).collect();
        let of = counted(jobs.len(), "job");
        question = format!(
            "{question} of {of}: {}",
            named(ids.iter().map(String::as_str))
        );
    }
    if args.confirmation.dry_run || chosen.is_empty() {
        if out.is_json() {
            return out.json(&json!({ "dry_run": true, "would_change": ids }));
        }
        return out.line(&format!("would {verb} {question}"));
    }
    if !confirm(out, args.confirmation, &format!("{verb} {question}?"))? {
        return Ok(());
    }
    let changes = chosen.iter().map(|run| action.of(api, run)).collect();
    let mut tally = Tally::default();
    tally.carry_out(out, verb, changes).await?;
    if action == Action::Retry {
        let all = tally.done.len();
        tally.done.retain(|(_, answer)| answer["duplicate"] != true);
        let repeated = all - tally.done.len();
        if repeated > 0 && !out.is_json() {
            out.line(&format!("{repeated} were retried before, and not again"))?;
        }
    }
    tally.print(out, done, "run")
}

/// The runs that the filter selects, oldest first.
async fn select(api: &Api, args: &BulkRunsArgs, action: Action) -> Result<Vec<Run>, Failure> {
    let states = match args.states.as_slice() {
        [] => action.states(),
        given => given.to_vec(),
    };
    let found = read_selected(api, args, &states, false).await?;
    check_number(found.runs.len(), "runs")?;
    Ok(found.runs.into_iter().map(|run| run.item).collect())
}

/// The runs in these states that the filter selects, oldest first. Without any filter the command is refused, unless it has
/// one of its own.
pub(super) async fn read_selected(
    api: &Api,
    args: &BulkRunsArgs,
    states: &[RunState],
    has_other_filter: bool,
) -> Result<RunPage, Failure> {
    let mut query = values("job", &args.jobs);
    query.extend(args.groups.query());
    query.extend(args.labels.query());
    query.extend(values("kind", &args.kinds));
    query.extend(values("executor", &args.executors));
    query.extend(args.window.query());
    if query.is_empty() && args.states.is_empty() && !has_other_filter {
        return Err(Failure::bad_input(
            "filter: missing; give --job, --group, --label, --state, --kind, --executor, --since or --until",
        ));
    }
    query.extend(values("state", states));
    let page = PageArgs {
        sort: Some("id".to_owned()),
        ..whole()
    };
    read(RUNS.read(api, &query, args.all, &page).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ended_runs_are_retried_and_only_others_cancelled() {
        for state in RunState::ALL {
            assert_eq!(
                Action::Cancel.leaves_out(state).is_none(),
                !state.is_terminal()
            );
        }
        for action in [Action::Cancel, Action::Retry] {
            let mut states = action.states().into_iter();
            assert!(states.all(|state| action.leaves_out(state).is_none()));
        }
        assert!(Action::Retry.leaves_out(RunState::Succeeded).is_some());
        assert!(Action::Retry.leaves_out(RunState::Running).is_some());
    }
}
