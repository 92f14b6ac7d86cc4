//! `cueline run prune`: deletes ended runs.
//!
//! A run that has ended does not change any more, so the ids are what was counted. They are sent a hundred at a time: each
//! request is a short transaction with its entries in the audit log.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use cueline_api::view::{PrunedRuns, RunPage};
use cueline_interface::{Failure, Out};
use cueline_model::{DurationMs, JobName, Namespace, RunState, Timestamp};
use cueline_store::Run;
use reqwest::Method;
use serde_json::{Value, json};

use super::request::Change;
use super::tally::Tally;
use super::{BulkRunsArgs, check_number, confirm, counted, named, runs};
use crate::client::{Api, read};

/// The most runs of one request.
const AT_ONCE: usize = 100;

/// `cueline run prune`
#[derive(Debug, Args)]
pub(crate) struct RunPruneArgs {
    #[command(flatten)]
    runs: BulkRunsArgs,
    /// Only runs that ended longer ago than this
    #[arg(long, value_name = "DURATION")]
    older_than: Option<DurationMs>,
    /// Keep the newest N of the runs of each job that the other options select
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
}

pub(crate) async fn run(api: &Api, out: Out, args: &RunPruneArgs) -> Result<(), Failure> {
    let page = select(api, args).await?;
    let now = page.now;
    let found = page.runs.into_iter().map(|run| run.item).collect();
    let chosen = choose(found, now, args);
    let question = question(&chosen);
    if args.runs.confirmation.dry_run || chosen.is_empty() {
        if out.is_json() {
            let ids: Vec<i64> = chosen.iter().map(|run| run.id.0).collect();
            return out.json(&json!({ "dry_run": true, "would_change": ids }));
        }
        return out.line(&format!("would prune {question}"));
    }
    if !confirm(out, args.runs.confirmation, &format!("prune {question}?"))? {
        return Ok(());
    }
    let mut tally = Tally::default();
    tally
        .carry_out(out, "prune", requests(api, &chosen))
        .await?;
    report(out, chosen.len(), &tally)
}

/// The ended runs that the filter selects, oldest first.
async fn select(api: &Api, args: &RunPruneArgs) -> Result<RunPage, Failure> {
    let ended = RunState::ALL
        .into_iter()
        .filter(|state| state.is_terminal());
    let ended: Vec<RunState> = ended.collect();
    let states = match args.runs.states.as_slice() {
        [] => ended,
        given => {
            if let Some(live) = given.iter().find(|state| !state.is_terminal()) {
                let message = format!(
                    "--state: {live} given; only runs that have ended are pruned, such as succeeded or failed"
                );
                return Err(Failure::bad_input(message));
            }
            given.to_vec()
        }
    };
    let has_other_filter = args.older_than.is_some() || args.keep.is_some();
    let page = runs::read_selected(api, &args.runs, &states, has_other_filter).await?;
    check_number(page.runs.len(), "runs")?;
    Ok(page)
}

/// Those that are old enough and not among the newest of their job, oldest first.
fn choose(found: Vec<Run>, now: Timestamp, args: &RunPruneArgs) -> Vec<Run> {
    let mut newer: BTreeMap<JobName, usize> = BTreeMap::new();
    let mut chosen: Vec<Run> = found
        .into_iter()
        .rev()
        .filter(|run| {
            let before = newer.entry(run.job.clone()).or_default();
            *before += 1;
            args.keep.is_none_or(|keep| *before > keep)
        })
        .filter(|run| {
            let latest = args.older_than.map(|age| now.minus_ms(age.as_millis()));
            latest.is_none_or(|latest| run.ended_at.is_some_and(|ended| ended < latest))
        })
        .collect();
    chosen.reverse();
    chosen
}

/// "3 runs of 2 jobs: a, b".
fn question(chosen: &[Run]) -> String {
    let number = counted(chosen.len(), "run");
    let jobs: BTreeSet<String> = chosen.iter().map(|run| run.job.to_string()).collect();
    if jobs.is_empty() {
        return number;
    }
    let of = counted(jobs.len(), "job");
    format!(
        "{number} of {of}: {}",
        named(jobs.iter().map(String::as_str))
    )
}

