//! `cueline retention …`: for how long, and how many, runs are kept.

use clap::{Args, Subcommand};
use cueline_api::view::{GroupRetentionView, JobRetention, KeptFor, RetentionPage};
use cueline_interface::{Failure, Out, cell};
use cueline_model::retention::{MAX_KEPT_RUNS, MIN_KEPT};
use cueline_model::{DurationMs, GroupName, JobName};
use serde_json::{Map, Value};

use crate::client::{Api, read};

/// `cueline retention …`
#[derive(Debug, Subcommand)]
pub(crate) enum RetentionCommand {
    /// Show what the server keeps, and the rules of groups
    List,
    /// Set the rule of a group, in place of the present one; what is not given, the server decides
    Set(RetentionSetArgs),
    /// Delete the rule of a group
    Delete(RetentionGroupArg),
}

/// One group.
#[derive(Debug, Args)]
pub(crate) struct RetentionGroupArg {
    /// The group
    #[arg(value_name = "GROUP")]
    group: GroupName,
}

/// `cueline retention set`
#[derive(Debug, Args)]
pub(crate) struct RetentionSetArgs {
    /// The group
    #[arg(value_name = "GROUP")]
    group: GroupName,
    /// Delete runs this long after their end
    #[arg(long, value_name = "DURATION", value_parser = kept)]
    age: Option<DurationMs>,
    /// Keep so many of the newest runs of each job
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_KEPT_RUNS)))]
    runs: Option<u32>,
    /// Delete logs this long after the end of their run
    #[arg(long, value_name = "DURATION", value_parser = kept)]
    logs: Option<DurationMs>,
    /// Delete outputs this long after the end of their run
    #[arg(long, value_name = "DURATION", value_parser = kept)]
    outputs: Option<DurationMs>,
}

fn kept(text: &str) -> Result<DurationMs, String> {
    let time: DurationMs = text.parse().map_err(|e| format!("{e}"))?;
    if time < MIN_KEPT {
        return Err(format!("is too short; give at least {MIN_KEPT}"));
    }
    Ok(time)
}

impl RetentionSetArgs {
    fn body(&self) -> Value {
        let mut body = Map::new();
        let times = [
            ("age", self.age),
            ("logs", self.logs),
            ("outputs", self.outputs),
        ];
        for (key, time) in times {
            if let Some(time) = time {
                body.insert(key.to_owned(), time.to_string().into());
            }
        }
        if let Some(runs) = self.runs {
            body.insert("runs".to_owned(), runs.into());
        }
        Value::Object(body)
    }
}

pub(crate) async fn run(api: &Api, out: Out, command: RetentionCommand) -> Result<(), Failure> {
    match command {
        RetentionCommand::List => list(api, out).await,
        RetentionCommand::Set(args) => {
            let body = args.body();
            if body.as_object().is_some_and(Map::is_empty) {
                let advice = "give --age, --runs, --logs or --outputs; `cueline retention delete` deletes the rule";
                return Err(Failure::bad_input(advice));
            }
            let answer = api.put(&["retention", args.group.as_str()], &body).await?;
            print(out, answer)
        }
        RetentionCommand::Delete(arg) => {
            let answer = api.delete(&["retention", arg.group.as_str()]).await?;
            print(out, answer)
        }
    }
}

async fn list(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["retention"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: RetentionPage = read(answer)?;
    out.line(&format!(
        "The server keeps ended runs for {}, the audit log for {} and dead letters for {}.",
        page.age, page.audit, page.dead_letters
    ))?;
    let mut table = out.table(&["GROUP", "AGE", "RUNS", "LOGS", "OUTPUTS"]);
    for view in &page.groups {
        let time = |time: Option<DurationMs>| cell(shown(time), None);
        table.add_row(vec![
            cell(view.group.local(), None),
            time(view.age),
            cell(shown(view.runs), None),
            time(view.logs),
            time(view.outputs),
        ]);
    }
    out.print_table(&table, "no group has a rule of its own")
}

fn shown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

fn print(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let view: GroupRetentionView = read(answer)?;
    out.line(&format!("group {}: {}", view.group.local(), rule(&view)))
}

fn rule(view: &GroupRetentionView) -> String {
    let mut parts = Vec::new();
    parts.extend(view.age.map(|age| format!("runs are kept for {age}")));
    parts.extend(
        view.runs
            .map(|runs| format!("the newest {runs} runs of each job are kept")),
    );
    parts.extend(view.logs.map(|logs| format!("logs are kept for {logs}")));
    parts.extend(
        view.outputs
            .map(|outputs| format!("outputs are kept for {outputs}")),
    );
    if parts.is_empty() {
        "it has no rule of its own".to_owned()
    } else {
        parts.join("; ")
    }
}

/// What is kept of the runs of a job, in one line with its sources.
pub(crate) async fn of_job(api: &Api, name: &JobName) -> Result<String, Failure> {
    let kept = api.get(&["jobs", name.as_str(), "retention"], &[]).await?;
    Ok(in_words(&read(kept)?))
}

fn in_words(kept: &JobRetention) -> String {
    let time = |what: &str, kept: &KeptFor| format!("{what}{} ({})", kept.time, kept.by.describe());
    let mut parts = vec![time("", &kept.age)];
    parts.extend(
        kept.runs
            .map(|runs| format!("the newest {} runs ({})", runs.number, runs.by.describe())),
    );
    for (what, own) in [("logs ", &kept.logs), ("outputs ", &kept.outputs)] {
        if own != &kept.age {
            parts.push(time(what, own));
        }
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_is_one_line_with_its_sources() {
        let server = json!({ "time": "7d", "by": "server" });
        let plain: JobRetention = serde_json::from_value(json!({
            "job": "a", "age": server, "logs": server, "outputs": server,
        }))
        .expect("an answer");
        assert_eq!(in_words(&plain), "7d (set for the server)");
        let own: JobRetention = serde_json::from_value(json!({
            "job": "a", "age": { "time": "30d", "by": "group" }, "runs": { "number": 100, "by": "job" },
            "logs": { "time": "3d", "by": "job" }, "outputs": { "time": "30d", "by": "group" },
        }))
        .expect("an answer");
        assert_eq!(
            in_words(&own),
            "30d (set for its group); the newest 100 runs (set by the job); logs 3d (set by the job)"
        );
    }

    #[test]
    fn a_time_has_a_lower_bound() {
        assert!(kept("1m").is_ok());
        assert!(kept("59s").expect_err("is refused").contains("at least 1m"));
        assert!(kept("7").is_err());
    }
}
