//! `cueline pause …` and `cueline resume …`: nothing of the jobs in a scope starts, until a person ends the pause or its time
//! is over.

use clap::{ArgGroup, Args, Subcommand};
use cueline_api::view::{PauseList, PauseRef, PauseView, PausedBy};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::Timestamp;
use serde_json::{Map, Value, json};

use crate::client::{Api, read};
use crate::human;
use crate::window::label;

/// `cueline pause`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(group = ArgGroup::new("paused").args(["all", "all_namespaces", "group", "labels"]).required(true).multiple(true))]
pub(crate) struct PauseArgs {
    #[command(subcommand)]
    command: Option<PauseCommand>,
    /// All jobs of the namespace
    #[arg(long)]
    all: bool,
    /// The jobs of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only jobs of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Only jobs with this label; if given several times, all must hold
    #[arg(long = "label", alias = "selector", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Why, for people
    #[arg(long, value_name = "TEXT", required = true)]
    reason: Option<String>,
    /// How long; until somebody resumes by default
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "until")]
    length: Option<String>,
    /// When it ends by itself
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    until: Option<Timestamp>,
}

/// `cueline pause list`
#[derive(Debug, Subcommand)]
enum PauseCommand {
    /// List the pauses that are not over
    List,
}

/// `cueline resume`
#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The number of a pause; may be given several times
    #[arg(value_name = "PAUSE", required_unless_present = "all", value_parser = clap::value_parser!(i64).range(1..))]
    ids: Vec<i64>,
    /// End all pauses of the namespace; those of all namespaces stay
    #[arg(long, conflicts_with = "ids")]
    all: bool,
}

impl PauseArgs {
    fn body(&self) -> Value {
        let mut body = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(key.to_owned(), value);
            }
        };
        let text = |text: &Option<String>| text.clone().map(Value::from);
        put("all", self.all.then_some(true.into()));
        put("all_namespaces", self.all_namespaces.then_some(true.into()));
        put("group", text(&self.group));
        let labels = self.labels.iter();
        let labels: Map<String, Value> = labels
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        put("labels", (!labels.is_empty()).then_some(labels.into()));
        put("reason", text(&self.reason));
        put("for", text(&self.length));
        put("until", self.until.map(|at| at.as_millis().into()));
        Value::Object(body)
    }
}

pub(crate) async fn pause(api: &Api, out: Out, args: &PauseArgs) -> Result<(), Failure> {
    if let Some(PauseCommand::List) = args.command {
        return list(api, out).await;
    }
    let answer = api.post(&["pauses"], &args.body()).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let pause: PauseRef = read(answer)?;
    out.line(&format!(
        "pause {} stops {}; `cueline resume {}` ends it",
        pause.id,
        jobs(pause.jobs),
        pause.id
    ))
}

pub(crate) async fn resume(api: &Api, out: Out, args: &ResumeArgs) -> Result<(), Failure> {
    let mut ids = args.ids.clone();
    if args.all {
        let found: PauseList = read(api.get(&["pauses"], &[]).await?)?;
        let own = found
            .pauses
            .iter()
            .filter(|pause| pause.namespace.is_some());
        ids.extend(own.map(|pause| pause.id));
    }
    let mut ended = Vec::new();
    for id in &ids {
        let answer = api.delete(&["pauses", &id.to_string()]).await?;
        let pause: PauseRef = read(answer)?;
        if !out.is_json() {
            out.line(&format!(
                "pause {} has ended; {} go on",
                pause.id,
                jobs(pause.jobs)
            ))?;
        }
        ended.push(pause);
    }
    if out.is_json() {
        return out.json(&json!({ "ended": ended }));
    }
    if ids.is_empty() {
        return out.line("there are no pauses of this namespace");
    }
    Ok(())
}

fn jobs(count: u64) -> String {
    match count {
        1 => "1 job".to_owned(),
        count => format!("{count} jobs"),
    }
}

async fn list(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["pauses"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: PauseList = read(answer)?;
    let mut table = out.table(&["PAUSE", "JOBS", "BY", "SINCE", "UNTIL", "REASON"]);
    for pause in &found.pauses {
        let until = pause.until;
        let until = until.map_or_else(|| "resumed".to_owned(), |at| human::local(at, "UTC"));
        table.add_row(vec![
            cell(pause.id.to_string(), None),
            cell(scope(pause), Some(Paint::Warn)),
            cell(human::one_line(&pause.by, 30), None),
            cell(human::local(pause.since, "UTC"), None),
            cell(until, None),
            cell(human::one_line(&pause.reason, 60), None),
        ]);
    }
    out.print_table(&table, "nothing is paused")
}

/// Who has paused a job together with others, for a list.
pub(crate) fn short_text(pause: &PausedBy) -> String {
    let by = human::one_line(&pause.by, 30);
    format!("paused by {by} (pause {})", pause.id)
}

/// Who has paused a job together with others, for its page.
pub(crate) fn text(pause: &PausedBy, zone: &str) -> String {
    let until = pause.until.map_or_else(String::new, |at| {
        format!(" until {}", human::local(at, zone))
    });
    format!(
        "by {} since {}{until}: {} (pause {})",
        pause.by,
        human::local(pause.since, zone),
        human::one_line(&pause.reason, 100),
        pause.id
    )
}

fn scope(pause: &PauseView) -> String {
    let mut parts = Vec::new();
    if pause.namespace.is_none() {
        parts.push("all namespaces".to_owned());
    }
    let group = pause.group.as_ref();
    parts.extend(group.map(|group| format!("group {}", group.local())));
    let labels = pause.labels.iter();
    parts.extend(labels.map(|(name, value)| format!("{name}={value}")));
    if parts.is_empty() {
        return "all".to_owned();
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        args: PauseArgs,
    }

    fn parse(words: &[&str]) -> Result<PauseArgs, clap::Error> {
        let words = std::iter::once(&"pause").chain(words);
        Alone::try_parse_from(words).map(|alone| alone.args)
    }

    #[test]
    fn only_what_is_given_is_sent() {
        let args = parse(&[
            "--group", "billing", "--label", "tier=1", "--for", "2h", "--reason", "x",
        ]);
        let expected =
            json!({ "group": "billing", "labels": { "tier": "1" }, "for": "2h", "reason": "x" });
        assert_eq!(args.expect("fits").body(), expected);
        let all = parse(&["--all", "--reason", "x"]).expect("fits");
        assert_eq!(all.body(), json!({ "all": true, "reason": "x" }));
    }

    #[test]
    fn a_pause_has_a_scope_and_a_reason() {
        assert!(parse(&["--reason", "x"]).is_err());
        assert!(parse(&["--all"]).is_err());
        assert!(
            parse(&[
                "--all",
                "--reason",
                "x",
                "--for",
                "1h",
                "--until",
                "2027-01-01T00:00:00Z"
            ])
            .is_err()
        );
        assert!(matches!(
            parse(&["list"]),
            Ok(PauseArgs {
                command: Some(PauseCommand::List),
                ..
            })
        ));
    }
}
