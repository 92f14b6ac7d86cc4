//! `cueline queue …`

use cueline_api::view::{Count, QueuePage, Queues};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_store::admin::{EmptiedQueue, QueueDepth};
use serde_json::{Value, json};

use crate::args::{ExecutorArg, QueueCommand};
use crate::client::{Api, read};
use crate::list_args::QueueListArgs;
use crate::lists::{List, print_next, values};
use crate::watch;

pub(crate) async fn run(api: &Api, out: Out, command: QueueCommand) -> Result<(), Failure> {
    match command {
        QueueCommand::List(args) => {
            let fetch = async || fetch_list(api, &args).await;
            watch::show(out, args.watch, fetch, |queues| list(out, queues)).await
        }
        QueueCommand::Show(target) => show(api, out, &target).await,
        QueueCommand::Drain(target) => {
            empty(api, out, &target, "drain", "removed, to be routed again").await
        }
        QueueCommand::Purge(target) => {
            empty(api, out, &target, "purge", "removed, their runs cancelled").await
        }
        QueueCommand::Replay(target) => replay(api, out, &target).await,
    }
}

async fn fetch_list(api: &Api, args: &QueueListArgs) -> Result<Value, Failure> {
    let mut query = args.groups.query();
    query.extend(values("executor", &args.executors));
    let list = List {
        path: &["queues"],
        key: "queues",
        most: None,
    };
    list.read(api, &query, args.all, &args.page).await
}

fn list(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let found: Queues = read(answer)?;
    let mut table = out.table(&["QUEUE", "READY", "UNSETTLED"]);
    for queue in &found.queues {
        let (name, ready, unsettled) = cells(queue);
        let paint = (queue.ready != Some(0)).then_some(Paint::Warn);
        table.add_row(vec![
            cell(name, None),
            cell(ready, paint),
            cell(unsettled, None),
        ]);
    }
    out.print_table(&table, "there are no such queues")?;
    print_next(out, found.next.as_deref())
}

fn cells(queue: &QueueDepth) -> (String, String, String) {
    let name = match (&queue.group, &queue.executor) {
        (Some(group), Some(executor)) => format!("{group}/{executor}"),
        _ => queue.queue.clone(),
    };
    let count =
        |messages: Option<u64>| messages.map_or_else(|| "no answer".to_owned(), |n| n.to_string());
    (name, count(queue.ready), count(queue.unsettled))
}

async fn show(api: &Api, out: Out, target: &ExecutorArg) -> Result<(), Failure> {
    let path = ["queues", target.group.as_str(), target.executor.as_str()];
    let answer = api.get(&path, &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: QueuePage = read(answer)?;
    match &page.queue {
        Some(QueueDepth {
            queue,
            ready: Some(ready),
            unsettled: Some(unsettled),
            ..
        }) => out.line(&format!(
            "{queue}: {ready} ready, {unsettled} delivered and not settled"
        ))?,
        Some(queue) => out.line(&format!(
            "{}: the broker has no answer for this queue",
            queue.queue
        ))?,
        None => out.line("it has no queue")?,
    }
    out.line(&format!("{} unfinished attempts", page.outstanding))?;
    if page.runs.is_empty() {
        return Ok(());
    }
    let mut table = out.table(&["RUN", "ATTEMPT", "STATE", "QUEUED"]);
    for run in &page.runs {
        table.add_row(vec![
            cell(run.run.to_string(), None),
            cell(run.attempt.to_string(), None),
            cell(run.state.to_string(), Paint::of_state(run.state)),
            cell(run.queued_at.to_string(), None),
        ]);
    }
    out.print_table(&table, "")
}

/// Drains or purges.
async fn empty(
    api: &Api,
    out: Out,
    target: &ExecutorArg,
    what: &str,
    done: &str,
) -> Result<(), Failure> {
    let answer = act(api, target, what).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let EmptiedQueue { count, left } = read(answer)?;
    out.line(&format!("{} {done}", triggers(count)))?;
    if left > 0 {
        out.line(&format!(
            "{} left in the queue: the executor may hold them, and did not say that it does not. Try again later",
            triggers(left)
        ))?;
    }
    Ok(())
}

async fn replay(api: &Api, out: Out, target: &ExecutorArg) -> Result<(), Failure> {
    let answer = act(api, target, "replay").await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let Count { count } = read(answer)?;
    out.line(&format!("{} published again", triggers(count)))
}

async fn act(api: &Api, target: &ExecutorArg, what: &str) -> Result<Value, Failure> {
    let path = [
        "queues",
        target.group.as_str(),
        target.executor.as_str(),
        what,
    ];
    api.post(&path, &json!({})).await
}

fn triggers(count: u64) -> String {
    let triggers = if count == 1 { "trigger" } else { "triggers" };
    format!("{count} {triggers}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_without_counts_says_so() {
        let answer = json!({ "queue": "results", "ready": null, "unsettled": null });
        let silent: QueueDepth = serde_json::from_value(answer.clone()).expect("an answer");
        let (name, ready, unsettled) = cells(&silent);
        assert_eq!(
            [name, ready, unsettled],
            ["results", "no answer", "no answer"]
        );
        assert_eq!(serde_json::to_value(silent).expect("an answer"), answer);
    }
}
