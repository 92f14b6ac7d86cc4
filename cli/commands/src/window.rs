//! `cueline window …`: maintenance windows, in which the jobs of a scope do not fire.

use clap::{Args, Subcommand};
use cueline_api::view::{WindowList, WindowRef, WindowView};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::Timestamp;
use cueline_model::exclusion::WindowTime;
use serde_json::{Map, Value};

use crate::client::{Api, read};
use crate::human;

/// `cueline window …`
#[derive(Debug, Subcommand)]
pub(crate) enum WindowCommand {
    /// Add a maintenance window: --start and --end, or --cron and --duration
    Add(Box<WindowAddArgs>),
    /// List maintenance windows
    List,
    /// Delete a maintenance window; its jobs fire again
    Delete(WindowArg),
}

/// One window.
#[derive(Debug, Args)]
pub(crate) struct WindowArg {
    /// The window's number
    #[arg(value_name = "WINDOW", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) id: i64,
}

/// `cueline window add`
#[derive(Debug, Args)]
pub(crate) struct WindowAddArgs {
    /// About the jobs of all namespaces
    #[arg(long)]
    all_namespaces: bool,
    /// Only jobs of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Only jobs with this label; may be given several times
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// When it opens
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    start: Option<Timestamp>,
    /// When it closes
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    end: Option<Timestamp>,
    /// When it opens, again and again
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// The time zone of --cron
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// How long it stays open after each time of --cron
    #[arg(long, value_name = "DURATION")]
    duration: Option<String>,
    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Whom to ask; you by default
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
}

pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("give a label as NAME=VALUE".to_owned()),
    }
}

impl WindowAddArgs {
    fn body(&self) -> Value {
        let mut body = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(key.to_owned(), value);
            }
        };
        let text = |text: &Option<String>| text.clone().map(Value::from);
        let instant = |at: Option<Timestamp>| at.map(|at| Value::from(at.as_millis()));
        put("all_namespaces", self.all_namespaces.then_some(true.into()));
        put("group", text(&self.group));
        let labels: Map<String, Value> = self
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        put(
            "labels",
            (!labels.is_empty()).then_some(Value::Object(labels)),
        );
        put("start", instant(self.start));
        put("end", instant(self.end));
        put("cron", text(&self.cron));
        put("timezone", text(&self.timezone));
        put("duration", text(&self.duration));
        put("reason", text(&self.reason));
        put("owner", text(&self.owner));
        Value::Object(body)
    }
}

pub(crate) async fn run(api: &Api, out: Out, command: WindowCommand) -> Result<(), Failure> {
    match command {
        WindowCommand::Add(args) => {
            let answer = api.post(&["windows"], &args.body()).await?;
            print(out, answer, "is added; it is about")
        }
        WindowCommand::List => list(api, out).await,
        WindowCommand::Delete(arg) => {
            let answer = api.delete(&["windows", &arg.id.to_string()]).await?;
            print(out, answer, "is deleted; it was about")
        }
    }
}

fn print(out: Out, answer: Value, what: &str) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let window: WindowRef = read(answer)?;
    let jobs = match window.jobs {
        1 => "1 job".to_owned(),
        jobs => format!("{jobs} jobs"),
    };
    out.line(&format!("window {} {what} {jobs}", window.id))
}

async fn list(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["windows"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: WindowList = read(answer)?;
    let mut table = out.table(&[
        "WINDOW", "STATE", "OPENS", "CLOSES", "JOBS", "OWNER", "REASON",
    ]);
    for window in &found.windows {
        let (state, paint) = state(window, found.now);
        let at =
            |at: Option<Timestamp>| at.map_or_else(|| "–".to_owned(), |at| human::local(at, "UTC"));
        let spec = &window.window;
        table.add_row(vec![
            cell(window.id.to_string(), None),
            cell(state, paint),
            cell(at(window.opens), None),
            cell(at(window.closes), None),
            cell(scope(window), None),
            cell(human::one_line(&spec.owner, 30), None),
            cell(human::one_line(&spec.reason, 60), None),
        ]);
    }
    out.print_table(
        &table,
        "there are no maintenance windows; `cueline window add` adds one",
    )
}

fn state(window: &WindowView, now: Timestamp) -> (&'static str, Option<Paint>) {
    match window.opens {
        None => ("over", Some(Paint::Dim)),
        Some(opens) if opens <= now => ("open", Some(Paint::Warn)),
        Some(_) if matches!(window.window.time, WindowTime::Recurring { .. }) => {
            ("recurring", None)
        }
        Some(_) => ("planned", None),
    }
}

fn scope(window: &WindowView) -> String {
    let scope = &window.window.scope;
    let mut parts = Vec::new();
    if scope.namespace.is_none() {
        parts.push("all namespaces".to_owned());
    }
    parts.extend(
        scope
            .group
            .as_ref()
            .map(|group| format!("group {}", group.local())),
    );
    parts.extend(
        scope
            .labels
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    if parts.is_empty() {
        return "all".to_owned();
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(subcommand)]
        command: WindowCommand,
    }

    #[test]
    fn only_what_is_given_is_sent() {
        let words = [
            "window",
            "add",
            "--group",
            "billing",
            "--label",
            "tier=1",
            "--cron",
            "0 22 * * SAT",
            "--duration",
            "4h",
            "--reason",
            "patches",
        ];
        let WindowCommand::Add(args) = Alone::try_parse_from(words).expect("fits").command else {
            panic!("add is expected")
        };
        let expected = json!({
            "group": "billing", "labels": { "tier": "1" }, "cron": "0 22 * * SAT", "duration": "4h", "reason": "patches",
        });
        assert_eq!(args.body(), expected);
        assert!(Alone::try_parse_from(["window", "add", "--label", "x"]).is_err());
    }
}
