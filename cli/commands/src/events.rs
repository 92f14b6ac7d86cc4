//! `cueline events`

use std::time::Duration;

use cueline_api::view::{
    ExecutorChange, ExecutorEvent, JobChange, JobEvent, Lagged, Overflow, RunChange, RunEvent,
};
use cueline_interface::{Failure, Out, Paint, say};
use cueline_model::{GroupName, JobName, Namespace};
use cueline_runtime::Backoff;
use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::args::EventsArgs;
use crate::client::{Api, read};
use crate::event_stream::{EventStream, Message};
use crate::namespaces::AllNamespaces;

/// Three heartbeats of the server. After such a silence its connection is dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(45);

/// Attempts to continue a stream that has ended, with longer and longer waits.
const MAX_ATTEMPTS: u32 = 8;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Prints events until the command is interrupted, or the server is gone.
pub(crate) async fn run(api: &Api, out: Out, args: &EventsArgs) -> Result<(), Failure> {
    let query = query(args);
    let everywhere = api.in_namespace(&Namespace::default());
    let api = if args.all.all_namespaces {
        &everywhere
    } else {
        api
    };
    let mut stream = EventStream::default();
    let mut response = api.stream(&["events"], &query, None).await?;
    loop {
        print_all(out, args.all, &mut response, &mut stream).await?;
        response = continued(api, &query, &stream).await?;
        stream.restart();
    }
}

fn query(args: &EventsArgs) -> Vec<(&'static str, String)> {
    let mut query = Vec::new();
    if !args.kinds.is_empty() {
        let kinds: Vec<&str> = args.kinds.iter().map(|kind| kind.as_str()).collect();
        query.push(("kinds", kinds.join(",")));
    }
    if args.all.all_namespaces {
        query.push(("all_namespaces", "true".to_owned()));
    }
    query.extend(args.jobs.iter().map(|job| ("job", job.to_string())));
    query.extend(args.groups.query());
    query.extend(args.states.iter().map(|state| ("state", state.to_string())));
    query
}

/// Opens the stream again. A server ends each stream after some minutes, and all of them when it stops.
async fn continued(
    api: &Api,
    query: &[(&str, String)],
    stream: &EventStream,
) -> Result<Response, Failure> {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut attempt = 1;
    loop {
        tokio::time::sleep(backoff.next_wait()).await;
        let opened = api.stream(&["events"], query, stream.last_id()).await;
        match opened {
            Err(Failure::Failed { .. }) if attempt < MAX_ATTEMPTS => attempt += 1,
            opened => return opened,
        }
    }
}

/// Prints the events of one stream until it ends.
async fn print_all(
    out: Out,
    all: AllNamespaces,
    response: &mut Response,
    stream: &mut EventStream,
) -> Result<(), Failure> {
    // An error and a silence end the stream as well. What is missing follows in the next one.
    while let Ok(Ok(Some(bytes))) = timeout(LONGEST_SILENCE, response.chunk()).await {
        stream.push(&bytes);
        loop {
            let message = stream.next();
            let message = message.map_err(|error| Failure::failed(error.to_string()))?;
            let Some(message) = message else {
                break;
            };
            print(out, all, &message)?;
        }
    }
    Ok(())
}

fn print(out: Out, all: AllNamespaces, message: &Message) -> Result<(), Failure> {
    let data: Value = serde_json::from_str(&message.data).map_err(|error| {
        Failure::failed(format!(
            "failed to understand an event of the server: {error}"
        ))
    })?;
    let name = message.event.as_str();
    if name == "ready" {
        return Ok(());
    }
    if out.is_json() {
        return out.json_line(&json!({ "event": name, "data": data }));
    }
    match name {
        "run" => {
            let event: RunEvent = read(data)?;
            let line = run_line(&event, all);
            match Paint::of_state(event.state) {
                Some(colour) => out.line(&out.paint(&line, colour)),
                None => out.line(&line),
            }
        }
        "job" => out.line(&job_line(&read(data)?, all)),
        "executor" => out.line(&executor_line(&read(data)?, all)),
        "lagged" => {
            let Lagged { missed } = read(data)?;
            say(&format!(
                "warning: {missed} events were lost; this command read too slowly"
            ));
            Ok(())
        }
        "overflow" => {
            let Overflow { watched } = read(data)?;
            say(&format!(
                "warning: there are more than {watched}; the changes of the others are not shown"
            ));
            Ok(())
        }
        "resync" => {
            say("warning: events may be missing here");
            Ok(())
        }
        // A newer server may have further ones.
        _ => Ok(()),
    }
}