fn requests(api: &Api, chosen: &[Run]) -> Vec<Change> {
    let mut of_namespaces: BTreeMap<Namespace, Vec<i64>> = BTreeMap::new();
    for run in chosen {
        let of = of_namespaces.entry(run.job.namespace()).or_default();
        of.push(run.id.0);
    }
    let mut requests = Vec::new();
    for (namespace, runs) in &of_namespaces {
        for part in runs.chunks(AT_ONCE) {
            let first = part.first().copied().unwrap_or_default();
            requests.push(Change {
                name: format!("{} from run {first} on", counted(part.len(), "run")),
                api: api.in_namespace(namespace),
                method: Method::POST,
                path: vec!["runs".to_owned(), "prune".to_owned()],
                body: Some(json!({ "runs": part })),
                etag: None,
                key: None,
            });
        }
    }
    requests
}

/// Says what was deleted, and what was not.
fn report(out: Out, asked_for: usize, tally: &Tally) -> Result<(), Failure> {
    let mut answers = Vec::new();
    for (_, answer) in &tally.done {
        answers.push(read::<PrunedRuns>(answer.clone())?);
    }
    let deleted: u64 = answers.iter().map(|answer| answer.deleted).sum();
    let live: Vec<i64> = answers
        .iter()
        .flat_map(|answer| &answer.live)
        .map(|run| run.0)
        .collect();
    let refused = tally.differed.iter().chain(&tally.refused);
    let refused: Vec<Value> = refused
        .map(|(name, why)| json!({ "name": name, "reason": why }))
        .collect();
    let others = (asked_for as u64).saturating_sub(deleted + live.len() as u64);
    if out.is_json() {
        out.json(&json!({ "deleted": deleted, "live": live, "refused": refused }))?;
    } else {
        for (name, why) in tally.differed.iter().chain(&tally.refused) {
            out.line(&format!("{name}: refused: {why}"))?;
        }
        let number = usize::try_from(deleted).unwrap_or(usize::MAX);
        out.line(&format!("pruned {}", counted(number, "run")))?;
        if !live.is_empty() {
            out.line(&format!(
                "{} stay, because shards of their fire have not ended",
                live.len()
            ))?;
        }
        if refused.is_empty() && others > 0 {
            let words = "were deleted by others meanwhile, or you may not edit their jobs";
            out.line(&format!("{others} {words}"))?;
        }
    }
    if refused.is_empty() {
        Ok(())
    } else {
        Err(Failure::Silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: i64, job: &str, ended_at: i64) -> Run {
        let at = 1_798_761_600_000_i64;
        serde_json::from_value(json!({
            "id": id, "job_id": 1, "job": job, "group": "default", "kind": "manual", "state": "succeeded", "attempt": 1,
            "retries": 0, "fire_at": at, "due_at": at, "shard": { "index": 0, "total": 1 }, "executor": null, "params": null,
            "created_at": at, "queued_at": null, "started_at": null, "ended_at": ended_at, "exit_status": null,
            "message": null, "output": null, "progress": null, "cancel_requested": false, "parent": null,
        }))
        .expect("a run")
    }

    fn args(words: &[&str]) -> RunPruneArgs {
        #[derive(Debug, clap::Parser)]
        struct Alone {
            #[command(flatten)]
            args: RunPruneArgs,
        }
        let words = ["prune"].iter().chain(words);
        <Alone as clap::Parser>::try_parse_from(words)
            .expect("fits")
            .args
    }

    #[test]
    fn the_newest_of_each_job_stay_and_so_does_what_is_young() {
        let found = || {
            vec![
                run(1, "a", 1_000),
                run(2, "a", 2_000),
                run(3, "b", 3_000),
                run(4, "a", 4_000),
            ]
        };
        let chosen = |words: &[&str]| {
            let chosen = choose(found(), Timestamp::from_millis(5_000), &args(words));
            chosen.iter().map(|run| run.id.0).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]), [1, 2, 3, 4]);
        assert_eq!(chosen(&["--keep", "1"]), [1, 2]);
        assert_eq!(chosen(&["--keep", "0"]), [1, 2, 3, 4]);
        assert_eq!(chosen(&["--older-than", "2s"]), [1, 2], "3 ended just then");
        assert_eq!(chosen(&["--older-than", "2s", "--keep", "2"]), [1]);
    }

    #[test]
    fn the_question_counts_runs_and_names_jobs() {
        let runs = [run(1, "b", 1), run(2, "a", 1), run(3, "b", 1)];
        assert_eq!(question(&runs), "3 runs of 2 jobs: a, b");
        assert_eq!(question(&[]), "0 runs");
    }
}