/// The name of a job, with its namespace if events of all namespaces are printed.
fn job_name(job: &JobName, all: AllNamespaces) -> &str {
    if all.all_namespaces {
        job.as_str()
    } else {
        job.local()
    }
}

/// The same for a group.
fn group_name(group: &GroupName, all: AllNamespaces) -> &str {
    if all.all_namespaces {
        group.as_str()
    } else {
        group.local()
    }
}

fn run_line(event: &RunEvent, all: AllNamespaces) -> String {
    let state = match event.change {
        RunChange::Deleted => "deleted".to_owned(),
        _ => event.state.as_str().replace('_', " "),
    };
    let attempt = match event.attempt {
        0 | 1 => String::new(),
        attempt => format!(" (attempt {attempt})"),
    };
    let executor = event.executor.as_ref();
    let executor = executor.map_or_else(String::new, |executor| format!(" on {executor}"));
    let job = job_name(&event.job, all);
    format!("run {} of {job}: {state}{attempt}{executor}", event.id)
}

fn job_line(event: &JobEvent, all: AllNamespaces) -> String {
    let change = match event.change {
        JobChange::Created => "created",
        JobChange::Updated => "updated",
        JobChange::Paused => "paused",
        JobChange::Resumed => "resumed",
        JobChange::Moved => "moved to another group",
        JobChange::Deleted => "deleted",
    };
    let name = job_name(&event.name, all);
    format!("job {name}: {change}, version {}", event.version)
}

fn executor_line(event: &ExecutorEvent, all: AllNamespaces) -> String {
    let what = match event.change {
        ExecutorChange::Forgotten => "forgotten",
        ExecutorChange::Appeared | ExecutorChange::Changed => event.state.as_str(),
    };
    let group = group_name(&event.group, all);
    format!("executor {group}/{}: {what}", event.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: AllNamespaces = AllNamespaces {
        all_namespaces: false,
    };
    const ALL: AllNamespaces = AllNamespaces {
        all_namespaces: true,
    };

    fn run() -> Value {
        json!({
            "change": "ended", "id": 12, "job_id": 1, "job": "backup", "group": "default", "kind": "schedule",
            "state": "timed_out", "attempt": 2, "fire_at": 1, "executor": "worker-1", "ended_at": 2,
        })
    }

    fn executor() -> Value {
        json!({
            "change": "changed", "group": "default", "name": "worker-1", "state": "silent", "incarnation": "1",
            "capacity": 4, "last_heartbeat_at": 1,
        })
    }

    #[test]
    fn an_event_is_one_line() {
        let run: RunEvent = read(run()).expect("an event");
        assert_eq!(
            run_line(&run, ONE),
            "run 12 of backup: timed out (attempt 2) on worker-1"
        );
        let job = json!({
            "change": "paused", "id": 1, "name": "backup", "group": "default", "version": 3, "enabled": false,
        });
        let job: JobEvent = read(job).expect("an event");
        assert_eq!(job_line(&job, ONE), "job backup: paused, version 3");
        let executor: ExecutorEvent = read(executor()).expect("an event");
        assert_eq!(
            executor_line(&executor, ONE),
            "executor default/worker-1: silent"
        );
    }

    #[test]
    fn only_events_of_all_namespaces_name_theirs() {
        let mut run = run();
        run["namespace"] = json!("team-a");
        run["job"] = json!("team-a/backup");
        let run: RunEvent = read(run).expect("an event");
        assert!(run_line(&run, ONE).starts_with("run 12 of backup:"));
        assert!(run_line(&run, ALL).starts_with("run 12 of team-a/backup:"));
        let mut executor = executor();
        executor["group"] = json!("team-a/default");
        let executor: ExecutorEvent = read(executor).expect("an event");
        assert_eq!(
            executor_line(&executor, ONE),
            "executor default/worker-1: silent"
        );
        assert_eq!(
            executor_line(&executor, ALL),
            "executor team-a/default/worker-1: silent"
        );
    }
}
